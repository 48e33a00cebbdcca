"""The load of the benches against the fake engine, over loopback."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.harness.processes import Process, ask, pinned
from bench.harness.run import BenchError
from bench.load.drive import Driver, Job
from bench.load.workload import CHUNKS
from tests.fakes.openai_engine import Behaviour, FakeEngine


@pytest.mark.parametrize("mode", ["closed", "open"])
async def test_a_job_runs_against_the_fake_engine(mode: str) -> None:
    engine = FakeEngine(Behaviour(chunks=CHUNKS))
    url = await engine.start()
    port = int(url.split(":")[2].split("/")[0])
    asked = Job(
        host="127.0.0.1", port=port, keys=["one", "two"], label="t", mode=mode, connections=2,
        turns=3, sessions=4 if mode == "closed" else 0, warm_s=0.0, measure_s=0.1, rate=100.0,
        arrivals="even",
    )  # fmt: skip
    try:
        outcome = await Driver(asked).run()
    finally:
        await engine.stop()
    assert not outcome.faults
    expected = 12 if mode == "closed" else 10
    assert outcome.asked == outcome.measured == len(outcome.first_ms) == expected
    assert all(0 < a <= b for a, b in zip(outcome.first_ms, outcome.last_ms, strict=True))
    keys = {seen.headers["authorization"] for seen in engine.chats()}
    assert keys == {"Bearer one", "Bearer two"}


async def test_faults_are_counted_and_never_measured() -> None:
    engine = FakeEngine(Behaviour(chunks=CHUNKS - 1))
    url = await engine.start()
    port = int(url.split(":")[2].split("/")[0])
    asked = Job(host="127.0.0.1", port=port, keys=["k"], label="t", connections=1, sessions=2)
    try:
        outcome = await Driver(asked).run()
    finally:
        await engine.stop()
    assert outcome.measured == 0
    assert sum(outcome.faults.values()) == outcome.asked == 2


def job_json(**fields: object) -> dict[str, object]:
    return {"host": "127.0.0.1", "port": 1, "keys": ["k"], "label": "t", **fields}


def test_a_process_is_pinned_and_this_one_is_not(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    program = "import json, os; print(json.dumps({'cores': list(os.sched_getaffinity(0))}))"
    command = [sys.executable, "-c", program]
    with Process(command, core=core, log=tmp_path / "log") as process:
        assert process.await_json() == {"cores": [core]}
    assert os.sched_getaffinity(0) == before


def test_a_process_that_ends_too_early_shows_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        Process(command, core=min(os.sched_getaffinity(0)), log=tmp_path / "log") as process,
        pytest.raises(BenchError, match="no such model"),
    ):
        process.await_ready("http://127.0.0.1:9/")


def test_a_load_that_reaches_nobody_is_an_error() -> None:
    core = min(os.sched_getaffinity(0))
    with pytest.raises(BenchError, match=r"bench\.load failed"):
        ask("bench.load", job_json(), core=core, within_s=20)  # type: ignore[arg-type]


def test_pinning_ends_with_an_error_too() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    with pytest.raises(IndexError), pinned(min(before)):
        seen[len(seen)] = os.sched_getaffinity(0)
    assert os.sched_getaffinity(0) == before
