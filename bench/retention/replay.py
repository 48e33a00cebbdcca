"""Replay one load under an eviction order, and find the least it could have cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from bench.bounds.retention import Gaps, optimum
from bench.retention.regimes import Drawn, Gap, miss_cost

SECONDS = 10.0
GAP = 1e-4
"""How long, and to which share of the value, the optimum is searched; its bound is what counts."""


class Idle(NamedTuple):
    """What an order may know of an idle context: never `gap.end`, but for those that cheat."""

    gap: Gap
    cost: float


class Order(Protocol):
    """An eviction order. One object serves one replay."""

    def keeps(self, idle: Idle) -> bool:
        """Tell whether the context stays at all when its turn ends."""
        ...

    def victims(self, idle: Mapping[int, Idle], need: int, now: float) -> list[int]:
        """Return sessions to drop, whose tokens come to `need` or more; all of them may."""
        ...

    def came_back(self, gap: Gap) -> None:
        """Hear of a gap that ended, whether its context was still there or not."""
        ...


class Replayed(NamedTuple):
    """What an order paid, and how many of the gaps' ends found nothing."""

    cost: float
    misses: int
    gaps: int


def replay(drawn: Drawn, order: Order, form: str) -> Replayed:
    """Run a load under an order. Cost: O(turns × idle contexts)."""
    idle: dict[int, Idle] = {}
    running: dict[int, int] = {}
    open_gaps: dict[int, Gap] = {}
    begins = {(gap.session, gap.begin): gap for gap in drawn.gaps}
    moments = sorted(
        [(turn.begin, 1, turn) for turn in drawn.turns]
        + [(turn.end, 0, turn) for turn in drawn.turns]
    )
    paid, misses = 0.0, 0
    for now, kind, turn in moments:
        if kind == 0:
            del running[turn.session]
            gap = begins.get((turn.session, turn.end))
            if gap is not None:
                open_gaps[turn.session] = gap
                context = Idle(gap, miss_cost(gap.tokens, form))
                if order.keeps(context):
                    idle[turn.session] = context
            continue
        back = open_gaps.pop(turn.session, None)
        if back is not None:
            order.came_back(back)
            if idle.pop(turn.session, None) is None:
                paid += miss_cost(back.tokens, form)
                misses += 1
        running[turn.session] = turn.tokens
        held = sum(context.gap.tokens for context in idle.values())
        need = sum(running.values()) + held - drawn.kv_tokens
        if need > 0:
            for session in order.victims(idle, need, now):
                del idle[session]
    return Replayed(paid, misses, len(drawn.gaps))


def least(drawn: Drawn, form: str, *, integral: bool) -> float:
    """Return a cost that no choice is below, everything known."""
    gaps, turns = drawn.gaps, drawn.turns
    columns = Gaps(
        np.array([gap.begin for gap in gaps]),
        np.array([gap.end for gap in gaps]),
        np.array([gap.tokens for gap in gaps], dtype=np.float64),
        np.array([miss_cost(gap.tokens, form) for gap in gaps]),
    )
    begin = np.array([turn.begin for turn in turns])
    end = np.array([turn.end for turn in turns])
    tokens = np.array([turn.tokens for turn in turns], dtype=np.float64)
    running = np.array([float(tokens[(begin <= at) & (at < end)].sum()) for at in begin])
    room = drawn.kv_tokens - running
    return optimum(columns, begin, room, integral=integral, seconds=SECONDS, gap=GAP).bound
