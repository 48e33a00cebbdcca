"""Fit the constants of a card to what was measured on it. Pure: points in, constants out.

A point is a time and the work that took it: how many steps of which composition, how much
attention, how many turns begun. The times of several kinds of points (a prompt, decoding, both at
once) are explained by one set of constants, so each kind checks the others.

The fit minimises *relative* errors, so that a point of a millisecond weighs as much as one of a
second, under a loss that grows linearly beyond 5 %, so that one interrupted measurement does not
bend all constants. No constant is negative, and a decoding sequence costs at least the arithmetic
of a prompt token, as it passes the same layers. The time of a step has a kink,
max(weights, arithmetic): the search starts on both sides of it and keeps the best end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from bedplate.perf.profile import Batching, LinearCost, MoveCost
from bedplate.perf.profile_file import FitError

LOSS_SCALE = 0.05
"""Relative error from which on a point's pull no longer grows."""
DIGITS = 6
"""Significant digits of a constant: far more than any measurement gives."""
STARTS = (0.0, 0.5, 1.0)
"""Where the search begins: the weights' share of the shortest step."""
FOLDS = 4
"""Every fourth point is held out in turn."""

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one composition. `count` may be a fraction: half a step is waited for on average."""

    count: float
    prompt_tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A measured time and the steps that took it.

    `pairs`, `context_tokens` and `cells` are sums over all steps, as `perf.profile` defines them;
    `cells` is 0 where slots have nothing to do with one another. `begins` counts turns whose
    start-up is part of the time.
    """

    kind: str
    time_ns: float
    steps: tuple[Steps, ...]
    pairs: float
    context_tokens: float
    cells: float = 0.0
    begins: int = 0


@dataclass(frozen=True, slots=True)
class MovePoint:
    """A measured store or load of so many bytes."""

    kind: str
    time_ns: float
    size_bytes: int


class StepFit(NamedTuple):
    """The constants of steps and of a turn's beginning."""

    cost: LinearCost
    cell_ns: float
    begin_ns: float

    def time_ns(self, point: StepPoint) -> float:
        """Return the time that these constants give for a point's work."""
        cost = self.cost
        fixed = math.fsum(
            steps.count * cost.fixed_ns(steps.prompt_tokens, steps.sequences)
            for steps in point.steps
        )
        attention = cost.pair_ns * point.pairs + cost.context_ns * point.context_tokens
        return fixed + attention + self.cell_ns * point.cells + self.begin_ns * point.begins


class _Point(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def time_ns(self) -> float: ...


PointT = TypeVar("PointT", bound=_Point)
Predict = Callable[[PointT], float]


class Prefill(NamedTuple):
    """The steps in which a prompt is computed, its (query, key) pairs, and the cells passed over.

    `pairs` are the prompt's own; `cells` counts, for each token, what the prompt's own slot held
    before the token's step.
    """

    steps: tuple[Steps, ...]
    pairs: float
    cells: float


def prefill_steps(batching: Batching, new_tokens: int, cached_tokens: int, beside: int) -> Prefill:
    """Cut a prompt into steps by an engine's batching rule.

    Args:
        batching: The rule.
        new_tokens: Prompt tokens to compute, >= 1.
        cached_tokens: Context before them.
        beside: Sequences that decode at the same time. Without mixed steps they wait.
    """
    sequences = beside if batching.mixed else 0
    room = max(1, batching.token_budget - sequences)
    whole, rest = divmod(new_tokens, room)
    steps = [Steps(whole, room, sequences)] if whole else []
    if rest:
        steps.append(Steps(1, rest, sequences))
    pairs = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2
    cells = new_tokens * cached_tokens + room * room * whole * (whole - 1) / 2 + rest * room * whole
    return Prefill(tuple(steps), pairs, cells)


def fit_steps(points: Sequence[StepPoint]) -> StepFit:
    """Fit the step cost and the time in which a turn begins.

    Args:
        points: At least one; with fewer kinds of points fewer constants can be told apart, and
            what cannot be told is put into those that can.

    Cost: some 50 ms for 50 points.
    """
    assert points
    work = _Work(points)
    best: Any = None
    for share in STARTS:
        found = least_squares(
            work.residuals,
            work.start(share),
            bounds=(0.0, np.inf),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
            max_nfev=400,
        )
        if best is None or found.cost < best.cost * (1 - 1e-9):
            best = found
    launch, weights, prompt, head, pair, context, cell, begin = map(
        _rounded, work.constants(best.x)
    )
    return StepFit(
        LinearCost(
            launch_ns=launch,
            weights_ns=weights,
            prompt_ns=prompt,
            sequence_ns=_rounded(prompt + head),
            pair_ns=pair,
            context_ns=context,
        ),
        cell,
        begin,
    )


def fit_move(points: Sequence[MovePoint], *, stalls: bool) -> MoveCost:
    """Fit the time of a store or a load: a base and a time per byte."""
    assert points
    times = np.array([point.time_ns for point in points], dtype=np.float64)
    sizes = np.array([point.size_bytes for point in points], dtype=np.float64)
    units = np.array([np.median(times), np.median(times / np.maximum(sizes, 1.0))])
    features = np.column_stack([np.ones_like(sizes), sizes]) * units / times[:, None]

    def residuals(x: _Array) -> _Array:
        out: _Array = features @ x - 1.0
        return out

    found = least_squares(
        residuals, [0.5, 0.5], bounds=(0.0, np.inf), loss="soft_l1", f_scale=LOSS_SCALE
    )
    base, byte = map(_rounded, found.x * units)
    return MoveCost(base, byte, stalls)


def move_ns(cost: MoveCost, point: MovePoint) -> float:
    """Return the time that a cost gives for a point's bytes."""
    return cost.base_ns + cost.byte_ns * point.size_bytes


def held_out_errors(
    points: Sequence[PointT],
    fit: Callable[[Sequence[PointT]], Predict[PointT]],
    *,
    seed: int,
    folds: int = FOLDS,
) -> dict[str, FitError]:
    """Return, for each kind, the error on points that a fit has not seen.

    The points of each kind are shuffled and dealt to `folds` hands. Each hand in turn is held out:
    the others are fitted, and the fit is asked for its times. So every point is judged once, by
    constants that it had no part in. A kind with one point is judged by a fit without its kind.
    """
    random_ = random.Random(seed)
    order: list[PointT] = []
    for kind in dict.fromkeys(point.kind for point in points):
        of_kind = [point for point in points if point.kind == kind]
        random_.shuffle(of_kind)
        order += of_kind
    errors: dict[str, list[float]] = {}
    for hand in range(folds):
        seen = [point for at, point in enumerate(order) if at % folds != hand]
        if not seen or len(seen) == len(order):
            continue
        predict = fit(seen)
        for point in order[hand::folds]:
            errors.setdefault(point.kind, []).append(abs(predict(point) / point.time_ns - 1.0))
    return {kind: fit_error(values) for kind, values in errors.items()}


def fit_error(errors: Sequence[float]) -> FitError:
    """Sum up relative errors."""
    assert errors
    ordered = sorted(errors)
    tail = min(len(ordered) - 1, math.ceil(0.9 * len(ordered)) - 1)
    return FitError(
        points=len(ordered),
        mean=round(math.fsum(ordered) / len(ordered), 4),
        median=round(float(np.median(ordered)), 4),
        p90=round(ordered[tail], 4),
    )


class _Work:
    """The points as arrays: what each constant is multiplied with, divided by the point's time."""

    def __init__(self, points: Sequence[StepPoint]) -> None:
        groups = [(at, steps) for at, point in enumerate(points) for steps in point.steps]
        self._count = np.array([steps.count for _, steps in groups], dtype=np.float64)
        self._prompt = np.array([steps.prompt_tokens for _, steps in groups], dtype=np.float64)
        self._sequences = np.array([steps.sequences for _, steps in groups], dtype=np.float64)
        self._times = np.array([point.time_ns for point in points], dtype=np.float64)
        self._owner = np.zeros((len(points), len(groups)))
        for index, (at, _) in enumerate(groups):
            self._owner[at, index] = 1.0 / points[at].time_ns
        pairs = np.array([point.pairs for point in points], dtype=np.float64)
        contexts = np.array([point.context_tokens for point in points], dtype=np.float64)
        cells = np.array([point.cells for point in points], dtype=np.float64)
        begins = np.array([point.begins for point in points], dtype=np.float64)
        self._linear = np.column_stack([pairs, contexts, cells, begins]) / self._times[:, None]
        steps_of = self._owner @ self._count
        tokens_of = self._owner @ (self._count * (self._prompt + self._sequences))
        sequences_of = self._owner @ (self._count * self._sequences)
        columns = [steps_of, steps_of, tokens_of, sequences_of, *self._linear.T]
        self._units = np.array([_unit(column) for column in columns])

    def start(self, weights_share: float) -> list[float]:
        """Return where a search begins, in units of the largest value that a constant can have."""
        return [0.2, weights_share, 0.8, 0.2, 0.1, 0.1, 0.1, 0.1]

    def constants(self, x: _Array) -> list[float]:
        """Return the constants in nanoseconds."""
        return [float(value) for value in x * self._units]

    def residuals(self, x: _Array) -> _Array:
        """Return the relative error of each point."""
        launch, weights, prompt, head, *linear = x * self._units
        arithmetic = prompt * (self._prompt + self._sequences) + head * self._sequences
        fixed = self._count * (launch + np.maximum(weights, arithmetic))
        out: _Array = self._owner @ fixed + self._linear @ np.array(linear) - 1.0
        return out


def _unit(column: _Array) -> float:
    """Return the largest constant that leaves no point over its time; 0 where none has it."""
    used = column[column > 0]
    return float(1.0 / used.max()) if used.size else 0.0


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
