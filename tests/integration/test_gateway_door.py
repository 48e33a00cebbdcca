"""Who may come in, and with what: identity (F14), bodies, paths, connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bedplate.core.ids import SessionId, TenantId
from bedplate.gateway import endpoints
from tests.fakes.gateway_world import CHAT, World, body, gateway_world, http


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        yield made


# Identity (F14).


async def test_tenant_and_lane_come_from_the_credential(world: World) -> None:
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


async def test_another_tenants_session_is_as_unknown_as_none(world: World) -> None:
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
async def test_a_doubled_header_is_refused(world: World, header: str) -> None:
    reply = await raw(world, f"{header}: a\r\n{header}: b\r\n", json.dumps(body()).encode())
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"sent twice" in reply


async def test_unknown_revoked_and_expired_keys_get_one_and_the_same_answer(world: World) -> None:
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


async def test_keys_expire_by_the_wall_clock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's clock never falls: one that once ran ahead would end keys before their time."""
    key = world.keys.add("acme", now_ns=time.time_ns(), expires_ns=time.time_ns() + 10**12).secret
    ahead_ns = world.runtime.now_ns() + 10**16
    monkeypatch.setattr(world.runtime, "now_ns", lambda: ahead_ns)
    async with http(world, key) as client, client.post(CHAT, json=body()) as response:
        assert response.status == 200


async def test_without_its_keys_the_service_lets_nobody_in(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, http(world) as client:
        (tmp_path / "keys.db").write_bytes(b"garbage" * 1000)
        for _ in range(3):
            async with client.post(CHAT, json=body()) as response:
                assert response.status == 503
                text = await response.text()
                assert "keys_unavailable" in text
                assert str(tmp_path) not in text
        assert world.runtime.calls == []


async def test_a_flood_of_bad_keys_is_one_note(world: World) -> None:
    began = time.monotonic()
    async with http(world, "bad") as client:
        for _ in range(50):
            async with client.post(CHAT, json=body()) as response:
                await response.read()
    windows = int(time.monotonic() - began) + 1
    assert len(world.notes("refused")) <= windows


async def test_small_answers_are_not_held_back_by_the_kernel(world: World) -> None:
    """Head and body are two writes: without TCP_NODELAY each answer takes 40 ms more."""
    async with http(world) as client:
        times = []
        for _ in range(8):
            began = time.monotonic()
            async with client.get("/healthz") as response:
                await response.read()
            times.append(time.monotonic() - began)
    assert min(times) < 0.02


async def test_a_key_limited_to_other_models_may_not_call_this_one(world: World) -> None:
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
        (b"{}", "application/json; charset=latin-1", 415),
        (b"", "application/json", 400),
        (b"x" * (1 << 21), "application/json", 413),
    ],
)
async def test_a_bad_body_gets_a_clean_refusal(
    tmp_path: Path, data: bytes, kind: str, status: int
) -> None:
    async with gateway_world(tmp_path, body_bytes_max=1 << 20) as world, http(world) as client:
        async with client.post(CHAT, data=data, headers={"content-type": kind}) as response:
            assert response.status == status
            error = (await response.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
        assert world.runtime.calls == []


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_a_compressed_body_is_refused_by_name(world: World, path: str) -> None:
    call = body() if path == CHAT else {"model": "m", "input": "hi"}
    async with http(world) as client:
        for coding, status in (("gzip", 415), ("br, gzip", 415), ("identity", 200)):
            headers = {"content-type": "application/json", "content-encoding": coding}
            async with client.post(path, data=json.dumps(call), headers=headers) as response:
                assert response.status == status
                assert status == 200 or "content-encoding" in await response.text()


async def test_an_embedding_keeps_the_deadline_of_its_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(_inputs: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(world.engine, "embed", hangs)
    call = {"model": "m", "input": "hi"}
    async with http(world) as client:
        for seconds, status, code in (
            ("soon", 400, "invalid_request_error"),
            ("0.05", 504, "deadline_exceeded"),
        ):
            headers = {"x-bedplate-deadline-seconds": seconds}
            async with client.post("/v1/embeddings", json=call, headers=headers) as response:
                assert response.status == status
                assert (await response.json())["error"]["code"] == code


async def test_what_must_be_durable_is_refused_while_the_journal_is_stalled(world: World) -> None:
    async with http(world) as client, client.post(CHAT, json=body()) as response:
        session = response.headers["x-session-id"]
    world.view.held[SessionId(session)] = (TenantId("acme"), {"id": session})
    world.runtime.stalled = True
    drain = "/v1/admin/cards/card-0/drain"
    async with http(world, world.operator) as admin, admin.post(drain) as response:
        assert response.status == 503
        assert "retry-after" in response.headers
    async with http(world) as client, client.delete(f"/v1/sessions/{session}") as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "journal_error"
    assert world.runtime.closed == []
    assert world.runtime.events == []


async def test_a_journal_that_stalls_meanwhile_does_not_hold_the_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(seq: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(endpoints, "COMMIT_SECONDS", 0.01)
    async with http(world) as client, client.post(CHAT, json=body()) as response:
        session = response.headers["x-session-id"]
    world.view.held[SessionId(session)] = (TenantId("acme"), {"id": session})
    monkeypatch.setattr(world.runtime, "committed", never)
    drain = "/v1/admin/cards/card-0/drain"
    async with http(world, world.operator) as admin, admin.post(drain) as response:
        assert (response.status, "done" in await response.text()) == (503, True)
    async with http(world) as client, client.delete(f"/v1/sessions/{session}") as response:
        assert (response.status, "done" in await response.text()) == (503, True)


async def test_a_key_used_in_another_session_is_a_conflict(world: World) -> None:
    async with http(world) as client:
        for session, status in (("a", 200), ("a", 200), ("b", 409), (None, 409)):
            headers = {"Idempotency-Key": "k"} | ({"X-Session-Id": session} if session else {})
            async with client.post(CHAT, json=body(), headers=headers) as response:
                assert response.status == status
    assert len(world.runtime.calls) == 1


async def test_an_endless_chunked_body_is_cut_at_the_bound(tmp_path: Path) -> None:
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
        ("GET", "/v1/admin/slices", 403),
        ("POST", "/v1/admin/slices", 403),
        ("DELETE", "/v1/admin/slices/s", 403),
    ],
)
async def test_paths_and_methods(world: World, method: str, path: str, status: int) -> None:
    async with http(world) as client, client.request(method, path) as response:
        assert response.status == status
        if status in (405, 204):
            assert "OPTIONS" in response.headers["allow"]
        if status >= 400:
            assert "message" in (await response.json())["error"]


async def test_what_is_not_http_and_heads_without_end_are_refused(world: World) -> None:
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


async def test_what_comes_after_the_body_says_nothing_and_is_bounded(world: World) -> None:
    """Trailer fields are no headers: neither a key nor a session's name may stand there."""
    data = json.dumps(body()).encode()
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(data), data)
    key = f"authorization: Bearer {world.acme}\r\n"
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    framing = "transfer-encoding: chunked\r\n"
    sent = (
        ("", key.encode(), b"401"),
        (key, b"x-session-id: of-the-trailer\r\n", b"200"),
        (key, b"a: " + b"x" * 400_000, b"431"),
        (key, b"a: b\r\n" * 60_000, b"431"),
    )
    for headers, trailers, status in sent:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
        writer.write((head + headers + framing + "\r\n").encode() + chunk + trailers + b"\r\n")
        reply = await asyncio.wait_for(reader.read(65536), 5)
        assert reply.split(b" ")[1] == status
        assert b"of-the-trailer" not in reply
        writer.close()
    assert len(world.runtime.calls) == 1


async def test_a_head_that_arrives_at_once_is_bounded_too(world: World) -> None:
    reply = await raw(world, f"a: {'x' * 80_000}\r\n", b"")
    assert reply.startswith(b"HTTP/1.1 431 ")
    reply = await raw(world, "a: b\r\n" * 14_000, b"")
    assert reply.startswith(b"HTTP/1.1 431 ")
    reply = await raw(world, f"a: {'x' * 60_000}\r\n", b"{}")
    assert reply.startswith(b"HTTP/1.1 401 ")


async def test_more_connections_than_allowed_are_turned_away(tmp_path: Path) -> None:
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
) -> None:
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
