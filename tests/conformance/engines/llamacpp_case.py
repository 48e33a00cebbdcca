"""The embedded engine in the suite: real cards on a tiny random model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conformance.engines.cases import Case
from tests.fakes import tiny_gguf
from tests.fakes.card_engine import card_engine


@asynccontextmanager
async def open_case(tmp_path: Path) -> AsyncIterator[Case]:
    """Start one engine with its cards."""
    async with card_engine(tiny_gguf.write(tmp_path / "tiny.gguf"), tmp_path) as started:
        yield Case(started.engine, started.events)
