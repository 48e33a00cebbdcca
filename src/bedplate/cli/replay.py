"""Recompute every decision of a journal and compare it with what was done.

A service may be running on the same data folder: only committed records are read. The exit status
is 0 when every digest and every usage row comes out again, and 1 when not.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bedplate.cli.options import ConfigOption, DataDirOption, JsonOption
from bedplate.cli.output import print_json, print_notice, print_text, progress
from bedplate.config import load
from bedplate.core.codec import EVENT_TYPES
from bedplate.errors import InvalidRequest
from bedplate.journal import Journal, Reader, Record
from bedplate.replay import ReplayReport
from bedplate.replay import replay as recompute

app = typer.Typer()

SnapshotOption = Annotated[
    bool, typer.Option("--from-snapshot", help="Begin at the newest snapshot, not at the start.")
]
SkipOption = Annotated[
    int | None,
    typer.Option(
        "--skip",
        metavar="SEQ",
        help="Leave this record out from now on, because it halts the core; replays nothing.",
    ),
]


@app.command()
def replay(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    *,
    from_snapshot: SnapshotOption = False,
    skip: SkipOption = None,
    json: JsonOption = False,
) -> None:
    """Recompute every decision of a journal and compare it with what was done."""
    loaded = load(config, secrets=False)
    folder = loaded.journal_dir if data_dir is None else data_dir / "journal"
    if skip is not None:
        seq = _quarantine(folder, skip)
        if json:
            print_json({"skipped": skip, "record": seq})
        else:
            print_text(f"record {skip} is left out from now on, by record {seq} of {folder}")
        return
    with Reader(folder) as reader, progress("Replaying records", reader.size) as advance:
        report = recompute(reader, from_start=not from_snapshot, progress=advance)
    if from_snapshot and not report.start_seq:
        print_notice("There is no snapshot yet: replayed from the first record.")
    if json:
        print_json({**asdict(report), "same": report.same})
    else:
        _print(report, folder)
    if not report.same:
        raise typer.Exit(1)


def _quarantine(folder: Path, seq: int) -> int:
    """Append the note that recovery and replay leave an event out; return the note's number."""
    with Reader(folder) as reader:
        origin = reader.origin
        found = next(reader.read(seq), None) if 0 <= seq < reader.size else None
    if found is None or found.kind not in EVENT_TYPES:
        raise InvalidRequest(f"record {seq} of {folder} is no event; only an event can be left out")
    with Journal.open(folder, origin=origin) as journal:
        number = journal.next_seq
        note = Record(number, journal.last_time_ns, "skipped", "", "", {"seq": seq})
        journal.append([note])
    return number


def _print(report: ReplayReport, folder: Path) -> None:
    rate = report.events / report.wall_seconds if report.wall_seconds > 0 else 0.0
    print_text(f"journal         {folder}")
    print_text(f"replayed        {report.events} events of {report.records} records")
    print_text(f"took            {report.wall_seconds:.2f} s, {rate:,.0f} events/s")
    print_text(f"core            {report.core}")
    print_text(f"digest live     {report.digest_live or 'none noted'}")
    print_text(f"digest replay   {report.digest_replay or 'none noted'}")
    print_text(f"digests         {report.digests} compared")
    print_text(f"usage rows      {report.rows} compared")
    if report.skipped:
        print_text(f"left out        records {', '.join(map(str, report.skipped))}")
    if report.start_seq:
        print_text(f"began           at record {report.start_seq}, after a snapshot")
    if report.halted_at is not None:
        print_notice(report.halt)
    if report.first_divergence is not None:
        print_notice(f"record {report.first_divergence} names another digest than the replay has")
    if report.row_mismatches:
        listed = ", ".join(map(str, report.row_mismatches))
        print_notice(f"usage rows differ or are missing at records {listed}")
    print_text("every decision came out the same" if report.same else "the replay differs")
