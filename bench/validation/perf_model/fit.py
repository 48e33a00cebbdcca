"""The fit of the model's constants: robust least squares with priors, and models left out.

Parameters are logarithms of factors on a first guess (`GUESSES`), with a prior that pulls each to 0
by its spread: a constant that the rows say little of stays where physics put it. What is minimised
is the relative error |predicted ÷ measured − 1| of each quantity, with the tails made linear
(pseudo-Huber), by Levenberg–Marquardt. Nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bedplate.errors import InvalidRequest
from bedplate.perf.constants import Constants
from bedplate.perf.fitted import combine
from bench.harness.processes import workers
from bench.validation.perf_model.predict import Said, pick, quantities, say, times
from bench.validation.perf_model.rows import Row

GUESSES = {
    "memory_half": (0.8, 0.2),
    "memory_byte": (0.75, 0.2),
    "memory_nibble": (0.65, 0.3),
    "compute_half": (0.6, 0.15),
    "compute_byte": (0.55, 0.15),
    "compute_nibble": (0.45, 0.2),
    "kv": (0.7, 0.3),
    "attention": (0.5, 0.2),
    "expert_memory": (0.9, 0.2),
    "expert_compute": (0.5, 0.2),
    "mixer": (15e3, 0.7),
    "latent": (30e3, 0.7),
    "linear": (25e3, 0.7),
    "dense": (10e3, 0.7),
    "experts": (25e3, 0.7),
    "step": (1e6, 1.0),
    "sequence": (10e3, 1.0),
    "communication": (0.8, 0.4),
    "reduce": (10e3, 0.5),
    "interference": (1.0, 0.3),
    "begin": (30e6, 1.0),
    "queue": (0.05, 1.0),
}
"""First guess and spread (of the logarithm) of each constant of the base: shares, or ns."""
ENGINE_SPREADS = {
    "launch": 1.0,
    "step": 0.7,
    "sequence": 0.7,
    "communication": 0.3,
    "reduce": 0.4,
    "interference": 0.3,
    "begin": 1.0,
    "queue": 0.7,
}
FAMILY_SPREADS = {
    "memory": 0.15,
    "compute": 0.15,
    "kv": 0.2,
    "launch": 0.3,
    "communication": 0.3,
    "reduce": 0.3,
}
SCALES = {"tpot": 0.1, "rate": 0.1, "ttft": 0.15}
"""Relative error from which on a quantity's residual counts linearly."""
WEIGHTS = {"tpot": 1.0, "rate": 1.0, "ttft": 0.6}
"""What a quantity's residual counts: the first token is measured less alike than the others."""
ROUNDS = 25
TRIES = 9
"""Dampings that are tried for a round, each ten times the one before."""
STEP = 1e-4
GAIN = 3e-4
"""Relative gain of a round below which the fit ends."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters in order: (group, name); a group is `base`, an engine or a family."""

    names: tuple[tuple[str, str], ...]
    spreads: Vector

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Parameters:
        """Return the parameters that rows of these engines and families have."""
        names = [("base", name) for name in GUESSES]
        spreads = [spread for _, spread in GUESSES.values()]
        for engine in sorted({row.engine for row in rows}):
            names += [(engine, name) for name in ENGINE_SPREADS]
            spreads += ENGINE_SPREADS.values()
        for family in sorted({row.family for row in rows}):
            names += [(family, name) for name in FAMILY_SPREADS]
            spreads += FAMILY_SPREADS.values()
        return cls(tuple(names), np.array(spreads))

    def group(self, values: Vector, group: str) -> dict[str, float]:
        """Return the factors of an engine or family, or the constants of the base."""
        found = {
            name: math.exp(value)
            for (owner, name), value in zip(self.names, values, strict=True)
            if owner == group
        }
        if group == "base":
            return {name: GUESSES[name][0] * factor for name, factor in found.items()}
        return found

    def constants(self, values: Vector, rows: Sequence[Row]) -> dict[tuple[str, str], Constants]:
        """Return constants by engine and family of the rows."""
        base = self.group(values, "base")
        return {
            key: combine(
                base,
                self.group(values, key[0]),
                self.group(values, key[1]),
                evidence="fitted",
            )
            for key in sorted({(row.engine, row.family) for row in rows})
        }


def fit(rows: Sequence[Row], parameters: Parameters) -> Vector:
    """Return the values of parameters that fit rows best, from the first guesses."""
    values, damping = np.zeros(len(parameters.names)), 1e-2
    blocks = _residuals(rows, parameters, values)
    cost = _cost(blocks, parameters, values)
    for _ in range(ROUNDS):
        jacobian, residual = _linearise(rows, parameters, values, blocks)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ residual
        for _ in range(TRIES):
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slope)
            tried = values + np.clip(move, -1, 1)
            tried_blocks = _residuals(rows, parameters, tried)
            tried_cost = _cost(tried_blocks, parameters, tried)
            if tried_cost < cost:
                break
            damping *= 10
        else:
            return values
        gain = cost - tried_cost
        values, blocks, cost = tried, tried_blocks, tried_cost
        damping = max(damping / 10, 1e-6)
        if gain < GAIN * cost:
            break
    return values


def _residuals(rows: Sequence[Row], parameters: Parameters, values: Vector) -> list[list[float]]:
    constants = parameters.constants(values, rows)
    return [_of_row(row, constants[row.engine, row.family]) for row in rows]


def _of_row(row: Row, constants: Constants) -> list[float]:
    """Return the residual of each quantity; 0 for a row that cannot be answered."""
    try:
        found = times(row, constants)
    except InvalidRequest:
        return [0.0 for _ in quantities(row)]
    return [
        WEIGHTS[name] * _soft((pick(row, name, found) / measured - 1) / SCALES[name])
        for name, measured in quantities(row)
    ]


def _soft(value: float) -> float:
    """Return the root of twice the pseudo-Huber loss, with the sign of the value."""
    return math.copysign(math.sqrt(2 * (math.sqrt(1 + value * value) - 1)), value)


def _cost(blocks: list[list[float]], parameters: Parameters, values: Vector) -> float:
    data = sum(value * value for block in blocks for value in block)
    return data + float(np.sum((values / parameters.spreads) ** 2))


def _linearise(
    rows: Sequence[Row], parameters: Parameters, values: Vector, blocks: list[list[float]]
) -> tuple[Vector, Vector]:
    """Return the Jacobian and the residuals, priors last.

    A parameter of an engine or family moves only its own rows.
    """
    ends = np.cumsum([0] + [len(block) for block in blocks])
    jacobian = np.zeros((ends[-1] + len(values), len(values)))
    for column, (group, _) in enumerate(parameters.names):
        moved = values.copy()
        moved[column] += STEP
        touched = [
            index for index, row in enumerate(rows) if group in ("base", row.engine, row.family)
        ]
        changed = _residuals([rows[index] for index in touched], parameters, moved)
        for index, block in zip(touched, changed, strict=True):
            before = np.array(blocks[index])
            jacobian[ends[index] : ends[index + 1], column] = (np.array(block) - before) / STEP
        jacobian[ends[-1] + column, column] = 1 / parameters.spreads[column]
    flat = [value for block in blocks for value in block]
    return jacobian, np.concatenate([np.array(flat), values / parameters.spreads])


def left_out(
    rows: Sequence[Row], parameters: Parameters, *, models: int, processes: int
) -> list[Said]:
    """Return what is said of rows by a fit that has seen no row of their model.

    Models that share a shape but for details count as one (`rows.BASES`). Each fit begins at the
    first guesses.

    Args:
        rows: All rows.
        parameters: Of all rows.
        models: How many models are left out in turn, those with the most rows first.
        processes: How many fits run at a time.
    """
    order = [base for base, _ in Counter(row.base for row in rows).most_common(models)]
    jobs = [(list(rows), parameters, base) for base in order]
    if processes == 1:
        return [one for job in jobs for one in _leave_out(job)]
    with workers(processes) as pool:
        return [one for said in pool.map(_leave_out, jobs) for one in said]


def _leave_out(job: tuple[list[Row], Parameters, str]) -> list[Said]:
    rows, parameters, base = job
    seen = [row for row in rows if row.base != base]
    held = [row for row in rows if row.base == base]
    values = fit(seen, parameters)
    return say(held, parameters.constants(values, held))
