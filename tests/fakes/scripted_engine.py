"""An engine in this process that does what a test tells it, one step at a time.

It keeps KV "full" when asked to: slots and pool entries are token counts in dicts, so a test can
ask what is where. A run follows the `Script` given for its turn, or the default one. A script's
`gate` is an event that the test sets; nothing here sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from bedplate.core.events import CardDown, CardUp, Event
from bedplate.core.ids import CardId, EntryId, ModelId, SessionId, SlotId, TurnId
from bedplate.engines.base import (
    Capabilities,
    ChatRequest,
    Delta,
    Embeddings,
    Finished,
    Lineage,
    Output,
    Prompt,
    Started,
    StoredKv,
    TurnRun,
    none_out,
)
from bedplate.errors import PoolError


@dataclass
class Script:
    """What a run does: start, give pieces (one token each), wait where told, end or raise."""

    pieces: tuple[str, ...] = ("a", "b", "c")
    finish: str = "stop"
    gate: asyncio.Event | None = None
    """Waited for after the first piece."""
    before: asyncio.Event | None = None
    """Waited for before Started."""
    error: BaseException | None = None
    """Raised after the pieces, in place of Finished."""
    ignore_cancel: asyncio.Event | None = None
    """A run that is told to stop goes on until this is set."""
    batch: bool = False
    """Everything in one sequence."""


@dataclass
class Card:
    name: CardId
    slots: int = 4
    kv_tokens: int = 4096
    held: dict[SlotId, int] = field(default_factory=dict)


class ScriptedEngine:
    def __init__(
        self, *, cards: int = 1, model: str = "m", kv: str = "full", resumable: bool = True
    ):
        self.name = model
        self.model = ModelId(model)
        self.capabilities = Capabilities(kv=kv, embeddings=True, resumable=resumable)
        self.cards = {CardId(f"{model}-{i}"): Card(CardId(f"{model}-{i}")) for i in range(cards)}
        self.running_max = 2
        self.scripts: dict[TurnId, list[Script]] = {}
        self.default = Script()
        self.runs: list[TurnRun] = []
        self.active: set[tuple[CardId, SlotId]] = set()
        self.stored: dict[EntryId, int] = {}
        self.forgotten: list[SessionId] = []
        self.closed_runs = 0
        self.moves: list[tuple[str, CardId, SlotId]] = []
        self.store_gate: asyncio.Event | None = None
        self.sink: Callable[[Event], None] | None = None
        self.is_out: Callable[[CardId], bool] = none_out
        self.problems: dict[CardId, str] = {}

    async def start(
        self, sink: Callable[[Event], None], is_out: Callable[[CardId], bool] = none_out
    ) -> None:
        self.sink, self.is_out = sink, is_out
        for card in self.cards:
            self.up(card)

    def up(self, name: CardId) -> None:
        card = self.cards[name]
        card.held.clear()
        self.tell(
            CardUp(
                card=name,
                model=self.model,
                partition="",
                kv=self.capabilities.kv,
                can_cut=True,
                slots=card.slots,
                running_max=self.running_max,
                kv_tokens=card.kv_tokens,
                context_tokens=card.kv_tokens,
                kv_bytes_per_token=100,
            )
        )

    def down(self, name: CardId) -> None:
        self.tell(CardDown(name, "test"))

    def tell(self, event: Event) -> None:
        assert self.sink is not None
        self.sink(event)

    async def stop(self) -> None:
        return None

    async def prepare(self, request: ChatRequest, lineage: Lineage) -> Prompt:
        tokens = sum(len(str(m.get("content", ""))) for m in request.messages)
        return Prompt(tokens, 0, True, self.capabilities.resumable, None)

    async def run(self, turn: TurnRun) -> AsyncIterator[Sequence[Output]]:
        self.runs.append(turn)
        scripts = self.scripts.get(turn.turn)
        script = scripts.pop(0) if scripts else self.default
        place = (turn.card, turn.slot)
        assert place not in self.active, "two runs on one slot"
        self.active.add(place)
        try:
            async for outputs in self._follow(turn, script):
                yield outputs
        except (asyncio.CancelledError, GeneratorExit):
            while script.ignore_cancel is not None and not script.ignore_cancel.is_set():
                await script.ignore_cancel.wait()
            raise
        finally:
            self.active.discard(place)
            self.closed_runs += 1

    async def _follow(self, turn: TurnRun, script: Script) -> AsyncIterator[Sequence[Output]]:
        if script.before is not None:
            await script.before.wait()
        prompt = turn.prompt.tokens + turn.resume_tokens
        cached = turn.expect_cached_tokens
        out: list[Output] = [Started(prompt, cached)]
        out += [Delta(content=piece, tokens=1) for piece in script.pieces]
        text = turn.delivered + "".join(script.pieces)
        kv_tokens = prompt + len(script.pieces)
        if script.error is None:
            self.cards[turn.card].held[turn.slot] = kv_tokens
            out.append(
                Finished(
                    finish_reason=script.finish,
                    prompt_tokens=prompt,
                    cached_tokens=cached,
                    out_tokens=turn.resume_tokens + len(script.pieces),
                    kv_tokens=kv_tokens,
                    exact=True,
                    message={"role": "assistant", "content": text},
                )
            )
        if script.batch:
            yield out
            return
        for count, item in enumerate(out):
            if count == 2 and script.gate is not None:
                await script.gate.wait()
            if isinstance(item, Delta):
                self.cards[turn.card].held[turn.slot] = prompt + count
            yield [item]
        if script.error is not None:
            raise script.error

    async def store_kv(
        self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId
    ) -> StoredKv:
        self.moves.append(("store", card, slot))
        assert (card, slot) not in self.active
        if self.store_gate is not None:
            await self.store_gate.wait()
        tokens = self.cards[card].held[slot]
        self.stored[entry] = tokens
        return StoredKv(tokens, 100 * tokens)

    async def load_kv(self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId) -> int:
        self.moves.append(("load", card, slot))
        if entry not in self.stored:
            raise PoolError(f"entry {entry} is not there")
        self.cards[card].held[slot] = self.stored[entry]
        return self.stored[entry]

    async def drop_kv(self, card: CardId, slot: SlotId) -> None:
        self.moves.append(("drop", card, slot))
        assert (card, slot) not in self.active
        self.cards[card].held.pop(slot, None)

    async def forget(self, session: SessionId) -> None:
        self.forgotten.append(session)

    async def embed(self, inputs: Sequence[str]) -> Embeddings:
        return Embeddings(tuple((1.0,) for _ in inputs), sum(len(text) for text in inputs))
