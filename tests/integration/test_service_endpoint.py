"""The service in front of an endpoint over HTTP: what it stops, holds back and tells (F09, F16)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bedplate.config import load
from bedplate.core import invariants
from bedplate.engines.base import Delta, Finished, Output
from bedplate.errors import BedplateError, EngineError
from bedplate.journal import Reader
from bedplate.runtime.build import build_service
from bedplate.runtime.service import Service
from bedplate.runtime.turns import TurnStream
from tests.fakes.calls import settle
from tests.fakes.openai_engine import Behaviour, FakeEngine
from tests.integration.service_process import submit


class World:
    def __init__(self, service: Service, engine: FakeEngine) -> None:
        self.service = service
        self.engine = engine

    async def turn(self, name: str, session: str = "s", **more: Any) -> TurnStream:
        question = {"role": "user", "content": f"What of {name}?"}
        order = {"turn": name, "session": session, "messages": [question], "limit": 100}
        return await submit(self.service, {**order, **more})

    async def rows(self) -> dict[str, dict[str, Any]]:
        await self.service.committed(self.service.note("client_error", "", "", {"code": "x"}))
        with Reader(self.service.journal.folder) as reader:
            return {r.body["turn"]: r.body for r in reader.read(kinds=("usage",))}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    engine = FakeEngine(Behaviour(chunks=3))
    url = await engine.start()
    file = tmp_path / "bedplate.toml"
    file.write_text(
        f'[service]\ndata_dir = "{tmp_path / "data"}"\n[pool]\nenabled = false\n'
        f'[[engine]]\nkind = "openai"\nname = "up"\nmodel = "fake"\nurl = "{url}"\n'
        "slots = 2\nrunning_max = 1\n"
    )
    service = build_service(load(file))
    await service.start()
    yield World(service, engine)
    await service.stop()
    await engine.stop()


async def collect(stream: TurnStream) -> tuple[list[Output], BedplateError | None]:
    seen: list[Output] = []
    try:
        async for outputs in stream:
            seen += outputs
    except BedplateError as error:
        return seen, error
    return seen, None


@pytest.mark.parametrize("place", ["before the first byte", "in the stream", "queued"])
async def test_a_client_that_leaves_stops_the_endpoint_within_a_second(
    world: World, place: str
) -> None:
    slow = Behaviour(chunks=1000, chunk_delay_s=0.02)
    world.engine.default = Behaviour(hang=True) if place == "before the first byte" else slow
    first = await world.turn("first")
    while not world.engine.log:  # noqa: ASYNC110 (another thread of events decides)
        await asyncio.sleep(0.005)
    if place == "in the stream":
        await anext(first)
        await anext(first)
    victim = await world.turn("second", "other") if place == "queued" else first
    victim.cancel("client_cancelled")
    if place == "queued":
        assert len(world.engine.log) == 1, "it never reaches the endpoint"
        first.cancel("client_cancelled")
    async with asyncio.timeout(1):
        while world.engine.log[0].aborted_s is None:  # noqa: ASYNC110 (another thread of events decides)
            await asyncio.sleep(0.005)
    await settle(world.service)
    invariants.check(world.service.base)
    rows = await world.rows()
    assert rows["first"]["status"] == "cancelled"
    assert len(world.engine.log) == 1
    if place == "in the stream":
        assert rows["first"]["out_tokens"] >= 1
    world.engine.default = Behaviour(chunks=3)
    seen, error = await collect(await world.turn("next"))
    assert error is None
    assert isinstance(seen[-1], Finished)


@pytest.mark.parametrize("after", [-1, 0, 10])
async def test_an_endpoint_that_dies_is_never_a_fabricated_success(
    world: World, after: int
) -> None:
    world.engine.default = Behaviour(chunks=30, die_after=after)
    seen, error = await collect(await world.turn("first"))
    assert isinstance(error, EngineError)
    assert error.http_status == 502
    assert not any(isinstance(output, Finished) for output in seen)
    said = [output.content for output in seen if isinstance(output, Delta) and output.content]
    assert len(said) <= max(after, 0)
    await settle(world.service)
    rows = await world.rows()
    assert rows["first"]["status"] == "error"
    assert rows["first"]["out_tokens"] == len(said)


async def test_a_reader_that_stops_holds_the_endpoint_back(world: World) -> None:
    world.engine.default = Behaviour(chunks=60_000)
    stream = await world.turn("first", limit=30_000)
    seen = list(await anext(stream))
    await asyncio.sleep(0.3)
    assert world.service.stats().turns_running == 1, "the engine is still held"
    more, error = await collect(stream)
    assert error is None
    pieces = [o for o in seen + more if isinstance(o, Delta) and o.content]
    assert len(pieces) == 30_000


async def test_a_count_that_cannot_be_is_not_billed(world: World) -> None:
    usage = {"prompt_tokens": 60_000_000, "completion_tokens": 50_000_000}
    choice = {"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}
    event = json.dumps({"choices": [choice], "usage": usage})
    world.engine.script(Behaviour(events=(event,)))
    _, error = await collect(await world.turn("q"))
    assert error is None
    row = (await world.rows())["q"]
    assert row["prompt_tokens"] < 3_000
    assert row["out_tokens"] == 100, "the limit in force"
    assert not row["exact"]
