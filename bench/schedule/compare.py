"""Plays of one load by one subject after the other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from bedplate.twin.workload.form import Workload
from bench.harness.run import Run
from bench.schedule.measure import Outcome, outcome
from bench.schedule.play import Played, Player
from bench.schedule.speed import Bounds
from bench.schedule.subjects import Subject

SLO_FACTOR = 2.0
"""What the SLO classes are stretched by: a card of one core is slow by nature."""
PLAY_SECONDS = 300.0
"""Longest play; what has not ended then is lost."""


def new_folder(within: Path, name: str) -> Path:
    """Make a folder for one of several plays of a subject, whatever its name and settings."""
    plain = re.sub("[ :/]", "-", name)
    count = sum(path.name.startswith(plain) for path in within.iterdir())
    folder = within / f"{plain}-{count}"
    folder.mkdir()
    return folder


def play(
    run: Run,
    subject: Subject,
    workload: Workload,
    label: str,
    *,
    slo_factor: float = SLO_FACTOR,
    until: Collection[str] = (),
) -> tuple[list[Played], Outcome]:
    """Serve one load by one subject, from nothing; `until` as in `Player.play`."""
    folder = new_folder(run.scratch, f"{subject.name}-{label}")
    lanes = {session.tenant: session.lane for session in workload.sessions}
    with subject.running(run, folder, lanes) as endpoint:
        rows = asyncio.run(Player(endpoint, workload, label).play(PLAY_SECONDS, until=until))
    found = outcome(workload, rows, slo_factor)
    errors = [row.error for row in rows if row.error]
    run.say(
        f"{subject.name}: goodput {found.goodput:.3f} ({found.good}/{found.offered}), "
        f"median session {found.session_median:.1f} s, {found.seconds:.0f} s in all"
        + (f", {found.lost} lost: {errors[0][:150]}" if errors else "")
    )
    return rows, found


HEAD = (
    "subject",
    "goodput",
    "good",
    "seconds",
    "session p50",
    "session p95",
    "TTFT p50",
    "TTFT p95",
    "TPOT p95",
    "lost",
    "retries",
    "cached",
)


def table(found: Mapping[str, Outcome], least: Bounds) -> list[str]:
    """Return the lines of a table of outcomes, the bounds in the last."""
    rows: list[tuple[str, ...]] = [HEAD]
    for name, row in found.items():
        rows.append(
            (
                name,
                f"{row.goodput:.3f}",
                f"{row.good}/{row.offered}",
                f"{row.seconds:.0f}",
                f"{row.session_median:.1f}",
                f"{row.session_p95:.1f}",
                f"{row.ttft_p50:.2f}",
                f"{row.ttft_p95:.2f}",
                f"{row.tpot_p95:.3f}",
                str(row.lost),
                str(row.retries),
                f"{row.cached_share:.2f}",
            )
        )
    times = (f"{least.session_median:.1f}", f"{least.session_p95:.1f}")
    bound = ("bound", f"{least.goodput:.3f}", "", "", *times)
    rows.append((*bound, *[""] * (len(HEAD) - len(bound))))
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
