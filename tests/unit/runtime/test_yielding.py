"""A running turn makes way for one of a higher lane and goes on in the same stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bedplate.core.ids import TurnId
from bedplate.core.limits import BATCH, INTERACTIVE
from bedplate.engines.base import Started
from bedplate.metering.check import reconcile
from bedplate.runtime.service import Service
from tests.fakes.calls import at_rest, call, end_of, read_all, settle, text_of
from tests.fakes.scripted_engine import Script, ScriptedEngine
from tests.unit.runtime.conftest import Start

LIMIT = 64


def one_place() -> ScriptedEngine:
    engine = ScriptedEngine(cards=1)
    engine.running_max = 1
    return engine


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 (the engine tells nobody that it has begun)
            await asyncio.sleep(0.001)


async def rows(service: Service) -> dict[str, dict[str, int]]:
    await settle(service)
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    assert reconcile(service.journal.read()).issues == ()
    return {row.body["turn"]: row.body for row in service.journal.read(kinds=("usage",))}


async def test_it_goes_on_behind_what_was_delivered_and_pays_for_its_prompt_once(
    start: Start,
) -> None:
    engine = one_place()
    engine.scripts[TurnId("batch")] = [
        Script(pieces=("one ", "lost "), gate=asyncio.Event()),
        Script(pieces=("two ", "lost"), gate=asyncio.Event()),
        Script(pieces=("three",)),
    ]
    service = await start(engine)
    batch = service.submit(call("batch", session="b", lane=BATCH, limit=LIMIT))
    seen = list(await anext(batch))
    for number, piece in enumerate(("one ", "two ")):
        while piece not in text_of(seen):
            seen += await anext(batch)
        now = service.submit(call(f"now-{number}", session=f"n{number}", lane=INTERACTIVE))
        assert text_of(await read_all(now)) == "abc"
    seen += await read_all(batch)
    assert text_of(seen) == "one two three"
    assert [type(o) for o in seen].count(Started) == 1
    end = end_of(seen)
    assert (end.prompt_tokens, end.cached_tokens, end.out_tokens) == (100, 0, 3)
    mine = [run for run in engine.runs if run.turn == "batch"]
    assert [(run.resume_tokens, run.delivered) for run in mine] == [
        (0, ""),
        (1, "one "),
        (2, "one two "),
    ]
    assert [run.prompted_before for run in mine] == [False, True, True]
    assert [run.expect_cached_tokens for run in mine] == [0, 99, 99]
    row = (await rows(service))["batch"]
    assert (row["prompt_tokens"], row["cached_tokens"], row["out_tokens"]) == (100, 0, 3)
    assert row["attempts"] == 3
    at_rest(service)


async def test_a_prompt_is_taken_back_though_the_answer_could_not_go_on(start: Start) -> None:
    engine = one_place()
    gate = asyncio.Event()
    engine.scripts[TurnId("batch")] = [Script(before=gate), Script(pieces=("all",))]
    service = await start(engine)
    batch = service.submit(call("batch", session="b", lane=BATCH, limit=LIMIT, resumable=False))
    await until(lambda: bool(engine.active))
    now = service.submit(call("now", session="n", lane=INTERACTIVE))
    assert text_of(await read_all(now)) == "abc"
    assert text_of(await read_all(batch)) == "all"
    row = (await rows(service))["batch"]
    assert (row["prompt_tokens"], row["out_tokens"], row["attempts"]) == (100, 1, 2)
    assert [run.prompted_before for run in engine.runs if run.turn == "batch"] == [False, False]
    at_rest(service)


async def test_an_engine_that_does_not_stop_keeps_its_slot_until_it_does(start: Start) -> None:
    engine = one_place()
    stuck = asyncio.Event()
    engine.scripts[TurnId("batch")] = [
        Script(pieces=("one ", "lost"), gate=asyncio.Event(), ignore_cancel=stuck),
        Script(pieces=("two",)),
    ]
    service = await start(engine)
    batch = service.submit(call("batch", session="b", lane=BATCH, limit=LIMIT))
    seen = list(await anext(batch))
    while "one " not in text_of(seen):
        seen += await anext(batch)
    now = service.submit(call("now", session="n", lane=INTERACTIVE))
    await asyncio.sleep(1.0)
    stuck.set()
    assert text_of(await read_all(now)) == "abc"
    seen += await read_all(batch)
    assert text_of(seen) == "one two"
    row = (await rows(service))["batch"]
    assert (row["prompt_tokens"], row["out_tokens"], row["attempts"]) == (100, 2, 2)
    at_rest(service)
