"""Clients that leave (F09), engines that fail (F16), calls sent twice (F19)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from bedplate.engines.base import Delta
from bedplate.errors import EngineError, EngineLost, SchemaNotKept
from tests.fakes.gateway_world import CHAT, USER, World, body, gateway_world, http, until
from tests.fakes.talking_engine import Script


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        yield made


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
async def test_a_client_that_leaves_stops_its_turn_within_a_second(
    world: World, where: str
) -> None:
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


async def test_a_retry_after_a_cut_takes_the_place_of_the_turn(world: World) -> None:
    world.engine.scripts.append(Script((asyncio.Event(),)))
    await leave(world, "unstreamed")
    await until(lambda: world.runtime.cancels)
    data = json.dumps(body(stream=False)).encode()
    kind = {"content-type": "application/json"}
    async with http(world) as client, client.post(CHAT, data=data, headers=kind) as response:
        assert response.headers["x-session-id"] == "s-0"
    assert world.notes("recognised")[0]["kind"] == "retry"


async def test_a_slow_reader_holds_its_turn_back_and_is_cut_when_it_stalls(tmp_path: Path) -> None:
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


async def test_a_failure_before_the_first_token_keeps_its_status(world: World) -> None:
    world.engine.scripts.append(Script((EngineLost("card died"),)))
    async with http(world) as client, client.post(CHAT, json=body(stream=True)) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "engine_lost"
        assert response.headers["content-type"] == "application/json"


async def test_a_failure_in_mid_stream_is_an_error_event_without_done(world: World) -> None:
    world.engine.scripts.append(Script((Delta("Hel", tokens=1), EngineLost("card died"))))
    async with http(world) as client, client.post(CHAT, json=body(stream=True)) as response:
        assert response.status == 200
        text = await response.text()
    assert "[DONE]" not in text
    assert '"finish_reason":"' not in text
    assert json.loads(text.strip().rpartition("\n\n")[2][6:])["error"]["code"] == "engine_lost"
    world.engine.scripts.append(Script((Delta("Hel", tokens=1), EngineLost("card died"))))
    with pytest.raises(openai.APIError):
        await read_stream(world)


async def test_an_unstreamed_failure_is_never_half_an_answer(world: World) -> None:
    world.engine.scripts.append(Script((Delta("Hel", tokens=1), EngineLost("card died"))))
    async with http(world) as client, client.post(CHAT, json=body()) as response:
        assert response.status == 502


async def test_what_is_no_http_in_mid_stream_cuts_it_without_a_second_answer(world: World) -> None:
    world.engine.scripts.append(Script((Delta("Hel", tokens=1), asyncio.Event())))
    data = json.dumps(body(stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.acme}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    seen = b""
    while b"Hel" not in seen:
        seen += await reader.read(4096)
    writer.write(b"\0no request\r\n\r\n")
    try:
        seen += await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        pass
    assert seen.count(b"HTTP/1.1 ") == 1
    assert b"[DONE]" not in seen
    await until(lambda: world.engine.running == 0)
    writer.close()


@pytest.mark.parametrize(
    ("error", "tries"), [(EngineLost("card died"), 3), (SchemaNotKept("no integer"), 1)]
)
async def test_the_official_client_repeats_only_what_may_do_better(
    world: World, error: EngineError, tries: int
) -> None:
    world.engine.scripts.extend([Script((error,))] * 3)
    client = world.client().with_options(max_retries=2)
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(model="m", messages=[USER])
    assert (caught.value.status_code, caught.value.code) == (502, error.code)
    assert len(world.engine.requests) == tries


@pytest.mark.parametrize("fails", [False, True])
async def test_a_late_first_token_gets_headers_and_comments_meanwhile(
    tmp_path: Path, fails: bool
) -> None:
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
        chunks = await read_stream(world)
        assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


async def read_stream(world: World) -> list[ChatCompletionChunk]:
    """Ask with the official client; return the chunks of the whole answer."""
    stream = await world.client().chat.completions.create(model="m", messages=[USER], stream=True)
    return [chunk async for chunk in stream]


# Idempotency (F19).


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_key_and_body_run_once_and_answer_alike(world: World, stream: bool) -> None:
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


async def test_the_same_key_while_it_runs_is_in_progress_and_a_failure_frees_it(
    world: World,
) -> None:
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


async def test_an_answer_that_is_not_kept_is_never_run_again(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, keeps_content=False) as world, http(world) as client:
        key = {"Idempotency-Key": "k1"}
        for lost, status in ((False, 200), (False, 200), (True, 409)):
            if lost:
                world.parts.answers._held.clear()
            async with client.post(CHAT, json=body(), headers=key) as response:
                assert response.status == status
        assert len(world.runtime.calls) == 1
        assert world.runtime.contents == {}
