from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from bedplate.config import Config
from bedplate.journal import Journal
from bedplate.pool import KvPool
from bedplate.runtime.service import Service
from tests.fakes.scripted_engine import ScriptedEngine

Start = Callable[..., Awaitable[Service]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start services over one data folder, one after the other; stops the last one at the end."""
    made: list[Service] = []

    async def make(*engines: ScriptedEngine, config: Config | None = None) -> Service:
        journal = Journal.open(tmp_path / "journal", origin="test")
        pool = KvPool.open(
            tmp_path / "pool", name="test", size_bytes_max=10_000_000, fallback=tmp_path / "disk"
        )
        service = Service(config or Config(), engines, pool, journal)
        await service.start()
        made.append(service)
        return service

    yield make
    for service in made:
        await service.stop()
