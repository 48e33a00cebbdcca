"""From recorded calls to sessions: gaps behind ends, and what spawned which line.

A recording of one agent run is a set of *lines*: calls that go on from one another. The run's first
line becomes a root session. Any other becomes a session that was spawned by the call that had ended
last before it began. Where the whole line had ended before the parent's next call, the parent is
taken to have waited for it:

    parent   ■■■ ········ gap ········ ■■■        joins: the gap of the parent's next turn counts
    child         gap ■■■ gap ■■■ ─────┘          from the child's end
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bedplate.twin.workload.form import Session, Spawn, Turn
from bedplate.twin.workload.source import Family, families_of


class Call(NamedTuple):
    """One recorded call; times on one clock in nanoseconds, the other fields as in `Turn`."""

    start_ns: int
    end_ns: int
    tool: str
    keep_tokens: int
    new_tokens: int
    out_tokens: int
    limit_tokens: int = 0


class Line(NamedTuple):
    """Calls that go on from one another, in order of time; at least one."""

    key: str
    kind: str
    calls: Sequence[Call]


def families(lines: Sequence[Line], *, tenant: str, lane: int) -> list[Family]:
    """Return the sessions of one run: its earliest line as root, the others as spawned sessions.

    A line that began before any call of the run had ended has no cause in the recording, and
    becomes a root too.

    Cost: O(lines × calls).
    """
    ordered = sorted(lines, key=lambda line: line.calls[0].start_ns)
    spawns = [_spawn(ordered, index) for index in range(len(ordered))]
    sessions = []
    for index, line in enumerate(ordered):
        spawn = spawns[index]
        first_ns = line.calls[0].start_ns
        if spawn is not None:
            first_ns -= ordered[spawn.session].calls[spawn.turn].end_ns
        turns = [_turn(line.calls[0], 0)]
        for number in range(1, len(line.calls)):
            free_ns = max(
                [line.calls[number - 1].end_ns]
                + [
                    ordered[child].calls[-1].end_ns
                    for child, cause in enumerate(spawns)
                    if cause is not None and cause == Spawn(index, number - 1, joins=True)
                ]
            )
            turns.append(_turn(line.calls[number], line.calls[number].start_ns - free_ns))
        sessions.append(Session(line.key, tenant, lane, line.kind, first_ns, spawn, tuple(turns)))
    return families_of(sessions)


def _turn(call: Call, gap_ns: int) -> Turn:
    _, _, tool, keep, new, out, limit = call
    return Turn(max(0, gap_ns), tool, keep, new, out, limit)


def _spawn(lines: Sequence[Line], index: int) -> Spawn | None:
    """Return the turn of an earlier line that ended last before this one began; None if none."""
    start_ns, end_ns = lines[index].calls[0].start_ns, lines[index].calls[-1].end_ns
    best: tuple[int, int, int] | None = None
    for parent in range(index):
        for number, call in enumerate(lines[parent].calls):
            if call.end_ns <= start_ns and (best is None or call.end_ns > best[0]):
                best = (call.end_ns, parent, number)
    if best is None:
        return None
    _, parent, number = best
    after = lines[parent].calls[number + 1 :]
    return Spawn(parent, number, joins=bool(after) and after[0].start_ns >= end_ns)
