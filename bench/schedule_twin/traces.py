"""Part `traces`: four traces on two sites, busy and full, under the core and every baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.harness.claims import Measured, Spec
from bench.harness.run import BenchError, Json, Part, Run
from bench.schedule_twin.cells import POLICIES, Answered, answer, cells, spread_out
from bench.schedule_twin.loads import Size
from bench.schedule_twin.sites import BOX, SUPERNODE

MOONCAKE, CLAUDE, LMCACHE, AZURE = (
    "mooncake-fast25",
    "claude-code-traces",
    "lmcache-agent-trace",
    "azure-llm-2023",
)
FULL = (
    (BOX, MOONCAKE, Size(3_000)),
    (BOX, CLAUDE, Size(120)),
    (BOX, LMCACHE, Size(800)),
    (BOX, AZURE, Size(10_000)),
    (SUPERNODE, MOONCAKE, Size(15_000)),
    (SUPERNODE, CLAUDE, Size(3_000, turns_max=12)),
    (SUPERNODE, LMCACHE, Size(12_000, turns_max=3)),
    (SUPERNODE, AZURE, Size(40_000)),
)
QUICK = (
    (BOX, MOONCAKE, Size(600)),
    (BOX, AZURE, Size(2_000)),
)


BUSY, FULL_SITE = 0.8, 1.0
"""Loads: goodput is claimed at the first, session time compared at both and claimed at the second.

At 0.8 most of a session is tools and decoding, which no schedule shortens.
"""


def measure(run: Run) -> Mapping[str, Measured]:
    """Run every cell, print a table a load, and compare."""
    places = QUICK if run.quick else FULL
    asked = cells(places, (BUSY, FULL_SITE), POLICIES, run.seeds[0])
    rows: dict[str, list[Answered]] = {}
    for done in spread_out(answer, asked):
        rows.setdefault(_name(done), []).append(done)
        run.say(f"{_name(done)}: {done.cell.policy}: {_text(done)}")
    table: list[Json] = []
    for name, answers in rows.items():
        for done in answers:
            run.figure(f"{name}: {done.cell.policy}", _text(done))
            table.append(_json(done))
    run.rounds["traces"] = table
    return compare(list(rows.values()))


def compare(rows: Sequence[Sequence[Answered]]) -> dict[str, Measured]:
    """Return the claims: each row is one load under all policies, the core first.

    Raises:
        BenchError: a session of the core's did not end.
    """
    shares: list[tuple[float, str]] = []
    ratios: list[tuple[float, str]] = []
    full: list[float] = []
    for ours, *others in rows:
        name = _name(ours)
        if ours.found.sessions_done < ours.found.sessions:
            lost = ours.found.sessions - ours.found.sessions_done
            raise BenchError(f"{name}: {lost} sessions of the core did not end: {ours.failures}")
        # A session that a baseline gave up has no time; only those that ended them all compare.
        whole = [each for each in others if each.found.sessions_done == each.found.sessions]
        if not whole:
            raise BenchError(f"{name}: every baseline lost sessions")
        best = min(whole, key=lambda each: each.found.session_s)
        ratio = ours.found.session_s / best.found.session_s
        ratios.append((ratio, f"{best.cell.policy} on {name}"))
        if ours.cell.share == BUSY:
            shares.append((ours.found.good / ours.limits.good, name))
        else:
            full.append(ratio)
    least, where = min(shares)
    worst, against = max(ratios)
    mean = math.exp(math.fsum(map(math.log, full)) / len(full))
    return {
        "goodput_vs_bound": Measured(least, len(shares), f"upper bound; least on {where}"),
        "session_time_vs_best_baseline": Measured(mean, len(full), "the best on each trace"),
        "session_time_vs_any_baseline": Measured(worst, len(ratios), against),
    }


def _name(done: Answered) -> str:
    return f"{done.cell.site} {done.cell.trace} at {done.cell.share:g}"


def _text(done: Answered) -> str:
    found, bounds = done.found, done.limits
    return (
        f"good {found.good / bounds.good:.3f} of bound, sessions {found.sessions_done:,} of "
        f"{found.sessions:,} in {found.session_s:,.1f} s (least {bounds.session_s:,.1f}), "
        f"TTFT P50 {found.ttft_p50_s:.2f} P99 {found.ttft_p99_s:.1f} s, "
        f"end {found.duration_s:,.0f} s (least {bounds.makespan_s:,.0f})"
    )


def _json(done: Answered) -> Json:
    return {
        "site": done.cell.site,
        "trace": done.cell.trace,
        "load": done.cell.share,
        "policy": done.cell.policy,
        "sessions_per_s": done.rate,
        **done.found._asdict(),
        "bound": dict(done.limits._asdict()),
        "failures": dict(done.failures),
    }


PART = Part(
    "traces",
    (
        Spec(
            "goodput_vs_bound",
            "ratio",
            ">= 0.92",
            "turns inside their limits at 0.8 load, as a share of the upper bound; worst load",
        ),
        Spec(
            "session_time_vs_best_baseline",
            "ratio",
            "<= 0.9",
            "mean session time at full load over the best baseline's on each trace; geometric mean",
        ),
        Spec(
            "session_time_vs_any_baseline",
            "ratio",
            "<= 1.02",
            "the same where it is worst, at full load and at 0.8",
        ),
    ),
    measure,
)
