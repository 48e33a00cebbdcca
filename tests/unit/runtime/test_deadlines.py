"""A client's own deadline ends its turn wherever it is; what was computed is paid for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bedplate.core.ids import TurnId
from bedplate.engines.base import Output
from bedplate.errors import DeadlineExceeded
from bedplate.runtime.turns import Call
from tests.fakes.calls import at_rest, call, read_all, settle, text_of
from tests.fakes.scripted_engine import Script, ScriptedEngine
from tests.unit.runtime.conftest import Start

SOON_S = 0.05


def within(made: Call, seconds: float = SOON_S) -> Call:
    return replace(made, due_at=asyncio.get_running_loop().time() + seconds)


async def test_a_turn_that_never_answers_ends_at_its_deadline(start: Start) -> None:
    engine = ScriptedEngine(cards=1)
    engine.default = Script(before=asyncio.Event())
    service = await start(engine)
    stream = service.submit(within(call("t1")))
    async with asyncio.timeout(5):
        with pytest.raises(DeadlineExceeded, match="X-Bedplate-Deadline-Seconds is over"):
            await read_all(stream)
    await settle(service)
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    (row,) = service.journal.read(kinds=("usage",))
    assert row.body["status"] == "cancelled", "it is the client's own doing, and paid for"
    (cancel,) = service.journal.read(kinds=("TurnCancelled",))
    assert cancel.body["reason"] == "deadline"
    at_rest(service)


async def test_what_was_delivered_before_the_deadline_stays(start: Start) -> None:
    engine = ScriptedEngine(cards=1)
    engine.scripts[TurnId("t1")] = [Script(pieces=("one ", "two"), gate=asyncio.Event())]
    service = await start(engine)
    seen: list[Output] = []
    with pytest.raises(DeadlineExceeded):  # noqa: PT012 (what came before the error matters too)
        async for outputs in service.submit(within(call("t1"))):
            seen += outputs
    assert text_of(seen) == "one "
    await settle(service)
    at_rest(service)


async def test_a_turn_that_waits_ends_at_its_deadline_and_costs_nothing(start: Start) -> None:
    engine = ScriptedEngine(cards=1)
    engine.running_max = 1
    gate = asyncio.Event()
    engine.scripts[TurnId("runs")] = [Script(gate=gate)]
    service = await start(engine)
    runs = service.submit(call("runs", session="a"))
    with pytest.raises(DeadlineExceeded):
        await read_all(service.submit(within(call("waits", session="b"))))
    gate.set()
    assert text_of(await read_all(runs)) == "abc"
    await settle(service)
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    rows = {row.body["turn"]: row.body for row in service.journal.read(kinds=("usage",))}
    assert (rows["waits"]["status"], rows["waits"]["prompt_tokens"]) == ("cancelled", 0)
    assert [run.turn for run in engine.runs] == ["runs"]


async def test_a_turn_that_ends_in_time_is_left_alone(start: Start) -> None:
    engine = ScriptedEngine(cards=1)
    service = await start(engine)
    assert text_of(await read_all(service.submit(within(call("t1"))))) == "abc"
    await asyncio.sleep(2 * SOON_S)
    assert not list(service.journal.read(kinds=("TurnCancelled",)))
