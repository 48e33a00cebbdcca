"""The probe: the simplest thing that orders sessions, and what no scheduler may be worse than.

Sessions are pinned to a card. Each card runs one turn at a time, on one slot. Of the turns that
wait for it, the one of the oldest session goes first, or of the most advanced. When the slot goes
to another session its KV is stored by llama.cpp's own slot save, and loaded when that session's
next turn comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from bench.harness.run import BenchError, Run
from bench.schedule.play import Ask, Endpoint, Heard, chat
from bench.schedule.subjects import Room, plain_cards, shared_folder

OLDEST, ADVANCED = "oldest", "advanced"
EMPTY = -1


def first(order: str, waiting: Sequence[Ask]) -> int:
    """Return the place of the turn that goes first; there is one at least."""

    def key(place: int) -> tuple[float, float, int]:
        ask = waiting[place]
        return (-ask.turn if order == ADVANCED else 0, ask.began_s, ask.session)

    return min(range(len(waiting)), key=key)


@dataclass(frozen=True, slots=True)
class Probe:
    """Two plain servers, and 40 lines of order before them."""

    room: Room
    order: str = OLDEST

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"probe, {self.order} first"

    @contextmanager
    def running(self, run: Run, folder: Path, lanes: Mapping[str, int]) -> Iterator[Endpoint]:
        """Start both servers."""
        room = Room(1, self.room.kv_tokens, self.room.batch_tokens)
        with (
            shared_folder() as stored,
            plain_cards(run, folder, room, cache_mib=0, slot_folder=str(stored)) as urls,
        ):
            yield ProbeEndpoint([Lane(url, self.order) for url in urls])


@dataclass(slots=True)
class Lane:
    """One card, what waits for it, and whose KV its slot holds."""

    url: str
    order: str
    holds: int = EMPTY
    stored: set[int] = field(default_factory=set)
    waiting: list[Ask] = field(default_factory=list)
    turn: asyncio.Condition = field(default_factory=asyncio.Condition)
    busy: bool = False

    async def ask(self, http: aiohttp.ClientSession, ask: Ask) -> Heard:
        """Wait for the card, then run the turn with the session's KV."""
        async with self.turn:
            self.waiting.append(ask)
            await self.turn.wait_for(lambda: not self.busy and self._next() is ask)
            self.waiting.remove(ask)
            self.busy = True
        try:
            await self._switch(http, ask.session)
            return await chat(http, self.url, ask, {}, id_slot=0)
        finally:
            async with self.turn:
                self.busy = False
                self.turn.notify_all()

    def _next(self) -> Ask:
        return self.waiting[first(self.order, self.waiting)]

    async def _switch(self, http: aiohttp.ClientSession, session: int) -> None:
        if self.holds == session:
            return
        if self.holds != EMPTY:
            await self._slot(http, "save", self.holds)
            self.stored.add(self.holds)
        self.holds = EMPTY
        if session in self.stored:
            await self._slot(http, "restore", session)
        else:
            await self._slot(http, "erase", session)
        self.holds = session

    async def _slot(self, http: aiohttp.ClientSession, action: str, session: int) -> None:
        body = {"filename": f"s{session}"}
        async with http.post(f"{self.url}/slots/0?action={action}", json=body) as answer:
            if answer.status != 200:
                raise BenchError(f"slot {action}: {answer.status} {(await answer.text())[:200]}")


@dataclass(frozen=True, slots=True)
class ProbeEndpoint:
    """Both cards; each session has its own, in turn."""

    lanes: Sequence[Lane]

    async def ask(self, http: aiohttp.ClientSession, ask: Ask) -> Heard:
        """Ask the session's card."""
        return await self.lanes[ask.session % len(self.lanes)].ask(http, ask)
