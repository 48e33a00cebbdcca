"""What work costs at least: prices under which no step of an engine is cheaper than what it does.

A step computes `p` prompt tokens and advances `b` sequences whose contexts fill the share `k` of
the card's KV, and takes fixed(p, b) nanoseconds, attention aside. Prices α, β, γ >= 0 with

    α p + β b + γ k <= fixed(p, b)      for every step that a card can do

make α P + β D + γ K a lower bound on the time that P prompt tokens and D decoded tokens, whose
contexts sum up to K cards full, take by any batching: each step pays no more than it lasts. The
best such prices for a load are a linear program; by duality they say what the best mixture of
steps takes.

Contexts cannot be cut, so a card may be full although there is room left: two of 60 % need two
cards. `packings` are functions that never give more than 1 to contexts that fit one card together
(dual feasible functions of bin packing, Fekete and Schepers, 2001), but more than their size to
those that pack badly. Any of them may take the place of the share in k.

    ns ▲        fixed(p, b), never falling
       │     ┌──
       │  ┌──┘ ·      between grid points the step below is charged for what the step above does,
       │──┘ ·         so the inequality holds in between as well
       └────────► p or b
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Floats = NDArray[np.float64]


class Engine(NamedTuple):
    """What one card can do in a step.

    `fixed_ns(prompt tokens, sequences)` never falls in either. `token_budget` bounds both together,
    `running_max` the sequences. One sequence's context is at most the share `context_share` (0 to
    1) of the card's KV.
    """

    fixed_ns: Callable[[int, int], float]
    token_budget: int
    running_max: int
    context_share: float


class Prices(NamedTuple):
    """Nanoseconds per prompt token, decoded token, and decoded token that has a full card of KV."""

    prompt_ns: float
    token_ns: float
    full_ns: float


def prices(engine: Engine, *, prompt: float, tokens: float, full: float) -> Prices:
    """Return the prices under which a load costs most.

    Args:
        engine: The card.
        prompt: Prompt tokens of the load.
        tokens: Decoded tokens.
        full: Sum over decoded tokens of context ÷ KV of the card.

    Cost: a linear program of three variables and some thousand rows, milliseconds.
    """
    scale = max(prompt, tokens, full)
    if scale <= 0:
        return Prices(0.0, 0.0, 0.0)
    rows, limits = [], []
    for p0, p1 in pairwise([*_grid(engine.token_budget), engine.token_budget + 1]):
        for b0, b1 in pairwise([*_grid(engine.running_max), engine.running_max + 1]):
            if p0 + b0 == 0 or p0 + b0 > engine.token_budget:
                continue
            most = min(b1 - 1, engine.token_budget)
            rows.append((p1 - 1, most, min(1.0, most * engine.context_share)))
            limits.append(engine.fixed_ns(p0, b0))
    found = linprog(
        [-prompt / scale, -tokens / scale, -full / scale],
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        bounds=[(0, None)] * 3,
        method="highs",
    )
    assert found.status == 0, found.message
    return Prices(*(max(0.0, float(x)) for x in found.x))


def packings() -> Iterator[Callable[[Floats], Floats]]:
    """Yield functions f of shares of a card: Σ f <= 1 for all sets of shares whose sum is <= 1."""
    yield lambda share: share
    for small in (0.1, 0.2, 0.3, 0.4, 0.5):
        yield partial(_without_small, small)
    for parts in (1, 2, 3, 4):
        yield partial(_in_parts, parts)


def _without_small(small: float, share: Floats) -> Floats:
    """Count nothing for less than `small`, and a whole card for what leaves less than that."""
    return np.where(share > 1 - small, 1.0, np.where(share < small, 0.0, share))


def _in_parts(parts: int, share: Floats) -> Floats:
    """Count whole (parts + 1)ths as parts: more than a half is a card, more than a third a half."""
    fine = share * (parts + 1)
    whole = np.floor(fine)
    return np.where(fine == whole, share, whole / parts)


def _grid(top: int) -> Sequence[int]:
    """Return 0, every number to 16, then ever wider strides (a sixteenth), up to `top`."""
    points, at = [0], 1
    while at <= top:
        points.append(at)
        at += max(1, at // 16)
    return points
