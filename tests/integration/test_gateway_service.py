"""The door in front of the real service: core, journal and recognition, over one told engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from bedplate.config.tree import Config, ServiceConfig, TenantConfig
from bedplate.engines.base import Delta
from bedplate.errors import EngineError
from bedplate.gateway.app import Gateway
from bedplate.gateway.build import build_gateway
from bedplate.gateway.keys import KeyStore
from bedplate.gateway.server import GatewayServer
from bedplate.journal import Journal
from bedplate.runtime.service import Service
from tests.fakes.gateway_world import CHAT, USER, body, until
from tests.fakes.talking_engine import Script, TalkingEngine


@dataclass
class World:
    engine: TalkingEngine
    service: Service
    gateway: Gateway
    url: str
    key: str

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=self.key, max_retries=0)

    def http(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(self.url, headers={"authorization": f"Bearer {self.key}"})

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        return [record.body for record in self.service.journal.read(kinds=kinds)]


@contextlib.asynccontextmanager
async def running(folder: Path, **limits: Any) -> AsyncIterator[World]:
    tenants = (TenantConfig(id="acme", **limits),)
    config = Config(service=ServiceConfig(port=0, data_dir=folder), tenant=tenants)
    engine = TalkingEngine()
    journal = Journal.open(folder / "journal", origin="bedplate/test")
    service = Service(config, [engine], None, journal)
    await service.start()
    with KeyStore(folder / "keys.db") as keys:
        key = keys.add("acme", now_ns=time.time_ns(), admin=True).secret
        gateway = build_gateway(config, service, keys)
        server = GatewayServer(gateway, config)
        await server.start()
        yield World(engine, service, gateway, f"http://127.0.0.1:{server.port}", key)
        gateway.begin_drain()
        await service.drain(2)
        await server.stop()
        await service.stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path) as made:
        yield made


async def test_three_turns_are_one_session_and_leave_one_record(world: World) -> None:
    history: list[Any] = [USER]
    sessions = set()
    for _ in range(3):
        raw = await world.client().chat.completions.with_raw_response.create(
            model="m", messages=history
        )
        sessions.add(raw.headers["x-session-id"])
        history += [raw.parse().choices[0].message, USER]
    assert len(sessions) == 1
    async with world.http() as client, client.get("/v1/sessions") as response:
        shown = (await response.json())["data"]
    assert [item["id"] for item in shown] == list(sessions)
    assert len(world.records("TurnArrived")) == len(world.records("TurnEnded")) == 3
    assert [note["kind"] for note in world.records("recognised")] == ["new", "extend", "extend"]
    hashes = [len(note["hashes"]) for note in world.records("content")]
    assert hashes == [2, 2, 2], "parameters and one new message a turn"
    answer = world.records("recognised")[-1]["content"]
    assert b"Hello!" in (world.service.journal.content(answer) or b"")


async def test_a_session_that_is_closed_is_gone_for_core_and_recognition(world: World) -> None:
    async with world.http() as client:
        async with client.post(CHAT, json=body()) as response:
            session = response.headers["x-session-id"]
        async with client.delete(f"/v1/sessions/{session}") as response:
            assert response.status == 200
        for method in ("GET", "DELETE"):
            async with client.request(method, f"/v1/sessions/{session}") as response:
                assert response.status == 404
    assert len(world.gateway.parts.recogniser) == 0


@pytest.mark.parametrize("name", [None, "mine"])
async def test_a_session_whose_only_turn_failed_is_not_left_behind(
    world: World, name: str | None
) -> None:
    """Nobody could look at it, go on with it or close it."""
    headers = {"X-Session-Id": name} if name else {}
    world.engine.default = Script((EngineError("broken"),))
    async with world.http() as client:
        async with client.post(CHAT, json=body(), headers=headers) as response:
            assert response.status == 502
        async with client.get("/v1/sessions") as response:
            assert (await response.json())["data"] == []
        world.engine.default = Script()
        async with client.post(CHAT, json=body(), headers=headers) as response:
            session = response.headers["x-session-id"]
        world.engine.default = Script((EngineError("broken"),))
        again = {"X-Session-Id": session}
        async with client.post(CHAT, json=body(), headers=again) as response:
            assert response.status == 502
        async with client.get("/v1/sessions") as response:
            assert [item["id"] for item in (await response.json())["data"]] == [session]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_billed_once_and_named(world: World, stream: bool) -> None:
    """F09, F08: the engine stops, the record says who ended it, the next call runs."""
    world.engine.scripts.append(Script((Delta("Hel", tokens=1), asyncio.Event())))
    async with world.http() as client:
        call = asyncio.create_task(client.post(CHAT, json=body(stream=stream)))
        await until(lambda: world.engine.running)
        await asyncio.sleep(0.05)
        call.cancel()
        if stream:
            with contextlib.suppress(asyncio.CancelledError):
                (await call).close()
    left = time.monotonic()
    await until(lambda: world.engine.stopped_at)
    assert world.engine.stopped_at[0] - left < 1
    await until(lambda: world.service.stats().turns_live == 0)
    async with world.http() as client, client.post(CHAT, json=body()) as response:
        assert response.status == 200
    assert [event["reason"] for event in world.records("TurnCancelled")] == ["client_cancelled"]
    assert len(world.records("usage")) == 2


async def test_limits_refuse_with_a_time_and_stand_in_headers(tmp_path: Path) -> None:
    async with running(tmp_path, requests_per_minute=2) as world, world.http() as client:
        remaining = []
        for _ in range(2):
            async with client.post(CHAT, json=body()) as response:
                remaining.append(response.headers["x-ratelimit-remaining-requests"])
        assert remaining == ["1", "0"]
        async with client.post(CHAT, json=body()) as response:
            assert response.status == 429
            assert 1 <= int(response.headers["retry-after"]) <= 31


async def test_a_restart_keeps_sessions_and_answers(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "k1"}
    async with (
        running(tmp_path) as world,
        world.http() as client,
        client.post(CHAT, json=body(), headers=key) as response,
    ):
        first = await response.read()
        answer = (await response.json())["choices"][0]["message"]
        session = response.headers["x-session-id"]
    async with running(tmp_path) as world, world.http() as client:
        async with client.post(CHAT, json=body(), headers=key) as response:
            assert await response.read() == first
            assert response.headers["idempotent-replayed"] == "true"
            assert response.headers["x-session-id"] == session
        assert world.engine.requests == []
        more = body(messages=[USER, answer, USER])
        async with client.post(CHAT, json=more) as response:
            assert response.headers["x-session-id"] == session


async def test_metrics_show_cards_lanes_and_turns(world: World) -> None:
    async with world.http() as client:
        async with client.post(CHAT, json=body()) as response:
            await response.read()
        async with client.get("/metrics") as response:
            text = await response.text()
        async with client.get("/v1/admin/state") as response:
            state = await response.json()
    for line in (
        'bedplate_card_up{card="card-0",model="m"} 1.0',
        'bedplate_lane_sessions{lane="interactive"} 1.0',
        'bedplate_turns_total{status="stop"} 1.0',
        'bedplate_ttft_seconds_count{lane="interactive"} 1.0',
    ):
        assert line in text
    assert state["cards"][0]["card"] == "card-0"
    assert state["sessions"][0]["branches"][0]["state"] == "idle"
