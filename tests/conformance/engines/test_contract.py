"""The contract of the engine seam, the same for every engine."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from bedplate.core.ids import EntryId, SessionId, SlotId
from bedplate.engines.base import Delta, Finished, Started
from bedplate.errors import CapacityError, EngineError, InvalidRequest, PoolError
from tests.conformance.engines.cases import QUESTION, Case, hear

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look an account up.",
        "parameters": {
            "type": "object",
            "properties": {"account": {"type": "string"}},
            "required": ["account"],
        },
    },
}


async def test_start_brings_its_cards_up_with_what_it_can_do(case: Case) -> None:
    assert case.cards
    for card in case.cards:
        assert card.model == case.engine.model
        assert card.kv == case.engine.capabilities.kv
        assert 1 <= card.running_max <= card.slots
        assert 1 <= card.context_tokens <= card.kv_tokens


async def test_a_good_run_is_one_start_then_deltas_then_one_end(case: Case) -> None:
    heard = await hear(case.engine, await case.turn(case.request()))
    assert heard.error is None
    assert all(heard.sequences), "an empty sequence was yielded"
    outputs = heard.outputs
    assert isinstance(outputs[0], Started)
    assert isinstance(outputs[-1], Finished)
    assert len(outputs) >= 3
    assert all(isinstance(output, Delta) for output in outputs[1:-1])


async def test_the_deltas_put_together_are_the_message(case: Case) -> None:
    heard = await hear(case.engine, await case.turn(case.request()))
    message = heard.finished.message
    assert message["role"] == "assistant"
    assert heard.text == message["content"]


async def test_tokens_add_up(case: Case) -> None:
    turn = await case.turn(case.request(), limit_tokens=6)
    heard = await hear(case.engine, turn)
    end, (start,) = heard.finished, heard.started
    assert 1 <= heard.tokens <= end.out_tokens <= 6
    assert 0 <= start.cached_tokens <= start.prompt_tokens
    assert 0 <= end.cached_tokens <= end.prompt_tokens
    assert end.exact
    if turn.prompt.exact:
        assert end.prompt_tokens == turn.prompt.tokens
    assert end.prompt_tokens <= end.kv_tokens <= end.prompt_tokens + end.out_tokens


async def test_the_limit_ends_an_answer_with_length(case: Case) -> None:
    case.slowly()
    heard = await hear(case.engine, await case.turn(case.request(), limit_tokens=3))
    assert heard.finished.finish_reason == "length"
    assert heard.finished.out_tokens == 3


async def test_closing_in_the_middle_stops_the_run_and_frees_the_slot(case: Case) -> None:
    case.slowly()
    iterator = case.engine.run(await case.turn(case.request(), limit_tokens=500))
    first = await anext(iterator)
    assert isinstance(first[0], Started)
    async with asyncio.timeout(1):
        await iterator.aclose()  # type: ignore[attr-defined]
    again = await hear(case.engine, await case.turn(case.request(), case.lineage("other")))
    assert again.error is None


async def test_cancelling_the_wait_for_the_first_token_stops_the_run(case: Case) -> None:
    case.slowly()
    iterator = case.engine.run(await case.turn(case.request(), limit_tokens=500))
    task = asyncio.ensure_future(anext(iterator))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError):
            await task
        await iterator.aclose()  # type: ignore[attr-defined]
    again = await hear(case.engine, await case.turn(case.request(), case.lineage("other")))
    assert again.error is None


async def test_the_next_turn_reuses_what_the_branch_computed(case: Case) -> None:
    first = await case.turn(case.request())
    end = (await hear(case.engine, first)).finished
    assert first.prompt.reuse_tokens == 0
    more = case.request(QUESTION, end.message, {"role": "user", "content": "And the limit?"})
    prompt = await case.engine.prepare(more, case.lineage())
    assert end.prompt_tokens <= prompt.reuse_tokens <= end.kv_tokens
    assert prompt.reuse_tokens < prompt.tokens


async def test_a_fork_reuses_what_it_shares_with_its_parent(case: Case) -> None:
    long = {"role": "system", "content": "You review claims for a bank. " * 20}
    end = (await hear(case.engine, await case.turn(case.request(long, QUESTION)))).finished
    other = case.request(long, {"role": "user", "content": "Something else entirely."})
    fork = await case.engine.prepare(other, case.lineage(branch=1, fork_of=0))
    stranger = await case.engine.prepare(other, case.lineage(session="else"))
    assert 0 < fork.reuse_tokens < end.prompt_tokens
    assert stranger.reuse_tokens == 0


async def test_a_forgotten_session_reuses_nothing(case: Case) -> None:
    end = (await hear(case.engine, await case.turn(case.request()))).finished
    await case.engine.forget(SessionId("s"))
    more = case.request(QUESTION, end.message, {"role": "user", "content": "And the limit?"})
    prompt = await case.engine.prepare(more, case.lineage())
    assert prompt.reuse_tokens == 0


async def test_a_required_tool_is_called_in_one_shape(case: Case) -> None:
    if not case.engine.capabilities.tools:
        pytest.skip("this engine takes no tools")
    request = case.request(tools=(TOOL,), tool_choice="required")
    turn = await case.turn(request, limit_tokens=200)
    case.with_tools()
    heard = await hear(case.engine, turn)
    assert heard.error is None
    calls = heard.tool_calls()
    assert calls
    assert calls == heard.finished.message["tool_calls"]
    assert calls[0]["function"]["name"] == "look_up"
    if heard.finished.finish_reason == "tool_calls":
        assert isinstance(orjson.loads(calls[0]["function"]["arguments"])["account"], str)
    else:
        assert heard.finished.finish_reason == "length"


SAMPLING: dict[str, tuple[object, ...]] = {
    "temperature": (0.0, 0.7, 2.0),
    "top_p": (0.0, 0.5, 1.0),
    "presence_penalty": (-2.0, 1.0, 2.0),
    "frequency_penalty": (-2.0, 1.0, 2.0),
    "seed": (-(2**63), -1, 7, 2**63 - 1),
    "stop": (("zzz",), ("a" * 256, "b", "c", "d")),
    "logit_bias": ({"5": -100.0}, {"5": 100.0, "4294967": 1.0}),
}
"""Each sampling field that clients may send, at the ends of its range and between."""
BEYOND: dict[str, tuple[object, ...]] = {
    "top_k": (-1, 0, 3, 1 << 20),
    "min_p": (0.0, 0.5, 1.0),
    "typical_p": (0.0, 0.5, 1.0),
    "repeat_penalty": (0.5, 1.3, 100.0),
    "repeat_last_n": (-1, 0, 16, 1 << 16),
    "ignore_eos": (True, False),
}
"""The same of what an embedded engine takes beyond OpenAI's."""


async def test_every_sampling_field_is_taken_over_its_whole_range(case: Case) -> None:
    able = case.engine.capabilities
    wishes = [{name: value} for name, values in SAMPLING.items() for value in values]
    if able.logprobs:
        wishes += [{"logprobs": True, "top_logprobs": count} for count in (0, 1, 20)]
    assert able.passes_unknown or able.params <= set(BEYOND), "a new parameter, tried nowhere"
    for name in sorted(able.params):
        for value in BEYOND[name]:
            alone: dict[str, object] = {"extra": {name: value}}
            wishes += [alone, {**alone, "frequency_penalty": 0.5, "temperature": 1.0}]
    refused = []
    for index, wish in enumerate(wishes):
        turn = await case.turn(case.request(**wish), case.lineage(f"s{index}"), limit_tokens=4)
        heard = await hear(case.engine, turn)
        if heard.error is not None:
            refused.append((wish, heard.error.message))
    assert refused == []


async def test_what_the_engine_cannot_do_is_refused_by_name(case: Case) -> None:
    able = case.engine.capabilities
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    wishes = [
        (able.images, case.request({"role": "user", "content": [image]}), None),
        (able.choices, case.request(n=2), "n"),
        (able.logprobs, case.request(logprobs=True), "logprobs"),
        (able.passes_unknown, case.request(extra={"no_such_parameter": 1}), "no_such_parameter"),
    ]
    for can, request, name in wishes:
        if can:
            await case.engine.prepare(request, case.lineage())
            continue
        with pytest.raises(InvalidRequest) as error:
            await case.engine.prepare(request, case.lineage())
        assert error.value.param
        assert name is None or error.value.param == name


async def test_embeddings_and_kv_moves_are_refused_where_there_are_none(case: Case) -> None:
    able, card = case.engine.capabilities, case.cards[0].card
    if not able.embeddings:
        with pytest.raises(InvalidRequest):
            await case.engine.embed(["text"])
    if able.kv != "full":
        with pytest.raises(PoolError):
            await case.engine.store_kv(card, SlotId(0), case.lineage(), EntryId(1))
        with pytest.raises(PoolError):
            await case.engine.load_kv(card, SlotId(0), case.lineage(), EntryId(1))


async def test_a_stopped_engine_runs_nothing(case: Case) -> None:
    turn = await case.turn(case.request())
    await case.engine.stop()
    heard = await hear(case.engine, turn)
    assert isinstance(heard.error, EngineError | CapacityError)
    assert heard.error.retryable, "another engine may serve it"
    assert heard.outputs == []
