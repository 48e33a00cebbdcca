"""A client that reads slowly holds back its own turn, and answers for it."""

from __future__ import annotations

import asyncio

import pytest

from bedplate.config import Config
from bedplate.config.tree import ServiceConfig
from bedplate.core.ids import CardId
from bedplate.errors import DeadlineExceeded, EngineTimeout
from tests.fakes.calls import at_rest, call, read_all, settle, text_of
from tests.fakes.scripted_engine import Script, ScriptedEngine
from tests.unit.runtime.conftest import Start

SOON = ServiceConfig(run_base_seconds=0.2, run_token_seconds=1e-9)
"""No run may take longer than a fifth of a second."""


async def test_a_slow_reader_holds_its_engine_back(start: Start) -> None:
    engine = ScriptedEngine()
    engine.default = Script(pieces=("x",) * 2000)
    service = await start(engine)
    stream = service.submit(call(limit=3000))
    seen = list(await anext(stream))
    for _ in range(5000):
        await asyncio.sleep(0)
    assert stream.full
    assert service.stats().turns_running == 1
    seen += await read_all(stream)
    assert text_of(seen) == "x" * 2000
    await settle(service)
    at_rest(service)


async def test_a_slow_reader_pays_when_its_time_is_over(start: Start) -> None:
    """Its engine waited for it, so it is the client's doing, and no strike for the card."""
    engine = ScriptedEngine()
    engine.default = Script(pieces=("x",) * 2000)
    service = await start(engine, config=Config(service=SOON))
    stream = service.submit(call(limit=3000))
    seen = list(await anext(stream))
    await settle(service)
    with pytest.raises(DeadlineExceeded, match="its answer was read too slowly"):  # noqa: PT012
        async for outputs in stream:
            seen += outputs
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    (row,) = service.journal.read(kinds=("usage",))
    assert row.body["status"] == "cancelled"
    assert row.body["out_tokens"] == len(text_of(seen)) < 2000
    assert service.base.state.cards[CardId("m-0")].strikes == 0
    at_rest(service)


async def test_a_reader_that_was_slow_for_a_part_of_the_time_pays_too(start: Start) -> None:
    """Else a few such readers open the breaker of a slow card, and pay nothing."""
    engine = ScriptedEngine()
    gate = asyncio.Event()
    engine.default = Script(pieces=("x",) * 2000, gate=gate)
    service = await start(engine, config=Config(service=SOON))
    stream = service.submit(call(limit=3000))
    asyncio.get_running_loop().call_later(0.13, gate.set)
    await settle(service)
    with pytest.raises(DeadlineExceeded, match="its answer was read too slowly"):
        await read_all(stream)
    (row,) = service.journal.read(kinds=("usage",))
    assert row.body["status"] == "cancelled"
    assert row.body["out_tokens"] > 0
    assert service.base.state.cards[CardId("m-0")].strikes == 0


async def test_an_engine_that_stops_after_a_slow_reader_is_at_fault(start: Start) -> None:
    engine = ScriptedEngine()
    engine.default = Script(gate=asyncio.Event())
    service = await start(engine, config=Config(service=SOON))
    with pytest.raises(EngineTimeout):
        await read_all(service.submit(call()))
    assert service.base.state.cards[CardId("m-0")].strikes == 1
