"""Recorded journals of Bedplate: the turns that really came, as a workload.

Every line of a session (`core` calls it a branch) becomes a session: the first one a root, a fork
one that was spawned by the turn that had ended last before it. A gap runs from the end of the turn
before, on the same line, to the arrival. What a turn kept is the prefix that its engine recognised
(`reuse_tokens`); tokens of an answer are the engine's.

A fork begins with a context of its own here, so that the prefix it shares with its parent counts
as new tokens. Turns that never ran (refused, or cancelled while they waited) are left out, and so
are those whose end is not in the journal: how long their answers were is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bedplate.core import events as ev
from bedplate.core.codec import event_from
from bedplate.journal import Reader
from bedplate.journal.storage import DATABASE_FILE
from bedplate.twin.workload import branches
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.source import Family, Format, Options, assemble, bad


class _Run(NamedTuple):
    """A turn that ran: when it came and ended, and with what."""

    arrival_ns: int
    arrived: ev.TurnArrived
    end_ns: int
    ended: ev.TurnEnded


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Read the journal in one folder, up to its newest record."""
    (place,) = paths
    folder = place if place.is_dir() else place.parent
    arrivals: dict[str, tuple[int, ev.TurnArrived]] = {}
    ends: dict[str, tuple[int, ev.TurnEnded]] = {}
    with Reader(folder) as reader:
        for record in reader.read(kinds=("TurnArrived", "TurnEnded")):
            try:
                event = event_from(record.kind, record.body)
            except ValueError as error:
                raise bad(folder, 0, f"record {record.seq} cannot be read: {error}") from error
            if isinstance(event, ev.TurnArrived):
                arrivals[event.turn] = (record.time_ns, event)
            elif isinstance(event, ev.TurnEnded):
                ends[event.turn] = (record.time_ns, event)  # of the newest attempt
    runs: dict[str, list[_Run]] = {}
    for turn, (arrival_ns, arrived) in arrivals.items():
        end_ns, ended = ends.get(turn, (0, None))
        if ended is not None and ended.out_tokens and ended.prompt_tokens:
            run = _Run(arrival_ns, arrived, end_ns, ended)
            runs.setdefault(arrived.session, []).append(run)
    left_out = len(arrivals) - sum(map(len, runs.values()))
    families: list[Family] = []
    for session, turns in runs.items():
        turns.sort(key=lambda run: (run.arrival_ns, run.arrived.branch))
        first = turns[0].arrived
        families += branches.families(_lines(session, turns), tenant=first.tenant, lane=first.lane)
    source = (
        f"journal of Bedplate, {len(runs)} sessions; {left_out} turns without an answer left out"
    )
    return assemble("journal", source, families)


def _lines(session: str, turns: Sequence[_Run]) -> list[branches.Line]:
    """Return the lines of one session."""
    calls: dict[int, list[branches.Call]] = {}
    tool: dict[int, str] = {}
    for run in turns:
        arrived, ended = run.arrived, run.ended
        line = calls.setdefault(arrived.branch, [])
        # The engine counted both; a line's first turn here has nothing before it to keep.
        keep = min(arrived.reuse_tokens, ended.prompt_tokens - 1) if line else 0
        line.append(
            branches.Call(
                run.arrival_ns,
                run.end_ns,
                tool.get(arrived.branch, ""),
                keep if line else -1,
                ended.prompt_tokens - keep,
                ended.out_tokens,
                arrived.limit_tokens,
            )
        )
        tool[arrived.branch] = ended.tool
    return [
        branches.Line(session if branch == 0 else f"{session}/{branch}", "journal", line)
        for branch, line in sorted(calls.items())
    ]


FORMAT = Format(
    "journal",
    f"the folder of a journal ({DATABASE_FILE}), or the data folder above it",
    lambda head: head.startswith("SQLite format 3"),
    read,
    starts=True,
)
