"""A gateway on a real server on loopback, with keys for two tenants, around a fake runtime."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai

from bedplate.config.tree import Config, ServiceConfig
from bedplate.core.limits import BATCH, INTERACTIVE
from bedplate.gateway.answers import Answers
from bedplate.gateway.app import Gateway, make_gateway
from bedplate.gateway.audit import TurnedAway
from bedplate.gateway.bodies import BodyRoom
from bedplate.gateway.contents import ContentBook
from bedplate.gateway.door import Door
from bedplate.gateway.http import Pacer
from bedplate.gateway.idempotency import IdempotencyTable
from bedplate.gateway.keys import KeyStore
from bedplate.gateway.metrics import Counts
from bedplate.gateway.parts import Parts
from bedplate.gateway.recognition import Recogniser
from bedplate.gateway.server import GatewayServer
from bedplate.gateway.words import Words
from tests.fakes.talking_engine import FakeRuntime, FakeView, TalkingEngine

USER: Any = {"role": "user", "content": "hi"}
CHAT = "/v1/chat/completions"


@dataclass
class World:
    engine: TalkingEngine
    runtime: FakeRuntime
    view: FakeView
    parts: Parts
    gateway: Gateway
    server: GatewayServer
    keys: KeyStore
    acme: str
    """Key of tenant acme: interactive and batch."""
    rival: str
    """Key of tenant rival: batch only."""
    operator: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def client(self, key: str | None = None, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=self.url + "/v1", api_key=key or self.acme, max_retries=0, **options
        )

    def notes(self, kind: str) -> list[dict[str, Any]]:
        return [body for found, _, _, body in self.runtime.notes if found == kind]


@contextlib.asynccontextmanager
async def gateway_world(
    folder: Path, *, keeps_content: bool = True, starts: bool = True, **service: Any
) -> AsyncIterator[World]:
    engine = TalkingEngine()
    runtime, view = FakeRuntime(engine), FakeView()
    config = Config(service=ServiceConfig(port=0, data_dir=folder, **service))
    with KeyStore(folder / "keys.db") as keys:
        now = runtime.now_ns()
        acme = keys.add("acme", now_ns=now, lanes=(INTERACTIVE, BATCH)).secret
        rival = keys.add("rival", now_ns=now, lanes=(BATCH,)).secret
        operator = keys.add("ops", now_ns=now, admin=True).secret
        counter = itertools.count()
        parts = Parts(
            runtime=runtime,
            view=view,
            door=Door(keys),
            recogniser=Recogniser(lambda: str(next(counter))),
            idempotency=IdempotencyTable(),
            answers=Answers(runtime.contents.get),
            contents=ContentBook(),
            turned_away=TurnedAway(runtime.note),
            counts=Counts(),
            pacer=Pacer(config.service.header_wait_seconds),
            words=Words(),
            body_bytes_max=config.service.body_bytes_max,
            bodies=BodyRoom(config.service.body_bytes_max),
            keeps_content=keeps_content,
        )
        gateway = make_gateway(parts)
        server = GatewayServer(gateway, config)
        if starts:
            await server.start()
        try:
            yield World(engine, runtime, view, parts, gateway, server, keys, acme, rival, operator)
        finally:
            await server.stop()


@contextlib.asynccontextmanager
async def http(world: World, key: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"authorization": f"Bearer {key or world.acme}"}
    async with aiohttp.ClientSession(world.url, headers=headers) as session:
        yield session


def body(**fields: Any) -> dict[str, Any]:
    """Return the smallest chat completion request, with these fields."""
    return {"model": "m", "messages": [USER], **fields}


async def until(true: Callable[[], object], *, within_s: float = 5.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.005)
