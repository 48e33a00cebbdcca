"""Play the demonstration's agents against a service, and take a card out in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from bedplate.core import view
from bedplate.core.events import CardDraining
from bedplate.core.ids import CardId
from bedplate.demo.agents import Agent, AgentSettings, SessionResult, TurnResult
from bedplate.demo.scripts import Department, Script
from bedplate.runtime.service import Service

START_GAP_S = 0.5
"""Between the first calls of two sessions: agents do not all start in one instant."""


@dataclass(slots=True)
class Progress:
    """What has happened so far, for whoever watches. `card` is the one that is taken out."""

    sessions: int
    turns: int
    turns_done: int = 0
    sessions_done: int = 0
    card: str = ""
    notes: list[str] = field(default_factory=list)
    last: dict[str, TurnResult] = field(default_factory=dict)


class Demonstration:
    """One run: every script of every department once, and one card drained and put back.

    The card goes out after the fraction `drain_at` of all turns and comes back after `undrain_at`.
    """

    drain_at = 0.4
    undrain_at = 0.7

    def __init__(
        self,
        service: Service,
        departments: Sequence[Department],
        keys: Mapping[str, str],
        settings: AgentSettings,
    ) -> None:
        """Prepare a run; `keys` are secrets by tenant."""
        self._service = service
        self._settings = settings
        self._keys = keys
        scripts = [department.scripts for department in departments]
        # One of each department after another, so that lanes mix from the start.
        self._scripts = [script for row in zip(*scripts, strict=True) for script in row]
        turns = sum(1 + len(script.steps) for script in self._scripts)
        self.progress = Progress(len(self._scripts), turns)

    async def play(self) -> list[SessionResult]:
        """Play all sessions; returns when the last one has ended."""
        async with aiohttp.ClientSession() as client:
            plays = [
                self._session(client, index, script) for index, script in enumerate(self._scripts)
            ]
            return list(await asyncio.gather(*plays))

    async def _session(
        self, client: aiohttp.ClientSession, index: int, script: Script
    ) -> SessionResult:
        await asyncio.sleep(index * START_GAP_S)
        agent = Agent(
            client,
            self._settings,
            script,
            key=self._keys[script.tenant],
            named=index % 2 == 0,
            on_turn=self._turn_done,
        )
        result = await agent.play()
        self.progress.sessions_done += 1
        return result

    def _turn_done(self, script: Script, result: TurnResult) -> None:
        progress = self.progress
        progress.turns_done += 1
        progress.last[f"{script.tenant}/{script.id}"] = result
        share = progress.turns_done / progress.turns
        if not progress.card and share >= self.drain_at:
            progress.card = self._busiest_card()
            self._service.post(CardDraining(CardId(progress.card), on=True))
            progress.notes.append(f"{progress.card} is taken out; its sessions move")
        elif progress.card and len(progress.notes) == 1 and share >= self.undrain_at:
            self._service.post(CardDraining(CardId(progress.card), on=False))
            progress.notes.append(f"{progress.card} is back in service")

    def _busiest_card(self) -> str:
        cards = view.cards(self._service.base)
        return max(cards, key=lambda card: (card.slots_held, card.card)).card
