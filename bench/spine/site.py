"""The set-up of the gateway's figures: one core for what is measured, one for engine and load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from bedplate.journal.reader import Reader
from bedplate.metering.check import CHECK_KINDS, reconcile
from bench.harness.processes import Process, ask, cores
from bench.harness.run import BenchError, Json, Run
from bench.load.drive import Job, Outcome
from bench.load.workload import CHUNKS, MODEL
from bench.subjects.base import Site, Target

SLACK_SECONDS = 60.0


@contextmanager
def engine_site(run: Run, name: str) -> Iterator[Site]:
    """Start a subject's own fake engine: it is on the second core, the subject on the first.

    Its counters are then the subject's alone, as `bill --check` needs it.
    """
    measured, other = cores()
    folder = run.scratch / name.replace(" ", "-")
    folder.mkdir()
    command = [sys.executable, "-m", "tests.fakes.openai_engine", "--log-max", "1"]
    command += ["--chunks", str(CHUNKS), "--model", MODEL]
    with Process(command, core=other, log=folder / "engine.log") as engine:
        url = engine.await_json()["url"]
        assert isinstance(url, str)
        yield Site(url, measured, folder)


def drive(target: Target, **job: object) -> Outcome:
    """Run one job against a subject, on the second core.

    Raises:
        BenchError: any answer was not perfect.
    """
    fields: dict[str, object] = {"host": "127.0.0.1", "port": target.port, "keys": target.keys}
    made = Job(**{**fields, **job})  # type: ignore[arg-type]
    within_s = made.warm_s + made.measure_s + SLACK_SECONDS
    if made.sessions:
        within_s = SLACK_SECONDS + made.sessions * made.turns / 50
    answer = ask("bench.load", asdict(made), core=cores()[1], within_s=within_s)
    outcome = Outcome(**answer)  # type: ignore[arg-type]
    if outcome.faults:
        raise BenchError(f"{target.name}: {sum(outcome.faults.values())} faults: {outcome.faults}")
    return outcome


def check_books(data_dir: Path, asked: int) -> dict[str, Json]:
    """Reconcile the journal of a gateway that has stopped, as `bill --check` does.

    Raises:
        BenchError: tokens that nothing explains, or another number of turns than was asked.
    """
    with Reader(data_dir / "journal") as reader:
        report = reconcile(reader.read(kinds=CHECK_KINDS))
        kinds: dict[str, int] = {}
        for record in reader.read(kinds=("recognised",)):
            kind = str(record.body["kind"])
            kinds[kind] = kinds.get(kind, 0) + 1
        records = reader.size
    if report.unexplained_tokens or report.issues or report.turns != asked:
        raise BenchError(
            f"bill --check: {report.unexplained_tokens} tokens unexplained, "
            f"{report.turns} turns of {asked}, {report.issues[:3]}"
        )
    return {"turns": report.turns, "records": records, "placed": dict(kinds)}
