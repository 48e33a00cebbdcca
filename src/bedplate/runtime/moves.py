"""KV between cards and pool: one task a move, one event an answer.

The core orders the moves of a slot by waiting for each answer before it asks for the next. Here a
move only waits for what still runs on its slot at the engine, such as a run that is late to stop,
and the deletion of an entry waits for a store of it that the loss of its card, or the end of the
run that was to make it, has made void.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from bedplate.core.actions import DropEntry, DropKv, LoadKv, StoreKv
from bedplate.core.events import EntryDropped, Event, KvDropped, KvFailed, KvLoaded, KvStored
from bedplate.core.ids import CardId, EntryId, SessionId, SlotId, TenantId
from bedplate.engines.base import Engine, Lineage
from bedplate.errors import BedplateError, EngineLost, EngineTimeout, PoolError
from bedplate.pool import KvPool
from bedplate.runtime.slots import SlotUse

_log = logging.getLogger(__name__)

MOVE_S = 60.0
"""Longest time of one move; a card that takes longer is treated as one that failed it."""

Move = LoadKv | StoreKv | DropKv | DropEntry
_OPS = {LoadKv: "load", StoreKv: "store", DropKv: "drop", DropEntry: "drop_entry"}


@dataclass(slots=True)
class MoveDeps:
    """What moves need of the service. `tenant_of` knows every live session."""

    post: Callable[[Event], object]
    engine_of: Callable[[CardId], Engine | None]
    tenant_of: Callable[[SessionId], TenantId]
    pool: KvPool | None
    slots: SlotUse


class Moves:
    """Carries out LoadKv, StoreKv, DropKv and DropEntry."""

    def __init__(self, deps: MoveDeps) -> None:
        self._deps = deps
        self._tasks: set[asyncio.Task[None]] = set()
        self._stores = deps.slots.stores

    @property
    def active(self) -> int:
        """Moves that have begun and are not answered."""
        return len(self._tasks)

    def start(self, move: Move) -> None:
        """Begin the move; exactly one event answers it."""
        task = asyncio.get_running_loop().create_task(self._carry(move))
        self._tasks.add(task)
        if isinstance(move, StoreKv):
            self._stores[move.entry] = task
        if not isinstance(move, DropEntry):
            self._deps.slots.enter(move.card, move.slot, task)
        task.add_done_callback(lambda done: self._done(move, done))

    def _done(self, move: Move, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if isinstance(move, StoreKv):
            del self._stores[move.entry]

    async def wait_idle(self, timeout_s: float) -> bool:
        """Return True once every move is answered, those that an answer begins too.

        False after `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Give up what is under way, without an answer."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, move: Move) -> None:
        try:
            async with asyncio.timeout(MOVE_S):
                answer = await self._perform(move)
        except TimeoutError:
            answer = _failed(move, EngineTimeout.code)
            _log.error("kv move took over %.0f s: %s", MOVE_S, move)
        except BedplateError as error:
            answer = _failed(move, error.code)
            _log.warning("kv move failed: %s: %s", move, error)
        except Exception:  # noqa: BLE001 (an adapter's bug costs the move, not the cell)
            answer = _failed(move, BedplateError.code)
            _log.exception("kv move failed: %s", move)
        self._deps.post(answer)

    async def _perform(self, move: Move) -> Event:
        deps = self._deps
        if isinstance(move, DropEntry):
            store = self._stores.get(move.entry)
            if store is not None:
                await asyncio.wait((store,))
            await self._drop_entry(move.entry)
            return EntryDropped(move.entry)
        engine = deps.engine_of(move.card)
        if engine is None:
            raise EngineLost(f"card {move.card} is not known any more")
        await deps.slots.turn_of(move.card, move.slot)
        if isinstance(move, DropKv):
            await engine.drop_kv(move.card, move.slot)
            return KvDropped(move.card, move.slot)
        tenant = deps.tenant_of(move.session)
        lineage = Lineage(tenant, move.session, move.branch, -1, 0)
        if isinstance(move, LoadKv):
            tokens = await engine.load_kv(move.card, move.slot, lineage, move.entry)
            return KvLoaded(move.card, move.slot, move.entry, tokens)
        stored = await engine.store_kv(move.card, move.slot, lineage, move.entry)
        return KvStored(move.card, move.slot, move.entry, stored.tokens, stored.size_bytes)

    async def _drop_entry(self, entry: EntryId) -> None:
        if self._deps.pool is None:
            raise PoolError(f"pool entry {entry}: there is no pool")
        await asyncio.to_thread(self._deps.pool.drop, entry)


def _failed(move: Move, code: str) -> KvFailed:
    op = _OPS[type(move)]
    if isinstance(move, DropEntry):
        return KvFailed(op, CardId(""), SlotId(0), move.entry, code)
    entry = EntryId(0) if isinstance(move, DropKv) else move.entry
    return KvFailed(op, move.card, move.slot, entry, code)
