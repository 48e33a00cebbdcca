"""A service killed in the middle of a turn bills it once (F18) and keeps its sessions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bedplate.config import load
from bedplate.core import invariants, view
from bedplate.core.ids import SessionId
from bedplate.engines.base import Finished
from bedplate.journal import Reader, verify
from bedplate.metering.check import reconcile
from bedplate.replay import replay
from bedplate.runtime.build import build_service
from tests.fakes.openai_engine import Behaviour, FakeEngine, ThreadedEngine
from tests.fakes.tiny_gguf import write
from tests.integration.service_process import submit

QUESTION = {"role": "user", "content": "Please review the monthly statement of account 12. " * 20}


class Victim:
    """The process; `say` orders a turn and waits for its answer, `kill` is kill -9."""

    def __init__(self, config: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.service_process", str(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, turn: str, session: str, *, wait: bool, limit: int, **extra: bool) -> Any:
        order = {
            "turn": turn,
            "session": session,
            "messages": [QUESTION],
            "limit": limit,
            "wait": wait,
            "extra": extra,
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        said = self.line()
        begin = f"{'done' if wait else 'begun'} {turn}"
        assert said.startswith(begin), said
        return json.loads(said.removeprefix(begin)) if wait else None

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


@pytest.fixture
def victims() -> Iterator[list[Victim]]:
    made: list[Victim] = []
    yield made
    for victim in made:
        if victim.process.poll() is None:
            victim.kill()


def write_config(folder: Path, engine: str) -> Path:
    file = folder / "bedplate.toml"
    file.write_text(
        f'[service]\ndata_dir = "{folder / "data"}"\n'
        f'[pool]\npath = "{folder / "pool"}"\nsize_bytes = "64MiB"\n'
        f"[[engine]]\n{engine}\n"
    )
    return file


def usage_rows(data: Path) -> dict[str, dict[str, Any]]:
    with Reader(data / "journal") as reader:
        rows = [record.body for record in reader.read(kinds=("usage",))]
    assert len({row["turn"] for row in rows if row["turn"]}) == len(
        [row for row in rows if row["turn"]]
    ), "one row a turn"
    return {row["turn"]: row for row in rows}


async def wait_stored(data: Path) -> None:
    """Return once the journal says that the first store ended."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with Reader(data / "journal") as reader:
            if reader.last("KvStored") is not None:
                return
        await asyncio.sleep(0.02)
    raise AssertionError("nothing was stored")


async def test_killed_with_embedded_cards(tmp_path: Path, victims: list[Victim]) -> None:
    model = write(tmp_path / "tiny.gguf")
    config = write_config(
        tmp_path,
        f'kind = "llamacpp"\nname = "emb"\nmodel = "tiny"\npath = "{model}"\n'
        "cards = 1\nslots = 4\nrunning_max = 1\nkv_tokens = 4096\norphan_seconds = 20.0\n",
    )
    victim = Victim(config)
    victims.append(victim)
    answer = victim.say("first", "kept", wait=True, limit=8)
    await wait_stored(tmp_path / "data")
    victim.say("second", "lost", wait=False, limit=3000, ignore_eos=True)
    victim.kill()
    verify(tmp_path / "data" / "journal")

    service = build_service(load(config))
    await service.start()
    try:
        invariants.check(service.base)
        rows = usage_rows(tmp_path / "data")
        assert {turn: row["status"] for turn, row in rows.items()} == {
            "first": "length",
            "second": "lost",
        }
        kept = view.session(service.base, SessionId("kept"))
        assert kept is not None
        assert kept.branches[0].pool_tokens > 0
        assert kept.branches[0].card == ""
        more = {"role": "user", "content": "And what follows from it?"}
        order = {"turn": "third", "session": "kept", "messages": [QUESTION, answer, more]}
        stream = await submit(service, {**order, "limit": 8})
        outputs = [output async for batch in stream for output in batch]
        assert isinstance(outputs[-1], Finished)
        assert outputs[-1].cached_tokens >= kept.branches[0].pool_tokens - 1
        with Reader(tmp_path / "data" / "journal") as reader:
            assert len(list(reader.read(kinds=("KvLoaded",)))) == 1
        await service.drain(10)
    finally:
        await service.stop()
    verify(tmp_path / "data" / "journal")
    rows = usage_rows(tmp_path / "data")
    assert sorted(rows) == ["first", "second", "third"]
    with Reader(tmp_path / "data" / "journal") as reader:
        report = replay(reader)
        bill = reconcile(reader.read())
    assert report.same
    assert report.digest_live == service.base.digest.hex()
    assert bill.issues == ()
    assert bill.unexplained_tokens == 0


async def test_killed_in_front_of_an_endpoint(tmp_path: Path, victims: list[Victim]) -> None:
    engine = FakeEngine(Behaviour(chunks=3))
    with ThreadedEngine(engine) as url:
        config = write_config(
            tmp_path, f'kind = "openai"\nname = "up"\nmodel = "fake"\nurl = "{url}"\n'
        )
        victim = Victim(config)
        victims.append(victim)
        for count in range(5):
            victim.say(f"good{count}", f"s{count}", wait=True, limit=8)
        engine.default = Behaviour(chunks=1000, chunk_delay_s=0.05)
        victim.say("long", "s9", wait=False, limit=2000)
        victim.kill()
        engine.default = Behaviour(chunks=3)
        service = build_service(load(config))
        await service.start()
        try:
            rows = usage_rows(tmp_path / "data")
            assert rows["long"]["status"] == "lost"
            assert len(rows) == 6
            order = {"turn": "next", "session": "s9", "messages": [QUESTION], "limit": 8}
            stream = await submit(service, order)
            outputs = [output async for batch in stream for output in batch]
            assert isinstance(outputs[-1], Finished)
            await service.drain(5)
        finally:
            await service.stop()
    rows = usage_rows(tmp_path / "data")
    assert rows["next"]["status"] == "stop"
    verify(tmp_path / "data" / "journal")
    with Reader(tmp_path / "data" / "journal") as reader:
        assert replay(reader).same
        assert reconcile(reader.read()).unexplained_tokens == 0
