"""The door to the official client, on a real server: answers, streams, headers, the record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from bedplate.engines.base import Delta
from bedplate.errors import LaneFull
from bedplate.gateway.ports import Bucket, RateLimits
from tests.fakes.gateway_world import CHAT, USER, World, body, gateway_world, http
from tests.fakes.talking_engine import Script

TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FIRST = {"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}}
CALLS = (
    Delta(tool_calls=(FIRST,)),
    Delta(tool_calls=({"index": 0, "function": {"arguments": '{"a":"\\u00'}},), tokens=1),
    Delta(tool_calls=({"index": 0, "function": {"arguments": 'e9"}'}},), tokens=1),
)  # fmt: skip


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        yield made


# The official client.


async def test_the_async_client_gets_answers_streams_tools_and_models(world: World) -> None:
    client = world.client()
    answer = await client.chat.completions.create(model="m", messages=[USER])
    assert answer.choices[0].message.content == "Hello!"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 3)
    stream = await client.chat.completions.create(
        model="m", messages=[USER], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Hello!"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 13
    world.engine.scripts.append(Script(CALLS, "tool_calls"))
    called = await client.chat.completions.create(model="m", messages=[USER], tools=[TOOL])
    assert called.choices[0].finish_reason == "tool_calls"
    assert called.choices[0].message.tool_calls is not None
    (call,) = called.choices[0].message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"a": "é"}
    assert [model.id async for model in client.models.list()] == ["m"]
    assert (await client.models.retrieve("m")).id == "m"
    vectors = await client.embeddings.create(model="m", input=["a", "abc"])
    assert [item.embedding for item in vectors.data] == [[1.0, 0.5], [3.0, 0.5]]
    floats = await client.embeddings.create(model="m", input="abcd", encoding_format="float")
    assert floats.data[0].embedding == [4.0, 0.5]


async def test_the_sync_client_runs_a_tool_loop_in_one_session(world: World) -> None:
    world.engine.scripts.extend([Script(CALLS, "tool_calls"), Script(), Script()])

    def loop() -> list[str]:
        client = openai.OpenAI(base_url=world.url + "/v1", api_key=world.acme, max_retries=0)
        history: list[Any] = [USER]
        sessions = []
        for _ in range(3):
            raw = client.chat.completions.with_raw_response.create(
                model="m",
                messages=history,
                tools=[TOOL],
            )
            sessions.append(raw.headers["x-session-id"])
            message = raw.parse().choices[0].message
            history.append(message)
            if message.tool_calls:
                call_id = message.tool_calls[0].id
                history.append({"role": "tool", "tool_call_id": call_id, "content": "42"})
            else:
                history.append(USER)
        return sessions

    sessions = await asyncio.to_thread(loop)
    assert len(set(sessions)) == 1
    assert [note["kind"] for note in world.notes("recognised")] == ["new", "extend", "extend"]


async def test_errors_arrive_as_the_clients_own_types(world: World) -> None:
    client = world.client()
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="nope", messages=[USER])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model="m", messages=[USER], temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        await world.client("bp_x_y").chat.completions.create(model="m", messages=[USER])
    world.runtime.refusal = LaneFull("full", retry_after_s=7)
    with pytest.raises(openai.RateLimitError) as full:
        await client.chat.completions.create(model="m", messages=[USER])
    assert full.value.response.headers["retry-after"] == "7"


# Headers.


async def test_a_response_names_session_turn_branch_queue_and_limits(world: World) -> None:
    world.view.rates = RateLimits(Bucket(60, 59, 1.0), Bucket(9000, -5, 90.0))
    async with http(world) as client, client.post(CHAT, json=body()) as response:
        headers = response.headers
        answer = await response.json()
    assert headers["x-session-id"] == "s-0"
    assert headers["x-bedplate-branch"] == "0"
    assert int(headers["x-bedplate-queue-ms"]) >= 0
    serial = headers["x-request-id"].removeprefix("req_")
    assert headers["x-bedplate-turn"] == "t-" + serial
    assert answer["id"] == "chatcmpl-" + serial
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert headers["x-ratelimit-remaining-requests"] == "59"
    assert headers["x-ratelimit-reset-requests"] == "1s"
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert headers["x-ratelimit-reset-tokens"] == "1m30s"


async def test_a_named_session_keeps_its_name_in_header_and_body(world: World) -> None:
    async with http(world) as client:
        for sent, headers in (
            (body(), {"X-Session-Id": "run-7"}),
            (body(session_id="run-7"), {}),
        ):
            async with client.post(CHAT, json=sent, headers=headers) as response:
                assert response.headers["x-session-id"] == "run-7"
        async with client.post(
            CHAT, json=body(session_id="a"), headers={"X-Session-Id": "b"}
        ) as response:
            assert response.status == 400


# The record of what was said.


async def test_each_message_is_kept_once_and_the_answer_with_its_turn(world: World) -> None:
    async with http(world) as client:
        async with client.post(CHAT, json=body()) as response:
            answer = (await response.json())["choices"][0]["message"]
        more = [USER, answer, {"role": "user", "content": "more"}]
        async with client.post(CHAT, json=body(messages=more)) as response:
            assert response.status == 200
    first, second = (call.contents for call in world.runtime.calls)
    assert [json.loads(c.data).get("content") for c in first] == [None, "hi"]
    assert [json.loads(c.data).get("content") for c in second] == [None, "more"]
    kept = world.runtime.contents
    answers = [kept[note["content"]] for note in world.notes("recognised")]
    assert [json.loads(data)["content"] for data in answers] == ["Hello!", "Hello!"]


async def test_without_content_only_hashes_are_journaled(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, keeps_content=False) as world, http(world) as client:
        async with client.post(CHAT, json=body()) as response:
            assert response.status == 200
        assert world.runtime.contents == {}
        assert len(world.notes("content")[0]["hashes"]) == 2
        assert "hi" not in str(world.runtime.notes)
