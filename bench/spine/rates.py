"""Events a second of the core, records a second of the journal: the two micro benches as claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.harness.claims import Measured, Spec
from bench.harness.run import Part, Run
from bench.micro import core, journal


def measure_core(run: Run) -> Mapping[str, Measured]:
    """Time `Base.handle` on a recorded load, on a restored core, digest compared each time."""
    events, runs = (20_000, 1) if run.quick else (150_000, 5)
    run.say(f"core: {runs} replays of {events:,} events at 384 cards and 20,000 sessions")
    found = core.measure(384, 20_000, events=events, runs=runs, seed=run.seeds[0])
    run.rounds["core"] = found
    run.figure(
        "core events/s, repeats",
        f"{found['events_per_second_min']:,} to {found['events_per_second_max']:,}",
    )
    mix = ", ".join(f"{kind} {share / 10:.1f} %" for kind, share in found["mix_permille"].items())
    run.figure("core, mix of events", mix)
    value = Measured(found["events_per_second"], found["runs"], "CPU time of one core")
    return {"core_events": value}


def measure_journal(run: Run) -> Mapping[str, Measured]:
    """Append durably in groups and verify, beside bare SQLite in the same run."""
    records, rounds = (100_000, 1) if run.quick else (200_000, 5)
    run.say(f"journal: {rounds} rounds of {records:,} records")
    found: dict[str, Any] = journal.measure(records=records, rounds=rounds, folder=run.scratch)
    run.rounds["journal"] = found
    run.figure("journal bytes/record", f"{found['bytes_per_record']}")
    rate = {
        name: found[f"{name}_records_per_second"]["median"]
        for name in ("append", "bare_append", "verify", "verify_one_core", "bare_verify")
    }
    return {
        "journal_append": Measured(
            rate["append"], rounds, f"bare SQLite: {rate['bare_append']:,} records/s"
        ),
        "journal_verify": Measured(
            rate["verify"],
            rounds,
            f"on one core: {rate['verify_one_core']:,} records/s; "
            f"bare SQLite there: {rate['bare_verify']:,} records/s",
        ),
    }


CORE = Part(
    "core",
    (
        Spec(
            "core_events",
            "events/s",
            ">= 30000",
            "what one core handles, digest included, at 384 cards and 20,000 sessions",
        ),
    ),
    measure_core,
)
JOURNAL = Part(
    "journal",
    (
        Spec(
            "journal_append",
            "records/s",
            ">= 50000",
            "records appended in groups of 500, each group durable before the next",
        ),
        Spec(
            "journal_verify",
            "records/s",
            ">= 250000",
            "records whose hashes, tree and signed checkpoints are checked, on two cores",
        ),
    ),
    measure_journal,
)
