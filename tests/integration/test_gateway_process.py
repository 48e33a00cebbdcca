"""Operators, health, metrics, drain, signals, TLS."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bedplate.config.tree import Config, ServiceConfig
from bedplate.core.events import CardDraining
from bedplate.engines.base import Delta
from bedplate.errors import ConfigError
from bedplate.gateway.server import GatewayServer, serve
from tests.fakes.certificates import Authority
from tests.fakes.gateway_world import CHAT, World, body, gateway_world, http, until
from tests.fakes.talking_engine import Script


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        yield made


# Operators, health, metrics, drain.


async def test_an_operator_drains_a_card_and_brings_it_back(world: World) -> None:
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


async def test_draining_the_last_card_of_a_model_warns(world: World) -> None:
    world.view.draining = True
    async with http(world, world.operator) as client:
        async with client.post("/v1/admin/cards/card-0/drain") as response:
            assert "No card of m is in" in (await response.json())["warning"]
        async with client.post("/v1/admin/cards/card-0/undrain") as response:
            assert "warning" not in await response.json()


async def test_metrics_name_tenants_and_never_sessions(world: World) -> None:
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


async def test_readiness_follows_the_runtime(world: World) -> None:
    world.runtime.is_ready = False
    async with http(world) as client, client.get("/readyz") as response:
        assert response.status == 503


async def test_a_drain_refuses_new_calls_and_lets_running_ones_end(world: World) -> None:
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


async def test_stopping_cuts_what_still_runs(tmp_path: Path) -> None:
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
async def test_a_signal_drains_and_a_second_one_cuts(tmp_path: Path, signals: int) -> None:
    async with gateway_world(tmp_path, starts=False) as world:
        gate = asyncio.Event()
        world.engine.scripts.append(Script((Delta("Hel", tokens=1), gate, Delta("lo", tokens=1))))
        ports: list[int] = []
        told: list[str] = []
        serving = asyncio.create_task(
            serve(
                world.server,
                world.gateway,
                world.runtime,
                drain_s=30,
                started=ports.append,
                draining=lambda: told.append("draining"),
            )
        )
        await until(lambda: ports)
        assert told == []
        async with http(world) as client:
            running = await client.post(CHAT, json=body(stream=True))
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: world.parts.draining)
            assert told == ["draining"]
            async with client.get("/readyz") as response:
                assert response.status == 503
            if signals == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                last = (await running.text()).strip().split("\n\n")[-1]
                assert last.startswith('data: {"error":')
                assert '"draining"' in last
                await asyncio.wait_for(serving, 5)
            else:
                gate.set()
                assert "[DONE]" in await running.text()
                await asyncio.wait_for(serving, 5)
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.1", ports[0])


async def test_a_port_in_use_and_missing_tls_files_are_configuration_errors(
    world: World, tmp_path: Path
) -> None:
    faults: tuple[dict[str, Any], ...] = (
        {"port": world.server.port},
        {"port": 0, "tls_cert": tmp_path / "a.pem", "tls_key": tmp_path / "b.pem"},
    )
    for options in faults:
        config = Config(service=ServiceConfig(data_dir=tmp_path, **options))
        with pytest.raises(ConfigError):
            await GatewayServer(world.gateway, config).start()


async def test_tls_serves_the_same_api(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    async with gateway_world(tmp_path, tls_cert=certificate, tls_key=key) as world:
        context = ssl.create_default_context(cafile=authority.path)
        async with aiohttp.ClientSession() as client:
            url = f"https://localhost:{world.server.port}/healthz"
            async with client.get(url, ssl=context) as response:
                assert response.status == 200
