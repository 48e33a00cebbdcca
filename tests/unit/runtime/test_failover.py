"""A turn whose card fails: tried elsewhere, resumed, or ended with an explicit error (F16)."""

from __future__ import annotations

import asyncio

import pytest

from bedplate.core.events import CardDraining
from bedplate.core.ids import CardId, TurnId
from bedplate.engines.base import Output, Started
from bedplate.errors import CapacityError, EngineLost
from bedplate.metering.check import reconcile
from tests.fakes.calls import at_rest, call, end_of, read_all, settle, text_of
from tests.fakes.scripted_engine import Script, ScriptedEngine
from tests.unit.runtime.conftest import Start


async def test_a_lost_engine_is_replaced_and_nothing_is_sent_twice(start: Start) -> None:
    engine = ScriptedEngine(cards=2)
    engine.scripts[TurnId("t1")] = [
        Script(pieces=("one ", "two "), error=EngineLost("gone")),
        Script(pieces=("three",)),
    ]
    service = await start(engine)
    outputs = await read_all(service.submit(call("t1")))
    assert text_of(outputs) == "one two three"
    assert [type(o) for o in outputs].count(Started) == 1
    assert [(r.resume_tokens, r.delivered) for r in engine.runs] == [(0, ""), (2, "one two ")]
    assert end_of(outputs).message["content"] == "one two three"
    await settle(service)
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    (row,) = list(service.journal.read(kinds=("usage",)))
    assert (row.body["prompt_tokens"], row.body["out_tokens"]) == (100, 3)
    assert row.body["attempts"] == 2
    assert reconcile(service.journal.read()).issues == ()
    at_rest(service)


async def test_a_card_without_room_is_passed_over_and_its_words_reach_the_client(
    start: Start,
) -> None:
    engine = ScriptedEngine(cards=2)
    full = Script(pieces=(), error=CapacityError("engine m is busy", retry_after_s=7.0))
    engine.scripts[TurnId("t1")] = [full]
    engine.scripts[TurnId("t2")] = [full, full]
    service = await start(engine)
    assert text_of(await read_all(service.submit(call("t1", session="a")))) == "abc"
    with pytest.raises(CapacityError, match="engine m is busy") as caught:
        await read_all(service.submit(call("t2", session="b")))
    assert (caught.value.http_status, caught.value.retry_after_s) == (429, 7.0)
    for turn in ("t1", "t2"):
        assert len({run.card for run in engine.runs if run.turn == turn}) == 2
    assert len(engine.runs) == 4
    await settle(service)
    at_rest(service)


async def test_a_turn_that_cannot_resume_ends_with_an_explicit_error(start: Start) -> None:
    engine = ScriptedEngine(cards=2, resumable=False)
    engine.scripts[TurnId("t1")] = [Script(pieces=("one ",), error=EngineLost("gone"))]
    service = await start(engine)
    stream = service.submit(call("t1", resumable=False))
    seen: list[Output] = []
    with pytest.raises(EngineLost):  # noqa: PT012 (what came before the error matters too)
        async for outputs in stream:
            seen += outputs
    assert text_of(seen) == "one "
    assert len(engine.runs) == 1
    await settle(service)
    at_rest(service)


async def test_a_card_that_goes_down_mid_answer_hands_over_what_was_delivered(start: Start) -> None:
    engine = ScriptedEngine(cards=2)
    engine.scripts[TurnId("t1")] = [
        Script(pieces=("one ", "lost"), gate=asyncio.Event()),
        Script(pieces=("two",)),
    ]
    service = await start(engine)
    stream = service.submit(call("t1"))
    seen = list(await anext(stream))
    while "one " not in text_of(seen):
        seen += await anext(stream)
    engine.down(engine.runs[0].card)
    seen += await read_all(stream)
    assert text_of(seen) == "one two"
    assert engine.runs[1].resume_tokens == 1
    await settle(service)
    at_rest(service)


async def test_engines_can_ask_which_cards_are_taken_out(start: Start) -> None:
    engine = ScriptedEngine(cards=2)
    service = await start(engine)
    out, other = engine.cards
    assert not engine.is_out(out)
    service.post(CardDraining(out, True))
    assert engine.is_out(out)
    assert not engine.is_out(other)
    assert not engine.is_out(CardId("never up"))
    service.post(CardDraining(out, False))
    assert not engine.is_out(out)
