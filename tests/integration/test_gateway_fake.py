"""The door on a real server, with the official client, before an engine that does as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bedplate.config.tree import Config, ServiceConfig
from bedplate.core.events import CardDraining
from bedplate.core.ids import SessionId, TenantId
from bedplate.engines.base import Delta
from bedplate.errors import ConfigError, EngineLost, LaneFull
from bedplate.gateway.ports import Bucket, RateLimits
from bedplate.gateway.server import GatewayServer, serve
from tests.fakes.gateway_world import World, gateway_world, http
from tests.fakes.talking_engine import Script

USER = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CHAT = "/v1/chat/completions"
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


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER], **fields}


async def until(true: Any, *, within_s: float = 2.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.005)


# The official client.


async def test_the_async_client_gets_answers_streams_tools_and_models(world: World):
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
    called = await client.chat.completions.create(model="m", messages=[USER], tools=TOOLS)
    assert called.choices[0].finish_reason == "tool_calls"
    assert called.choices[0].message.tool_calls is not None
    function = called.choices[0].message.tool_calls[0].function
    assert json.loads(function.arguments) == {"a": "é"}
    assert [model.id async for model in client.models.list()] == ["m"]
    assert (await client.models.retrieve("m")).id == "m"
    vectors = await client.embeddings.create(model="m", input=["a", "abc"])
    assert [item.embedding for item in vectors.data] == [[1.0, 0.5], [3.0, 0.5]]
    floats = await client.embeddings.create(model="m", input="abcd", encoding_format="float")
    assert floats.data[0].embedding == [4.0, 0.5]


async def test_the_sync_client_runs_a_tool_loop_in_one_session(world: World):
    world.engine.scripts.extend([Script(CALLS, "tool_calls"), Script(), Script()])

    def loop() -> list[str]:
        client = openai.OpenAI(base_url=world.url + "/v1", api_key=world.acme, max_retries=0)
        history: list[Any] = [USER]
        sessions = []
        for _ in range(3):
            raw = client.chat.completions.with_raw_response.create(
                model="m",
                messages=history,
                tools=TOOLS,  # type: ignore[arg-type]
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


async def test_errors_arrive_as_the_clients_own_types(world: World):
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


async def test_a_response_names_session_turn_branch_queue_and_limits(world: World):
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


async def test_a_named_session_keeps_its_name_in_header_and_body(world: World):
    async with http(world) as client:
        for sent in (
            {"json": body(), "headers": {"X-Session-Id": "run-7"}},
            {"json": body(session_id="run-7")},
        ):
            async with client.post(CHAT, **sent) as response:
                assert response.headers["x-session-id"] == "run-7"
        async with client.post(
            CHAT, json=body(session_id="a"), headers={"X-Session-Id": "b"}
        ) as response:
            assert response.status == 400


# Identity (F14).


async def test_tenant_and_lane_come_from_the_credential(world: World):
    async with http(world, world.rival) as client:
        for asked, status in (("batch", 200), ("interactive", 403), ("express", 400)):
            async with client.post(
                CHAT, json=body(), headers={"X-Bedplate-Lane": asked}
            ) as response:
                assert response.status == status
        async with client.post(CHAT, json=body(priority=0)) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "priority"
    assert {call.lineage.tenant for call in world.runtime.calls} == {"rival"}
    assert {call.lineage.lane for call in world.runtime.calls} == {2}
    assert {"code": "permission_denied", "count": 1, "peer": "127.0.0.1"} in world.notes("refused")


async def test_another_tenants_session_is_as_unknown_as_none(world: World):
    async with http(world) as mine, mine.post(CHAT, json=body()) as response:
        session = response.headers["x-session-id"]
    world.view.held[SessionId(session)] = (TenantId("acme"), {"id": session})
    async with http(world, world.rival) as other:
        for method, path in (("GET", session), ("DELETE", session), ("GET", "s-none")):
            async with other.request(method, f"/v1/sessions/{path}") as response:
                assert response.status == 404
                assert (await response.json())["error"]["code"] == "session_not_found"
        async with other.post(CHAT, json=body(), headers={"X-Session-Id": session}) as response:
            assert response.status == 404
        async with other.get("/v1/sessions") as response:
            assert (await response.json())["data"] == []
    assert world.runtime.closed == []
    async with http(world) as mine:
        async with mine.get(f"/v1/sessions/{session}") as response:
            assert (await response.json())["id"] == session
        async with mine.get("/v1/sessions") as response:
            assert [item["id"] for item in (await response.json())["data"]] == [session]
        async with mine.delete(f"/v1/sessions/{session}") as response:
            assert (await response.json())["deleted"] is True
    assert world.runtime.closed == [session]


@pytest.mark.parametrize("header", ["Authorization", "X-Session-Id", "Idempotency-Key"])
async def test_a_doubled_header_is_refused(world: World, header: str):
    reply = await raw(world, f"{header}: a\r\n{header}: b\r\n", json.dumps(body()).encode())
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"sent twice" in reply


async def test_unknown_revoked_and_expired_keys_get_one_and_the_same_answer(world: World):
    now = world.runtime.now_ns()
    revoked = world.keys.add("acme", now_ns=now)
    world.keys.revoke(revoked.key_id, now_ns=now)
    old = world.keys.add("acme", now_ns=now - 10, expires_ns=now - 5)
    answers = set()
    for key in ("bp_00_11", revoked.secret, old.secret, "nonsense"):
        async with http(world, key) as client, client.post(CHAT, json=body()) as response:
            assert response.status == 401
            assert response.headers["www-authenticate"].startswith("Bearer")
            answers.add(await response.text())
    assert len(answers) == 1
    assert world.runtime.calls == []


async def test_a_flood_of_bad_keys_is_one_note(world: World):
    began = time.monotonic()
    async with http(world, "bad") as client:
        for _ in range(50):
            async with client.post(CHAT, json=body()) as response:
                await response.read()
    windows = int(time.monotonic() - began) + 1
    assert len(world.notes("refused")) <= windows


async def test_small_answers_are_not_held_back_by_the_kernel(world: World):
    """Head and body are two writes: without TCP_NODELAY each answer takes 40 ms more."""
    async with http(world) as client:
        times = []
        for _ in range(8):
            began = time.monotonic()
            async with client.get("/healthz") as response:
                await response.read()
            times.append(time.monotonic() - began)
    assert min(times) < 0.02


async def test_a_key_limited_to_other_models_may_not_call_this_one(world: World):
    key = world.keys.add("acme", now_ns=world.runtime.now_ns(), models=("other",)).secret
    async with http(world, key) as client:
        async with client.post(CHAT, json=body()) as response:
            assert response.status == 403
        async with client.get("/v1/models") as response:
            assert (await response.json())["data"] == []
        async with client.get("/v1/models/m") as response:
            assert response.status == 404


# Bodies and paths.


async def raw(world: World, headers: str, data: bytes, *, path: str = CHAT) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
    writer.write(head.encode() + data)
    reply = await asyncio.wait_for(reader.read(65536), 5)
    writer.close()
    return reply


@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (
            b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
            "application/json",
            400,
        ),
        (b'{"model": "m", "messages": NaN}', "application/json", 400),
        (b"[" * 5000, "application/json", 400),
        (b"{}", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"", "application/json", 400),
        (b"x" * (1 << 21), "application/json", 413),
    ],
)
async def test_a_bad_body_gets_a_clean_refusal(tmp_path: Path, data: bytes, kind: str, status: int):
    async with gateway_world(tmp_path, body_bytes_max=1 << 20) as world, http(world) as client:
        async with client.post(CHAT, data=data, headers={"content-type": kind}) as response:
            assert response.status == status
            error = (await response.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
        assert world.runtime.calls == []


async def test_an_endless_chunked_body_is_cut_at_the_bound(tmp_path: Path):
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(4096):
            sent += 1 << 16
            yield b" " * (1 << 16)

    async with gateway_world(tmp_path, body_bytes_max=1 << 20) as world, http(world) as client:
        kind = {"content-type": "application/json"}
        with contextlib.suppress(OSError):
            async with client.post(CHAT, data=endless(), headers=kind) as response:
                assert response.status == 413
        assert sent < 64 << 20


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/models/", 404),
        ("GET", CHAT, 405),
        ("PUT", "/v1/sessions/s", 405),
        ("OPTIONS", CHAT, 204),
        ("HEAD", "/healthz", 200),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("POST", "/v1/admin/cards/card-0/drain", 403),
        ("GET", "/v1/admin/state", 403),
    ],
)
async def test_paths_and_methods(world: World, method: str, path: str, status: int):
    async with http(world) as client, client.request(method, path) as response:
        assert response.status == status
        if status in (405, 204):
            assert "OPTIONS" in response.headers["allow"]
        if status >= 400:
            assert "message" in (await response.json())["error"]


async def test_what_is_not_http_and_heads_without_end_are_refused(world: World):
    for data, status in (
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\na: " + b"x" * 70000, b"431"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
        writer.write(data)
        reply = await asyncio.wait_for(reader.read(65536), 5)
        assert reply.split(b" ")[1] == status
        assert b'"error"' in reply
        writer.close()


async def test_more_connections_than_allowed_are_turned_away(tmp_path: Path):
    async with gateway_world(tmp_path, connections_max=2) as world:
        held = [await asyncio.open_connection("127.0.0.1", world.server.port) for _ in range(2)]
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
        reply = await asyncio.wait_for(reader.read(65536), 5)
        assert reply.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in reply
        for _, each in [*held, (reader, writer)]:
            each.close()


async def test_a_bug_tells_the_client_its_request_and_the_log_no_prompt(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    async def broken(request: Any, lineage: Any) -> None:
        raise KeyError(request.messages[0]["content"])

    monkeypatch.setattr(world.engine, "prepare", broken)
    secret = [{"role": "user", "content": "the secret"}]
    async with http(world) as client, client.post(CHAT, json=body(messages=secret)) as response:
        assert response.status == 500
        text = await response.text()
        request_id = response.headers["x-request-id"]
    assert request_id in text
    assert request_id in caplog.text
    assert "KeyError" in caplog.text
    assert "secret" not in text + caplog.text
    assert len(world.parts.recogniser) == 0


# Leaving (F09) and slow readers.


async def leave(world: World, where: str) -> None:
    data = json.dumps(body(stream=where != "unstreamed")).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.acme}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    if where == "mid-stream":
        seen = b""
        while b"Hel" not in seen:
            seen += await reader.read(4096)
    else:
        await until(lambda: world.runtime.calls)
        await asyncio.sleep(0.05)
    writer.close()


@pytest.mark.parametrize("where", ["unstreamed", "before the first byte", "mid-stream", "queued"])
async def test_a_client_that_leaves_stops_its_turn_within_a_second(world: World, where: str):
    """F09 (a) to (d)."""
    forever = asyncio.Event()
    if where == "queued":
        world.runtime.queue = forever
    else:
        first = (Delta("Hel", tokens=1),) if where == "mid-stream" else ()
        world.engine.scripts.append(Script((*first, forever)))
    await leave(world, where)
    left = time.monotonic()
    await until(lambda: world.runtime.cancels)
    assert world.runtime.cancels[0][1] == "client_cancelled"
    await until(lambda: world.engine.running == 0)
    if where != "queued":
        await until(lambda: world.engine.stopped_at)
        assert world.engine.stopped_at[0] - left < 1
    await until(lambda: world.parts.counts.open == 0)
    async with http(world) as client:
        world.runtime.queue = None
        async with client.post(CHAT, json=body()) as response:
            assert response.status == 200
        async with client.get("/metrics") as response:
            assert 'status="499"' in await response.text()
    assert len(world.parts.pacer._early) == 0


async def test_a_retry_after_a_cut_takes_the_place_of_the_turn(world: World):
    world.engine.scripts.append(Script((asyncio.Event(),)))
    await leave(world, "unstreamed")
    await until(lambda: world.runtime.cancels)
    data = json.dumps(body(stream=False)).encode()
    kind = {"content-type": "application/json"}
    async with http(world) as client, client.post(CHAT, data=data, headers=kind) as response:
        assert response.headers["x-session-id"] == "s-0"
    assert world.notes("recognised")[0]["kind"] == "retry"


async def test_a_slow_reader_holds_its_turn_back_and_is_cut_when_it_stalls(tmp_path: Path):
    async with gateway_world(tmp_path, stall_seconds=0.5) as world:
        big = Delta("x" * 65536, tokens=1)
        world.engine.scripts.append(Script((big,) * 2000))
        data = json.dumps(body(stream=True)).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port, limit=1024)
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.acme}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode()
            + data
        )
        await reader.read(100)
        await until(lambda: world.runtime.cancels, within_s=10)
        await until(lambda: world.engine.stopped_at)  # held back, not run to its end
        writer.close()


# Late first tokens and failures (F16).


async def test_a_failure_before_the_first_token_keeps_its_status(world: World):
    world.engine.scripts.append(Script((EngineLost("card died"),)))
    async with http(world) as client, client.post(CHAT, json=body(stream=True)) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "engine_lost"
        assert response.headers["content-type"] == "application/json"


async def test_a_failure_in_mid_stream_is_an_error_event_without_done(world: World):
    world.engine.scripts.append(Script((Delta("Hel", tokens=1), EngineLost("card died"))))
    async with http(world) as client, client.post(CHAT, json=body(stream=True)) as response:
        assert response.status == 200
        text = await response.text()
    assert "[DONE]" not in text
    assert '"finish_reason":"' not in text
    assert json.loads(text.strip().rpartition("\n\n")[2][6:])["error"]["code"] == "engine_lost"
    world.engine.scripts.append(Script((Delta("Hel", tokens=1), EngineLost("card died"))))
    with pytest.raises(openai.APIError):
        async for _ in await world.client().chat.completions.create(
            model="m", messages=[USER], stream=True
        ):
            pass


async def test_an_unstreamed_failure_is_never_half_an_answer(world: World):
    world.engine.scripts.append(Script((Delta("Hel", tokens=1), EngineLost("card died"))))
    async with http(world) as client, client.post(CHAT, json=body()) as response:
        assert response.status == 502


@pytest.mark.parametrize("fails", [False, True])
async def test_a_late_first_token_gets_headers_and_comments_meanwhile(tmp_path: Path, fails: bool):
    async with gateway_world(tmp_path, header_wait_seconds=0.1) as world:
        last = EngineLost("card died") if fails else Delta("late", tokens=1)
        world.engine.scripts.append(Script((0.35, last)))
        async with http(world) as client, client.post(CHAT, json=body(stream=True)) as response:
            assert response.status == 200
            assert response.headers["x-session-id"] == "s-0"
            text = await response.text()
        assert text.count(": keepalive\n\n") >= 2
        assert text.startswith(": keepalive")
        assert ("[DONE]" in text) is not fails
        assert ('"error"' in text) is fails
        async for chunk in await world.client().chat.completions.create(
            model="m", messages=[USER], stream=True
        ):
            assert chunk.object == "chat.completion.chunk"


# Idempotency (F19).


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_key_and_body_run_once_and_answer_alike(world: World, stream: bool):
    key = {"Idempotency-Key": "k1"}
    seen = []
    async with http(world) as client:
        for _ in range(2):
            async with client.post(CHAT, json=body(stream=stream), headers=key) as response:
                assert response.status == 200
                seen.append((await response.read(), response.headers["x-bedplate-turn"]))
                replayed = response.headers.get("idempotent-replayed")
                kind = response.headers["content-type"]
        assert seen[0] == seen[1]
        assert replayed == "true"
        assert kind.startswith("text/event-stream" if stream else "application/json")
        assert len(world.runtime.calls) == 1
        async with client.post(CHAT, json=body(seed=1, stream=stream), headers=key) as response:
            assert response.status == 409
            assert response.headers["x-should-retry"] == "false"
    async with (
        http(world, world.rival) as other,
        other.post(CHAT, json=body(stream=stream), headers=key) as response,
    ):
        assert response.status == 200
    assert len(world.runtime.calls) == 2


async def test_the_same_key_while_it_runs_is_in_progress_and_a_failure_frees_it(world: World):
    gate = asyncio.Event()
    world.engine.scripts.append(Script((gate, EngineLost("card died"))))
    key = {"Idempotency-Key": "k1"}
    async with http(world) as client:
        first = asyncio.create_task(client.post(CHAT, json=body(), headers=key))
        await until(lambda: world.runtime.calls)
        async with client.post(CHAT, json=body(), headers=key) as second:
            assert second.status == 409
            assert (await second.json())["error"]["code"] == "idempotency_in_progress"
            assert second.headers["retry-after"] == "1"
            assert second.headers["x-should-retry"] == "true"
        gate.set()
        async with await first as failed:
            assert failed.status == 502
        async with client.post(CHAT, json=body(), headers=key) as third:
            assert third.status == 200


async def test_an_answer_that_is_not_kept_is_never_run_again(tmp_path: Path):
    async with gateway_world(tmp_path, keeps_content=False) as world, http(world) as client:
        key = {"Idempotency-Key": "k1"}
        for lost, status in ((False, 200), (False, 200), (True, 409)):
            if lost:
                world.parts.answers._held.clear()
            async with client.post(CHAT, json=body(), headers=key) as response:
                assert response.status == status
        assert len(world.runtime.calls) == 1
        assert world.runtime.contents == {}


# The record of what was said.


async def test_each_message_is_kept_once_and_the_answer_with_its_turn(world: World):
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


async def test_without_content_only_hashes_are_journaled(tmp_path: Path):
    async with gateway_world(tmp_path, keeps_content=False) as world, http(world) as client:
        async with client.post(CHAT, json=body()) as response:
            assert response.status == 200
        assert world.runtime.contents == {}
        assert len(world.notes("content")[0]["hashes"]) == 2
        assert "hi" not in str(world.runtime.notes)


# Operators, health, metrics, drain.


async def test_an_operator_drains_a_card_and_brings_it_back(world: World):
    async with http(world, world.operator) as client:
        for verb, on in (("drain", True), ("undrain", False)):
            async with client.post(f"/v1/admin/cards/card-0/{verb}") as response:
                assert await response.json() == {"card": "card-0", "draining": on}
            assert world.runtime.events[-1] == CardDraining("card-0", on)  # type: ignore[arg-type]
        for path in ("card-9/drain", "card-0/melt", "card-0"):
            async with client.post(f"/v1/admin/cards/{path}") as response:
                assert response.status == 404
        async with client.get("/v1/admin/state") as response:
            assert set(await response.json()) >= {"cards", "pool", "lanes", "sessions"}
    assert [note["verb"] for note in world.notes("operator")] == ["drain", "undrain"]


async def test_metrics_name_tenants_and_never_sessions(world: World):
    async with http(world) as client:
        async with client.post(CHAT, json=body()) as response:
            session = response.headers["x-session-id"]
        async with client.get("/metrics") as response:
            text = await response.text()
    assert (
        'bedplate_requests_total{endpoint="chat",lane="interactive",status="200",tenant="acme"} 1.0'
        in text
    )
    assert 'kind="output",lane="interactive",model="m",tenant="acme"} 3.0' in text
    assert "bedplate_ttft_seconds_bucket" in text
    assert session not in text
    assert all(line.startswith(("#", "bedplate_")) for line in text.splitlines() if line)


async def test_readiness_follows_the_runtime(world: World):
    world.runtime.is_ready = False
    async with http(world) as client, client.get("/readyz") as response:
        assert response.status == 503


async def test_a_drain_refuses_new_calls_and_lets_running_ones_end(world: World):
    gate = asyncio.Event()
    world.engine.scripts.append(Script((Delta("Hel", tokens=1), gate, Delta("lo", tokens=1))))
    async with http(world) as client:
        running = await client.post(CHAT, json=body(stream=True))
        world.gateway.begin_drain()
        async with client.get("/readyz") as response:
            assert response.status == 503
        async with client.get("/healthz") as response:
            assert response.status == 200
        async with client.post(CHAT, json=body()) as response:
            assert response.status == 503
            assert int(response.headers["retry-after"]) >= 1
        assert not world.gateway.idle.is_set()
        gate.set()
        assert "[DONE]" in await running.text()
        running.close()
        await asyncio.wait_for(world.gateway.idle.wait(), 2)


async def test_stopping_cuts_what_still_runs(tmp_path: Path):
    async with gateway_world(tmp_path) as world:
        world.engine.scripts.append(Script((Delta("Hel", tokens=1), asyncio.Event())))
        async with http(world) as client:
            running = await client.post(CHAT, json=body(stream=True))
            began = time.monotonic()
            await world.server.stop()
            assert time.monotonic() - began < 2
            assert world.runtime.cancels
            with pytest.raises(Exception, match=r"payload|closed|reset|disconnect"):
                await running.text()


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_signal_drains_and_a_second_one_cuts(tmp_path: Path, signals: int):
    async with gateway_world(tmp_path, starts=False) as world:
        gate = asyncio.Event()
        world.engine.scripts.append(Script((Delta("Hel", tokens=1), gate, Delta("lo", tokens=1))))
        ports: list[int] = []
        serving = asyncio.create_task(
            serve(world.server, world.gateway, world.runtime, drain_s=30, started=ports.append)
        )
        await until(lambda: ports)
        async with http(world) as client:
            running = await client.post(CHAT, json=body(stream=True))
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: world.parts.draining)
            async with client.get("/readyz") as response:
                assert response.status == 503
            if signals == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.wait_for(serving, 5)
                assert world.runtime.cancels
                with pytest.raises(Exception, match=r"payload|closed|reset|disconnect"):
                    await running.text()
            else:
                gate.set()
                assert "[DONE]" in await running.text()
                await asyncio.wait_for(serving, 5)
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.1", ports[0])


async def test_a_port_in_use_and_missing_tls_files_are_configuration_errors(
    world: World, tmp_path: Path
):
    for options in ({"port": world.server.port}, {"tls_cert": "a.pem", "tls_key": "b.pem"}):
        config = Config(service=ServiceConfig(**{"port": 0, "data_dir": tmp_path, **options}))
        with pytest.raises(ConfigError):
            await GatewayServer(world.gateway, config).start()


async def test_tls_serves_the_same_api(tmp_path: Path):
    certificate, key = self_signed(tmp_path)
    async with gateway_world(tmp_path, tls_cert=certificate, tls_key=key) as world:
        context = ssl.create_default_context(cafile=str(certificate))
        async with aiohttp.ClientSession() as client:
            url = f"https://localhost:{world.server.port}/healthz"
            async with client.get(url, ssl=context) as response:
                assert response.status == 200


def self_signed(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths
