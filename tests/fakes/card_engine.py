"""A real embedded engine on the tiny model, driven turn by turn as the core would drive it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bedplate.core.events import Event
from bedplate.core.ids import (
    BranchId,
    CardId,
    EntryId,
    ModelId,
    SessionId,
    SlotId,
    TenantId,
    TurnId,
)
from bedplate.engines.base import ChatRequest, Delta, Finished, Lineage, Output, Started, TurnRun
from bedplate.engines.llamacpp.engine import LlamaCppEngine
from bedplate.engines.llamacpp.settings import Settings
from bedplate.pool import KvPool


def lineage(session: str, *, branch: int = 0, fork_of: int = -1, tenant: str = "acme") -> Lineage:
    """Return the place of a turn."""
    return Lineage(TenantId(tenant), SessionId(session), BranchId(branch), fork_of, 0)


def card(index: int) -> CardId:
    """Return the id of a card of this engine."""
    return CardId(f"tiny-{index}")


def user(text: str) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": text}


@dataclass(slots=True)
class Result:
    """All that one turn gave."""

    prompt_tokens: int
    reuse_tokens: int
    outputs: list[Output]

    @property
    def text(self) -> str:
        """The content, put together from deltas."""
        return "".join(output.content for output in self.outputs if isinstance(output, Delta))

    @property
    def tokens(self) -> int:
        """Tokens of the deltas."""
        return sum(output.tokens for output in self.outputs if isinstance(output, Delta))

    @property
    def started(self) -> Started:
        """The Started, which comes first."""
        assert isinstance(self.outputs[0], Started)
        return self.outputs[0]

    @property
    def end(self) -> Finished:
        """The Finished, which comes last."""
        assert isinstance(self.outputs[-1], Finished)
        return self.outputs[-1]


@dataclass(slots=True)
class CardEngine:
    """The engine under test and what it reported."""

    engine: LlamaCppEngine
    pool: KvPool | None
    events: list[Event] = field(default_factory=list)
    turns: int = 0

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_for(self, kind: type[Any], count: int = 1, *, within_s: float = 10.0) -> Any:
        """Return the count-th event of a kind as soon as it is there."""
        async with asyncio.timeout(within_s):
            while len(self.of(kind)) < count:  # noqa: ASYNC110 - events come from many places
                await asyncio.sleep(0.01)
        return self.of(kind)[count - 1]

    async def turn_of(
        self, messages: Sequence[dict[str, Any]], place: Lineage, **more: Any
    ) -> TurnRun:
        """Prepare a turn; `card`, `slot`, `limit` and fields of ChatRequest in `more`."""
        self.turns += 1
        on, slot, limit = more.pop("card", 0), more.pop("slot", 0), more.pop("limit", 16)
        deadline_s, resume = more.pop("deadline_s", 30.0), more.pop("resume_tokens", 0)
        more.setdefault("temperature", 0.0)
        request = ChatRequest(model=ModelId("tiny"), messages=tuple(messages), **more)
        prompt = await self.engine.prepare(request, place)
        return TurnRun(
            turn=TurnId(f"t{self.turns}"),
            attempt=1,
            lineage=place,
            request=request,
            prompt=prompt,
            card=card(on),
            slot=SlotId(slot),
            limit_tokens=limit,
            expect_cached_tokens=prompt.reuse_tokens,
            loaded=False,
            resume_tokens=resume,
            deadline_s=deadline_s,
        )

    async def run(self, turn: TurnRun) -> Result:
        """Run a prepared turn to its end."""
        outputs: list[Output] = []
        async for batch in self.engine.run(turn):
            assert batch
            outputs += batch
        return Result(turn.prompt.tokens, turn.prompt.reuse_tokens, outputs)

    async def run_some(self, turn: TurnRun, tokens: int, *, linger_s: float = 0.0) -> Result:
        """Run a prepared turn, and after `tokens` of it and `linger_s` leave."""
        got = Result(turn.prompt.tokens, turn.prompt.reuse_tokens, [])
        stream = self.engine.run(turn)
        async for batch in stream:
            got.outputs += batch
            if got.tokens >= tokens:
                break
        await asyncio.sleep(linger_s)
        await stream.aclose()  # type: ignore[attr-defined]
        return got

    async def chat(self, messages: Sequence[dict[str, Any]], place: Lineage, **more: Any) -> Result:
        """Prepare and run."""
        return await self.run(await self.turn_of(messages, place, **more))

    async def store(self, place: Lineage, entry: int, *, on: int = 0, slot: int = 0) -> int:
        """Store a slot; return its tokens."""
        stored = await self.engine.store_kv(card(on), SlotId(slot), place, EntryId(entry))
        return stored.tokens

    async def load(self, place: Lineage, entry: int, *, on: int = 0, slot: int = 0) -> int:
        """Load an entry; return its tokens."""
        return await self.engine.load_kv(card(on), SlotId(slot), place, EntryId(entry))


def settings_for(model: Path, data_dir: Path, **more: Any) -> Settings:
    """Return settings that suit a test: short heartbeats, small cards."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "model": "tiny",
        "path": str(model),
        "data_dir": data_dir,
        "kv_tokens": 16_384,
        "heartbeat_seconds": 0.2,
        "orphan_seconds": 3.0,
    }
    return Settings(**{**fields, **more})


@asynccontextmanager
async def card_engine(
    model: Path, folder: Path, *, with_pool: bool = True, **more: Any
) -> AsyncIterator[CardEngine]:
    """Yield a started engine with its pool under `folder`; everything is ended after it."""
    pool = None
    if with_pool:
        pool = KvPool.open(
            folder / "pool", name="tiny", size_bytes_max=1 << 30, fallback=folder / "fallback"
        )
    world = CardEngine(LlamaCppEngine(settings_for(model, folder / "data", **more), pool), pool)
    try:
        await world.engine.start(world.events.append)
        yield world
    finally:
        await world.engine.stop()
        if pool is not None:
            pool.close()
