"""Calls for tests of the runtime, and what comes back from them."""

from __future__ import annotations

import asyncio
import itertools

from bedplate.core import invariants
from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.engines.base import ChatRequest, Finished, Lineage, Output, Prompt
from bedplate.runtime.service import Service
from bedplate.runtime.turns import Call, TurnStream

_numbers = itertools.count(1)


def call(
    turn: str = "",
    *,
    session: str = "s1",
    tenant: str = "acme",
    tokens: int = 100,
    reuse: int = 0,
    limit: int = 16,
    lane: int = 0,
    model: str = "m",
    resumable: bool = True,
) -> Call:
    return Call(
        turn=TurnId(turn or f"t{next(_numbers)}"),
        lineage=Lineage(TenantId(tenant), SessionId(session), BranchId(0), -1, lane),
        request=ChatRequest(
            model=ModelId(model), messages=({"role": "user", "content": "x"},), limit_tokens=limit
        ),
        prompt=Prompt(tokens, reuse, True, resumable, None),
    )


async def read_all(stream: TurnStream) -> list[Output]:
    return [output async for outputs in stream for output in outputs]


def text_of(outputs: list[Output]) -> str:
    return "".join(getattr(output, "content", "") for output in outputs)


def end_of(outputs: list[Output]) -> Finished:
    assert isinstance(outputs[-1], Finished)
    return outputs[-1]


async def settle(service: Service) -> None:
    """Return once no turn and no KV move is under way."""
    async with asyncio.timeout(10):
        while True:
            stats = service.stats()
            if not (stats.turns_live or stats.turns_running or stats.slots_busy or stats.kv_moves):
                return
            await asyncio.sleep(0.001)


def at_rest(service: Service) -> None:
    """F08: nothing is left of turns that have ended."""
    stats = service.stats()
    assert (stats.turns_live, stats.turns_running, stats.slots_busy, stats.kv_moves) == (0, 0, 0, 0)
    invariants.check(service.base)
