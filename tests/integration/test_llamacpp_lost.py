"""A card that ends in the middle of a call: the call fails at once, whatever it is (F16).

Twice: on a real card, frozen so that the call is in flight and then killed; and on a server that
neither answers nor hangs up, since the end of the process may be known before its sockets' ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bedplate.core.events import CardDown, CardUp
from bedplate.core.ids import SlotId
from bedplate.engines.base import TurnRun
from bedplate.engines.llamacpp.client import CardClient
from bedplate.errors import EngineLost
from tests.fakes.card_engine import CardEngine, card, card_engine, lineage, user

AT_ONCE_S = 5.0
"""Generous: a busy machine; far below the 30 s that a call may take."""
GRAMMAR = {
    "type": "json_schema",
    "json_schema": {"schema": {"type": "array", "items": {"type": "string"}, "minItems": 500}},
}


async def chat(client: CardClient) -> None:
    async for _ in client.complete({"prompt": [1], "stream": True}):
        pass


CALLS: dict[str, Callable[[CardClient], Awaitable[object]]] = {
    "complete": chat,
    "tokenize": lambda client: client.tokenize(["x"], add_special=False),
    "save": lambda client: client.save(0, "x"),
    "restore": lambda client: client.restore(0, "x"),
    "erase": lambda client: client.erase(0),
    "embed": lambda client: client.embed(["x"]),
    "slots": lambda client: client.slots(),
    "counters": lambda client: client.counters(),
}
ANSWERS = {
    "nothing": b"",
    "its head": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "half a body": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n",
    "half a failure": b"HTTP/1.1 500 Oh\r\nContent-Length: 9\r\n\r\n{",
}


@asynccontextmanager
async def server_that_stops_after(answer: bytes) -> AsyncIterator[str]:
    """Yield the address of a server that sends this much of an answer and keeps the connection."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for writer in writers:
            writer.close()
        server.close()


async def lost_within(task: asyncio.Task[object], seconds: float) -> None:
    """Assert that a call fails with EngineLost in time."""
    began = time.monotonic()
    await asyncio.wait((task,), timeout=seconds)
    assert task.done(), f"still waits after {time.monotonic() - began:.1f} s"
    assert isinstance(task.exception(), EngineLost)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("call", CALLS)
async def test_no_call_outlives_its_card(call: str, answer: str) -> None:
    async with server_that_stops_after(ANSWERS[answer]) as address:
        client = CardClient("c", address, "secret")
        task = asyncio.ensure_future(CALLS[call](client))
        await asyncio.sleep(0.05)
        assert not task.done()
        client.fail_calls()
        await lost_within(task, 1.0)
        with pytest.raises(EngineLost):
            await CALLS[call](client)
        await client.close()
        with pytest.raises(EngineLost):
            await CALLS[call](client)


async def test_a_stream_whose_reader_is_busy_ends_too() -> None:
    """The card is lost between two reads; what had come is given, then the end."""
    event = b'data: {"n": 1}\n'
    answer = ANSWERS["its head"] + b"%x\r\n%s\r\n" % (len(event), event)
    async with server_that_stops_after(answer) as address:
        client = CardClient("c", address, "secret")
        events = client.complete({})
        assert await anext(events) == [{"n": 1}]
        await client.close()
        began = time.monotonic()
        with pytest.raises(EngineLost):
            await anext(events)
        assert time.monotonic() - began < 1.0


async def streamed(world: CardEngine, turn: TurnRun) -> None:
    async for _ in world.engine.run(turn):
        pass


async def given_up(world: CardEngine, turn: TurnRun) -> None:
    """Run a turn, freeze its card and leave: the run then waits for its slot to be free."""
    run = world.engine.run(turn)
    await anext(run)
    freeze(world)
    await run.aclose()  # type: ignore[attr-defined]
    raise EngineLost("a run that is given up raises nothing; it only has to end")


FROZEN: dict[str, Callable[[CardEngine, TurnRun], Awaitable[object]]] = {
    "store": lambda world, turn: world.store(lineage("s"), 2),
    "load": lambda world, turn: world.load(lineage("s"), 1, slot=2),
    "drop": lambda world, turn: world.engine.drop_kv(card(0), SlotId(0)),
    "prepare": lambda world, turn: world.engine.prepare(turn.request, lineage("new")),
    "measure": lambda world, turn: world.engine.fleet.measure(world.engine.fleet.cards[card(0)]),
    "run": streamed,
}


def freeze(world: CardEngine) -> None:
    """Stop the card's process where it is: what is sent to it waits."""
    pid = world.engine.fleet.cards[card(0)].pid
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 5.0
    while any(") T " not in path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")):
        # Its threads stop one after the other, as each is scheduled.
        assert time.monotonic() < deadline


async def long_turn(world: CardEngine) -> TurnRun:
    """Return a turn with a grammar that runs for long."""
    return await world.turn_of(
        [user("give json")], lineage("t"), slot=1, limit=8000, response_format=GRAMMAR
    )


async def killed_in_the_middle(world: CardEngine, task: asyncio.Task[object]) -> None:
    await asyncio.sleep(0.1)
    assert not task.done()
    world.engine.fleet.cards[card(0)].kill()
    await world.wait_for(CardDown, within_s=1.0)
    await lost_within(task, AT_ONCE_S)


@pytest.mark.parametrize("call", FROZEN)
async def test_a_killed_card_fails_what_is_in_flight(
    tiny_model: Path, tmp_path: Path, call: str
) -> None:
    async with card_engine(tiny_model, tmp_path, cards=1, heartbeat_seconds=1.0) as world:
        await world.chat([user("account 9")], lineage("s"))
        await world.store(lineage("s"), 1)
        turn = await long_turn(world)
        freeze(world)
        task = asyncio.ensure_future(FROZEN[call](world, turn))
        await killed_in_the_middle(world, task)


async def test_a_killed_card_ends_the_wait_for_its_slot(tiny_model: Path, tmp_path: Path) -> None:
    async with card_engine(tiny_model, tmp_path, cards=1, heartbeat_seconds=1.0) as world:
        task: asyncio.Task[object] = asyncio.ensure_future(given_up(world, await long_turn(world)))
        await asyncio.sleep(1.0)
        await killed_in_the_middle(world, task)


async def test_a_constrained_stream_ends_when_its_card_is_killed(
    tiny_model: Path, tmp_path: Path
) -> None:
    """What a client sees: tokens, then the loss, at any moment of the stream."""
    async with card_engine(tiny_model, tmp_path, cards=1) as world:
        for lost in range(1, 4):
            turn = await long_turn(world)
            task: asyncio.Task[object] = asyncio.ensure_future(streamed(world, turn))
            await asyncio.sleep(0.2 * lost)
            assert not task.done()
            world.engine.fleet.cards[card(0)].kill()
            await lost_within(task, AT_ONCE_S)
            await world.wait_for(CardUp, lost + 1)
