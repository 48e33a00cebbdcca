"""The openai engine against an endpoint that counts more than there can be: nobody pays for it."""

from __future__ import annotations

import json
import logging
from typing import Any

import orjson
import pytest

from bedplate.engines.openai.usage import MEDIA_TOKENS_MAX, TEMPLATE_TOKENS_MAX
from tests.conformance.engines.cases import QUESTION, Case, ask, hear, open_endpoint, until
from tests.fakes.openai_engine import Behaviour, FakeEngine

LIE = 60_000_000


def lying(*, prompt: int = 12, out: int = 1, **more: Any) -> Behaviour:
    usage = {"prompt_tokens": prompt, "completion_tokens": out}
    choice = {"index": 0, "delta": {"content": "yes"}}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunks = ({"choices": [choice], "usage": usage}, {"choices": [end], "usage": usage})
    return Behaviour(events=tuple(map(json.dumps, chunks)), **more)


async def test_a_lie_about_the_prompt_is_billed_as_what_was_sent_can_have(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = FakeEngine(lying(prompt=LIE))
    fake.metrics = False
    async with open_endpoint(fake=fake) as (_, case):
        with caplog.at_level(logging.WARNING):
            heard = await ask(case)
        await case.engine.stop()
        report = case.events[-1]
    most = len(orjson.dumps(QUESTION)) + TEMPLATE_TOKENS_MAX
    end = heard.finished
    assert most <= end.prompt_tokens <= most + 16
    assert end.unbelieved_tokens == LIE - end.prompt_tokens
    assert not end.exact
    assert heard.started[0].prompt_tokens == end.prompt_tokens, "what a cut turn is billed by"
    assert report.prompt_tokens_total == end.prompt_tokens  # type: ignore[union-attr]
    assert "tokens more than request and answer can have" in caplog.text


async def test_a_lie_about_the_answer_is_billed_as_what_came_can_have() -> None:
    async with open_endpoint(lying(out=LIE)) as (_, case):
        heard = await hear(case.engine, await case.turn(case.request(), limit_tokens=100_000))
    assert heard.finished.out_tokens < 400
    assert not heard.finished.exact


async def test_a_lie_goes_no_further_than_the_limit_in_force() -> None:
    behaviour = lying(out=LIE)
    async with open_endpoint(behaviour) as (_, case):
        heard = await hear(case.engine, await case.turn(case.request(), limit_tokens=20))
    assert heard.finished.out_tokens == 20


async def test_media_parts_have_room_of_their_own() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://x/i.png"}}
    text = {"type": "text", "text": "What is this?"}
    message = {"role": "user", "content": [text, image]}

    async def told(prompt: int) -> bool:
        fake = FakeEngine(lying(prompt=prompt))
        async with open_endpoint(fake=fake, capabilities={"images": True}) as (_, case):
            turn = await case.turn(case.request(message), limit_tokens=500)
            return (await hear(case.engine, turn)).finished.exact

    assert await told(16_384)
    assert not await told(2 * MEDIA_TOKENS_MAX)


async def test_calls_beside_a_list_of_parts_are_part_of_what_was_sent() -> None:
    """Agents send an answer back with text parts and the calls that it made."""
    function = {"name": "look", "arguments": json.dumps({"a": "x" * 20_000})}
    call = {"id": "c", "type": "function", "function": function}
    parts = [{"type": "text", "text": "I look."}]
    messages = (QUESTION, {"role": "assistant", "content": parts, "tool_calls": [call]})
    async with open_endpoint(lying(prompt=15_000)) as (_, case):
        turn = await case.turn(case.request(*messages), limit_tokens=500)
        heard = await hear(case.engine, turn)
    assert heard.finished.exact


async def count_by_tokenizer(case: Case, count: int) -> tuple[int, bool]:
    async def post_json(_url: object, _fields: object) -> dict[str, int]:
        return {"count": count}

    for replica in case.engine._replicas.values():  # type: ignore[attr-defined]
        replica.post_json = post_json
    prompt = await case.engine.prepare(case.request(), case.lineage())
    return prompt.tokens, prompt.exact


async def test_a_tokenizer_that_lies_is_not_asked_for_the_bill() -> None:
    async with open_endpoint(tokenizer="endpoint") as (_, case):
        await until(lambda: case.cards)
        assert await count_by_tokenizer(case, 25) == (25, True)
        tokens, exact = await count_by_tokenizer(case, LIE)
    assert tokens < 100
    assert not exact


async def test_embeddings_are_counted_as_the_texts_can_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_endpoint(capabilities={"embeddings": True}) as (_, case):

        async def post_json(_url: object, _fields: object) -> dict[str, Any]:
            data = [{"index": 0, "embedding": [0.5]}]
            return {"data": data, "usage": {"prompt_tokens": LIE}}

        for replica in case.engine._replicas.values():  # type: ignore[attr-defined]
            monkeypatch.setattr(replica, "post_json", post_json)
        found = await case.engine.embed(["four"])
    assert found.prompt_tokens == 4 + 256
