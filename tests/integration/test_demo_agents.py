"""Agents of the demonstration against a small HTTP server that answers as scripted."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bedplate.core.ids import ModelId, TenantId, TurnId
from bedplate.demo.agents import Agent, AgentSettings, SessionResult
from bedplate.demo.scripts import Script, departments
from bedplate.engines.base import ChatRequest
from bedplate.gateway.recognition import Recogniser

SCRIPT = departments()[0].scripts[0]
Reply = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class Served:
    """A server on loopback: what it was asked, and how it replies to each call."""

    def __init__(self, replies: list[Reply] | None = None) -> None:
        self.replies = replies or []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.waits: list[float] = []
        ids = itertools.count()
        self.recogniser = Recogniser(lambda: f"{next(ids):04x}")

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        at = len(self.bodies) - 1
        reply = self.replies[at] if at < len(self.replies) else self.answer
        return await reply(request, body)

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Answer with text and a tool call in turn, in the session that recognition finds."""
        number = len(self.bodies)
        placement = self.recogniser.match(
            TenantId("t"),
            ModelId("m"),
            ChatRequest(ModelId("m"), tuple(body["messages"]), tuple(body["tools"])),
            request.headers.get("X-Session-Id"),
            0,
            turn=TurnId(str(number)),
        )
        content = f"thought {number}"
        function = {"name": "get_file", "arguments": '{"file":"C-1180"}'}
        call = {"index": 0, "id": f"c{number}", "type": "function", "function": function}
        message: dict[str, Any] = {"role": "assistant", "content": content}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": content}]
        if number % 2:
            deltas.append({"tool_calls": [call]})
            message["tool_calls"] = [{key: call[key] for key in ("id", "type", "function")}]
        self.recogniser.turn_ended(placement, message, 0)
        reason = "tool_calls" if number % 2 else "stop"
        response = web.StreamResponse(headers={"X-Session-Id": placement.public_id})
        await response.prepare(request)
        for delta in deltas:
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        last = {"index": 0, "delta": {}, "finish_reason": reason}
        usage = {
            "prompt_tokens": 100 * number,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 90 * number},
        }
        await response.write(b"data: " + json.dumps({"choices": [last]}).encode() + b"\n\n")
        tail = {"choices": [], "usage": usage}
        await response.write(b"data: " + json.dumps(tail).encode() + b"\n\ndata: [DONE]\n\n")
        return response


def refuse(status: int, code: str, **headers: str) -> Reply:
    async def reply(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"code": code}}, status=status, headers=headers)

    return reply


async def cut(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'data: {"choices":[{"index":0,"delta":{"content":"ha"}}]}\n\n')
    assert request.transport is not None
    request.transport.close()
    return response


@asynccontextmanager
async def running(served: Served) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", served.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def play(served: Served, *, named: bool = False, script: Script = SCRIPT) -> SessionResult:
    async def scene() -> SessionResult:
        async with running(served) as url, aiohttp.ClientSession() as client:
            settings = AgentSettings(base_url=url, model="m", attempts_max=3)
            agent = Agent(client, settings, script, key="bp_k_s", named=named, sleep=served.sleep)
            return await agent.play()

    return asyncio.run(scene())


@pytest.mark.parametrize("named", [False, True])
def test_a_session_is_played_to_its_end_and_known_again(named: bool) -> None:
    served = Served()
    result = play(served, named=named)
    assert result.error == ""
    assert [turn.number for turn in result.turns] == [0, 1, 2, 3, 4]
    assert result.sessions == ((f"compliance.{SCRIPT.id}.0",) if named else ("s-0000",))
    assert [turn.cached_tokens for turn in result.turns] == [90, 180, 270, 360, 450]
    assert all(0 < turn.ttft_s <= turn.seconds for turn in result.turns)
    assert [turn.finish_reason for turn in result.turns][:2] == ["tool_calls", "stop"]


def test_each_call_carries_the_history_word_for_word() -> None:
    served = Served()
    play(served)
    for before, after in itertools.pairwise(served.bodies):
        assert after["messages"][: len(before["messages"])] == before["messages"]
    roles = [message["role"] for message in served.bodies[-1]["messages"]]
    assert roles == ["system", "user"] + ["assistant", "tool", "assistant", "user"] * 2
    answer, observation = served.bodies[1]["messages"][2:]
    assert answer["tool_calls"][0]["id"] == observation["tool_call_id"] == "c1"
    assert observation["content"] == SCRIPT.steps[0].result
    assert served.bodies[0]["max_tokens"] == 32


def test_only_named_agents_send_names_and_keys() -> None:
    named, unnamed = Served(), Served()
    play(named, named=True)
    play(unnamed)
    assert [h["Idempotency-Key"][-2:] for h in named.headers] == ["/0", "/1", "/2", "/3", "/4"]
    assert len({h["X-Session-Id"] for h in named.headers}) == 1
    assert all("X-Session-Id" not in h and "Idempotency-Key" not in h for h in unnamed.headers)
    assert all(h["Authorization"] == "Bearer bp_k_s" for h in named.headers + unnamed.headers)


def test_tool_gaps_are_drawn_from_the_seed_and_in_bounds() -> None:
    first, second = Served(), Served()
    play(first)
    play(second)
    assert first.waits == second.waits
    assert len(first.waits) == 4
    assert all(0.2 <= wait <= 2.0 for wait in first.waits)


def test_a_refusal_is_waited_for_as_long_as_it_says() -> None:
    served = Served([refuse(429, "lane_full", **{"Retry-After": "7"}), refuse(503, "draining")])
    result = play(served)
    assert result.error == ""
    assert result.turns[0].attempts == 3
    assert served.waits[0] == 7.0
    assert 1.0 <= served.waits[1] <= 2.0
    assert served.bodies[0] == served.bodies[1] == served.bodies[2]


def test_a_broken_stream_is_sent_again() -> None:
    served = Served([cut])
    result = play(served, named=True)
    assert result.error == ""
    assert result.turns[0].attempts == 2
    assert served.headers[0]["Idempotency-Key"] == served.headers[1]["Idempotency-Key"]


def test_retries_are_bounded() -> None:
    served = Served([refuse(503, "no_engine")] * 9)
    result = play(served)
    assert result.turns == ()
    assert "turn 1 was given up, attempt 3: HTTP 503" in result.error
    assert len(served.bodies) == 3


@pytest.mark.parametrize(
    ("status", "code", "calls"),
    [
        (400, "context_length_exceeded", 1),
        (401, "invalid_api_key", 1),
        (409, "idempotency_key_conflict", 1),
        (409, "idempotency_in_progress", 3),
    ],
)
def test_only_what_may_pass_later_is_sent_again(status: int, code: str, calls: int) -> None:
    served = Served([refuse(status, code)] * 3)
    assert code in play(served).error
    assert len(served.bodies) == calls
