"""The cards of one engine: made together, reported to the core, counted.

The core hears CardUp for each card when it is ready, CardDown at once when its process is gone, and
a CardReport with the server's own counters at every heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bedplate.core.events import CardDown, CardReport, CardUp, Event
from bedplate.core.ids import CardId, ModelId
from bedplate.engines.llamacpp.card import Card
from bedplate.engines.llamacpp.ledger import Ledger
from bedplate.engines.llamacpp.model import Model
from bedplate.engines.llamacpp.settings import Settings
from bedplate.errors import BedplateError, ConfigError, EngineLost, EngineTimeout, NoEngine

_LOG = logging.getLogger(__name__)

EMBED_TOKENS = 2048
"""Longest input of an embedding."""
LAST_REPORT_SECONDS = 2.0
"""Longest wait for the reports of all cards before they end."""


TOKENIZE_SECONDS = 1.0
"""How long one card is waited for before another is asked, and longer for a long text."""
TOKENIZE_CHARACTERS_PER_SECOND = 40_000
"""What a card counts at least, on a busy core and with a vocabulary of 262,000."""


class Fleet:
    """All cards of one engine, and its embedder where the settings ask for one."""

    def __init__(
        self,
        settings: Settings,
        model: Model,
        *,
        slot_folder: Path | None,
        sink: Callable[[Event], None],
        is_out: Callable[[CardId], bool],
    ) -> None:
        self.cards: dict[CardId, Card] = {}
        self.ledgers: dict[CardId, Ledger] = {}
        self.embedder: Card | None = None
        self._settings = settings
        self._model = model
        self._kv = "none" if slot_folder is None else "full"
        self._sink = sink
        self._is_out = is_out
        self._reporting: asyncio.Task[None] | None = None
        self._lock = -1
        for index in range(settings.cards):
            card_id = CardId(f"{settings.name}-{index}")
            self.cards[card_id] = Card(
                card_id,
                replace(settings, embeddings=False),
                model,
                slot_folder=slot_folder,
                on_up=self._card_up,
                on_down=self._card_down,
            )
        if settings.embeddings:
            # A process of its own: on a card, an embedding would take a slot and what it holds.
            tokens = min(EMBED_TOKENS, model.context_tokens)
            self.embedder = Card(
                CardId(f"{settings.name}-embed"),
                replace(settings, slots=1, kv_tokens=tokens, batch_tokens=tokens),
                model,
                slot_folder=None,
                on_up=_nothing,
                on_down=_nothing,
            )

    async def start(self) -> None:
        """Bring all cards up, in parallel; adopt those that still run.

        Raises:
            ConfigError: another gateway has this engine's cards.
            EngineError: a card does not start; those that did are stopped again.
        """
        self._lock = self._take_lock()
        try:
            async with asyncio.TaskGroup() as group:
                for card in self._all():
                    group.create_task(card.start())
        except BaseExceptionGroup as errors:
            await self.stop()
            first = errors.exceptions[0]
            raise first from first.__cause__
        self._reporting = asyncio.create_task(self._report())

    async def stop(self) -> None:
        """Send the last CardReports and end all cards, those that were adopted too."""
        await self._stop_reports()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_REPORT_SECONDS):
                await asyncio.gather(*(self._send_report(card) for card in self.cards.values()))
        await asyncio.gather(*(card.stop() for card in self._all()))
        self._give_lock()

    async def abandon(self) -> None:
        """Let go of all cards without ending them, as a killed gateway does (drills and tests)."""
        await self._stop_reports()
        await asyncio.gather(*(card.abandon() for card in self._all()))
        self._give_lock()

    async def tokenize(self, content: Sequence[str | int], *, add_special: bool) -> list[int]:
        """Return token ids, from a card that answers: one that is silent holds up nobody.

        A card that is taken out is asked where none that is in answers readily.

        Raises:
            NoEngine: no card is up.
            EngineError: none of those that are up answered.
        """
        cards = sorted((card for card in self.cards.values() if card.up), key=self._reluctance)
        if not cards:
            raise NoEngine(f"no card of model {self._settings.model} is up", retry_after_s=2.0)
        size = sum(len(piece) for piece in content if isinstance(piece, str))
        patience = TOKENIZE_SECONDS + size / TOKENIZE_CHARACTERS_PER_SECOND
        for card in cards[:-1]:
            try:
                async with asyncio.timeout(patience):
                    return await card.server().tokenize(content, add_special=add_special)
            except (TimeoutError, EngineLost, EngineTimeout):
                card.silent = True
                _LOG.info(
                    "card %s did not count %d characters within %.1f s; another is asked",
                    card.id, size, patience,
                )  # fmt: skip
        return await cards[-1].server().tokenize(content, add_special=add_special)

    async def measure(self, card: Card) -> CardReport:
        """Return what a card holds and has done, by its server's own counters."""
        client = card.server()
        slots = await client.slots()
        totals = self.ledgers[card.id].totals(await client.counters())
        return CardReport(
            card=card.id,
            kv_used_tokens=sum(int(slot.get("n_prompt_tokens", 0)) for slot in slots),
            running=totals.running,
            prompt_tokens_total=totals.prompt_tokens,
            cached_tokens_total=totals.cached_tokens,
            out_tokens_total=totals.out_tokens,
        )

    def _reluctance(self, card: Card) -> tuple[bool, bool]:
        """Return the key by which cards are asked: those that are heard first, of them those in."""
        return card.silent, self._is_out(card.id)

    def _all(self) -> list[Card]:
        return [*self.cards.values(), *([self.embedder] if self.embedder else [])]

    def _card_up(self, card: Card) -> None:
        model, settings = self._model, self._settings
        self.ledgers[card.id] = Ledger(card.base)
        context = min(settings.context_tokens or settings.kv_tokens, settings.kv_tokens)
        self._sink(
            CardUp(
                card=card.id,
                model=ModelId(settings.model),
                partition=settings.partition,
                kv=self._kv,
                can_cut=model.can_cut,
                slots=settings.slots,
                running_max=settings.running_max,
                kv_tokens=settings.kv_tokens,
                context_tokens=min(context, model.context_tokens),
                kv_bytes_per_token=model.kv_bytes_per_token,
                prompt_streams=settings.prompt_streams,
                running_busy=settings.running_busy,
            )
        )

    def _card_down(self, card: Card, reason: str) -> None:
        _LOG.warning("card %s is down: %s; its log is %s", card.id, reason, card.log_path)
        self._sink(CardDown(card.id, reason))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_seconds)
            for card in self.cards.values():
                await self._send_report(card)

    async def _send_report(self, card: Card) -> None:
        if not card.up:
            return
        try:
            self._sink(await self.measure(card))
        except BedplateError as error:
            _LOG.info("card %s gave no report: %s", card.id, error.message)

    async def _stop_reports(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
            self._reporting = None

    def _take_lock(self) -> int:
        """Hold the engine's cards for this process: two gateways must not drive the same ones."""
        folder = self._settings.data_dir / "cards"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / f"{self._settings.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise ConfigError(
                f"engine {self._settings.name}: another gateway uses {self._settings.data_dir}; "
                "stop it, or set another data directory"
            ) from error
        return descriptor

    def _give_lock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _nothing(*_about: object) -> None:
    """Take what the embedder's card reports: it is no card of the core."""
