"""What each fault of a run cost, as far as a run can tell.

Three things are counted where they happen: the turns that ran on what a fault took away, the KV
moves under way there, and the retries of clients. How long it was felt is read from a running
average: of the last `WINDOW` turns that ended (or failed for good), the share that was good. It
*dips* when it falls below what it was before the fault (over up to `BEFORE` turns) by more than a
tenth, and by more than luck does: three standard deviations. It is *back* when it is above that
again after the last dip that began until `WINDOW` turns after the fault's end.

Retries, and prompt tokens that were computed again, are those from a fault's begin until it is over
and the average is back, whatever caused them: two faults at the same time share them, and some KV
is computed again without any fault. To know what a fault alone changes, run the scenario without.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from bedplate.core.units import SECOND_NS
from bedplate.twin.faults import NEVER
from bedplate.twin.goodput import slo_class, turn_is_good
from bedplate.twin.outcome import FaultRow, Outcome, TurnRow
from bedplate.twin.workload.form import Workload

WINDOW = 50
BEFORE = 200
LOST = 0.1
LUCK = 3.0


class FaultCost(NamedTuple):
    """One fault. Times in seconds; `until_s` None is never.

    `happened` is False where the run was over before it began. `effect`: `none` (the average did
    not dip), `back` (after `back_s` from the fault's begin), `lasting` (not back by the end of the
    run) or `unknown` (fewer than `WINDOW` turns had ended before). `good_before` and `good_least`
    are the average as it began and at its lowest.
    """

    kind: str
    thing: str
    at_s: float
    until_s: float | None
    happened: bool
    turns_cut: int
    moves_cut: int
    client_retries: int
    tokens_again: int
    effect: str
    back_s: float | None
    good_before: float | None
    good_least: float | None

    def words(self) -> str:
        """Return it as a line for people."""
        until = "for good" if self.until_s is None else f"to {_seconds(self.until_s)}"
        name = " ".join(filter(None, (self.kind, self.thing)))
        at = f"{name} at {_seconds(self.at_s)}"
        if not self.happened:
            return f"{at}: the run was over before, nothing came of it"
        told = f"{at}, {until}: {_counted(self.turns_cut, 'turn')} cut, "
        if self.moves_cut:
            told += f"{_counted(self.moves_cut, 'KV move')} cut, "
        told += f"{self.client_retries:,} client retries, "
        told += f"{self.tokens_again:,} prompt tokens computed again; "
        dip = f"{self.good_before or 0:.0%} good before, {self.good_least or 0:.0%} at the lowest"
        effects = {
            "none": "goodput did not dip",
            "back": f"goodput back after {_seconds(self.back_s or 0)} ({dip})",
            "lasting": f"goodput not back by the end of the run ({dip})",
            "unknown": f"under {WINDOW} turns ended before: nothing to compare goodput with",
        }
        return told + effects[self.effect]


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


class _Ends:
    """All turns that ended, in the order of their ends, and their running average."""

    def __init__(self, outcome: Outcome, workload: Workload, slo_factor: float) -> None:
        classes = [slo_class(lane, slo_factor) for lane in range(3)]
        rows = sorted(_ended(outcome.turns), key=lambda row: row.end_ns)
        good = (turn_is_good(row, classes[workload.sessions[row.session].lane]) for row in rows)
        self.at_ns = [row.end_ns for row in rows]
        self.again = [0, *accumulate(row.again_tokens for row in rows)]
        self._good = [0, *accumulate(good)]

    def average(self, ended: int, turns: int = WINDOW) -> float:
        """Return the share of good ones of the last `turns` when so many have ended."""
        return (self._good[ended] - self._good[ended - turns]) / turns


def _ended(turns: Sequence[TurnRow]) -> list[TurnRow]:
    return [row for row in turns if row.end_ns >= 0 and row.status != "unfinished"]


def fault_costs(
    outcome: Outcome, workload: Workload, *, slo_factor: float
) -> tuple[FaultCost, ...]:
    """Return what each fault cost, in the order of the scenario. Cost: O(faults × turns)."""
    if not outcome.faults:
        return ()
    ends = _Ends(outcome, workload, slo_factor)
    retries = sorted(outcome.retries_ns)
    return tuple(_cost(row, ends, retries, outcome.duration_ns) for row in outcome.faults)


def _cost(row: FaultRow, ends: _Ends, retries: Sequence[int], duration_ns: int) -> FaultCost:
    lasts = row.end_ns == NEVER
    effect, back_ns, before, least = _felt(row, ends)
    over_ns = duration_ns if lasts or effect == "lasting" else max(row.end_ns, back_ns)
    first, last = bisect_left(ends.at_ns, row.at_ns), bisect_right(ends.at_ns, over_ns)
    asked = bisect_right(retries, over_ns) - bisect_left(retries, row.at_ns)
    return FaultCost(
        kind=row.kind,
        thing=row.thing,
        at_s=row.at_ns / SECOND_NS,
        until_s=None if lasts else row.end_ns / SECOND_NS,
        happened=row.at_ns <= duration_ns,
        turns_cut=row.turns_cut,
        moves_cut=row.moves_cut,
        client_retries=max(0, asked),
        tokens_again=ends.again[last] - ends.again[first] if last > first else 0,
        effect=effect,
        back_s=(back_ns - row.at_ns) / SECOND_NS if effect == "back" else None,
        good_before=before,
        good_least=least,
    )


def _felt(row: FaultRow, ends: _Ends) -> tuple[str, int, float | None, float | None]:
    """Return effect, when goodput was back (the fault's begin without a dip), before, least."""
    count = len(ends.at_ns)
    begun = bisect_left(ends.at_ns, row.at_ns)
    if begun < WINDOW:
        return "unknown", row.at_ns, None, None
    before = ends.average(begun, min(begun, BEFORE))
    luck = LUCK * math.sqrt(before * (1 - before) / WINDOW)
    enough = before - max(LOST * before, luck)
    last = count if row.end_ns == NEVER else bisect_right(ends.at_ns, row.end_ns) + WINDOW
    dips = [n for n in range(begun + 1, min(count, last) + 1) if ends.average(n) < enough]
    if not dips:
        return "none", row.at_ns, before, None
    back = next((n for n in range(dips[-1] + 1, count + 1) if ends.average(n) >= enough), 0)
    least = min(ends.average(n) for n in range(dips[0], (back or count) + 1))
    if not back:
        return "lasting", -1, before, least
    return "back", ends.at_ns[back - 1], before, least
