"""Turns and moves on one card, with their times: what the service would ask of the engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from bedplate.core.events import CardUp
from bedplate.core.ids import BranchId, EntryId, SessionId, SlotId, TenantId, TurnId
from bedplate.core.limits import SHARED
from bedplate.engines.base import (
    ChatRequest,
    Delta,
    Engine,
    Finished,
    JsonObject,
    Lineage,
    Output,
    Started,
    StoredPrefix,
    TurnRun,
)
from bedplate.errors import EngineProtocolError
from bedplate.pool import KvPool

TENANT = TenantId("calibration")
DEADLINE_S = 120.0
"""Longest turn; the plan makes turns of a few seconds."""
WORDS = (
    "account adviser amount answer bank bond branch bridge client clock corner country customer "
    "deposit desk doctor engine evening field figure garden harbour house invoice island journey "
    "kitchen ladder ledger letter limit machine market meeting minute morning mountain number "
    "office paper payment picture portfolio price queue reason record report river room school "
    "season share silver statement station stone street summer supplier table teacher ticket "
    "transfer valley village visit voice water window winter yesterday"
)
ASK = "Tell a very long story about: "
"""Endpoints that cannot be told to go on past the end of an answer are asked for a long one."""


class Mark(NamedTuple):
    """So many tokens of an answer were here at this time."""

    time_ns: int
    tokens: int


@dataclass(slots=True)
class Times:
    """One turn as it was seen. Token counts are the engine's own; complete once `end_ns` is set."""

    sent_ns: int
    started_ns: int = 0
    end_ns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    out_tokens: int = 0
    marks: list[Mark] = field(default_factory=list)

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that were computed."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(slots=True, eq=False)
class Talk:
    """A session that grows on one slot, which holds so many tokens of it."""

    session: SessionId
    slot: SlotId
    messages: list[JsonObject] = field(default_factory=list)
    held_tokens: int = 0

    @property
    def lineage(self) -> Lineage:
        """Its place: one branch."""
        return Lineage(TENANT, self.session, BranchId(0), -1, SHARED)


class Moved(NamedTuple):
    """A slot stored, dropped and loaded again."""

    tokens: int
    size_bytes: int
    store_ns: int
    load_ns: int


class Probe:
    """Drives one card. Sessions and texts differ from probe to probe and from talk to talk."""

    def __init__(self, engine: Engine, pool: KvPool | None, card: CardUp, *, seed: int) -> None:
        self.card = card
        self._engine = engine
        self._pool = pool
        self._random = random.Random(f"{card.card}:{seed}")
        self._vocabulary = WORDS.split()
        self._made = 0
        self._on_slot: dict[SlotId, Talk] = {}
        self._message_tokens = 10.0
        self._word_tokens = 1.5
        params = engine.capabilities
        self._goes_on = params.passes_unknown or "ignore_eos" in params.params

    async def learn_words(self) -> Times:
        """Find out how many tokens a word takes, by two turns; return the longer one's times."""
        few, many = 8, 72
        seen = []
        for count in (few, many):
            talk = await self.open(0)
            seen.append(await self._run(talk, self._words(count), out_tokens=8))
            await self.close(talk)
        self._word_tokens = max(
            0.25, (seen[1].prompt_tokens - seen[0].prompt_tokens) / (many - few)
        )
        self._message_tokens = max(0.0, seen[0].prompt_tokens - few * self._word_tokens)
        return seen[1]

    async def open(self, slot: int) -> Talk:
        """Begin a session on an empty slot; what was there is dropped."""
        held = self._on_slot.get(SlotId(slot))
        if held is not None:
            await self.close(held)
        self._made += 1
        name = f"{self.card.card}-{self._random.getrandbits(32):08x}-{self._made}"
        talk = Talk(SessionId(name), SlotId(slot))
        self._on_slot[talk.slot] = talk
        return talk

    async def close(self, talk: Talk) -> None:
        """End a session and empty its slot."""
        if self._on_slot.get(talk.slot) is talk:
            del self._on_slot[talk.slot]
            if self.card.kv == "full":
                await self._engine.drop_kv(self.card.card, talk.slot)
        await self._engine.forget(talk.session)

    def idle_tokens(self, *running: Talk) -> int:
        """Return the KV tokens that the card's other slots hold."""
        return sum(talk.held_tokens for talk in self._on_slot.values() if talk not in running)

    async def turn(
        self, talk: Talk, new_tokens: int, out_tokens: int, *, live: Times | None = None
    ) -> Times:
        """Run one turn that brings about so many new prompt tokens.

        Args:
            talk: The session; its messages grow by the question and the answer.
            new_tokens: What the question should come to; `Times.new_tokens` is what it did.
            out_tokens: Length of the answer, where the model does not end it before.
            live: Filled while the turn runs, for who wants to see it before its end.
        """
        words = max(1, round((new_tokens - self._message_tokens) / self._word_tokens))
        return await self._run(talk, self._words(words), out_tokens, live=live)

    async def move(self, talk: Talk) -> Moved:
        """Store the idle slot, drop it and load it again; the pool is empty after it."""
        engine, card, slot = self._engine, self.card.card, talk.slot
        assert self._pool is not None
        entry = EntryId(self._random.getrandbits(48))
        before_ns = time.perf_counter_ns()
        stored = await engine.store_kv(card, slot, talk.lineage, entry)
        stored_ns = time.perf_counter_ns()
        await engine.drop_kv(card, slot)
        dropped_ns = time.perf_counter_ns()
        tokens = await engine.load_kv(card, slot, talk.lineage, entry)
        loaded_ns = time.perf_counter_ns()
        await asyncio.to_thread(self._pool.drop, entry)
        if tokens != stored.tokens:
            raise EngineProtocolError(
                f"card {card} stored {stored.tokens} tokens of slot {slot} and loaded {tokens}"
            )
        return Moved(tokens, stored.size_bytes, stored_ns - before_ns, loaded_ns - dropped_ns)

    def _words(self, count: int) -> str:
        """Return a text that no earlier one begins with, so that no cache has it."""
        words = [f"{self._random.getrandbits(24):06x}"] if count > 1 else []
        words += self._random.choices(self._vocabulary, k=count - len(words))
        return " ".join(words)

    async def _run(
        self, talk: Talk, text: str, out_tokens: int, *, live: Times | None = None
    ) -> Times:
        if not self._goes_on:
            text = ASK + text
        talk.messages.append({"role": "user", "content": text})
        request = ChatRequest(
            model=self._engine.model,
            messages=tuple(talk.messages),
            extra={"ignore_eos": True} if self._goes_on else {},
        )
        prompt = await self._engine.prepare(request, talk.lineage)
        self._made += 1
        turn = TurnRun(
            turn=TurnId(f"{talk.session}-{self._made}"),
            attempt=1,
            lineage=talk.lineage,
            request=request,
            prompt=prompt,
            card=self.card.card,
            slot=talk.slot,
            limit_tokens=out_tokens,
            expect_cached_tokens=prompt.reuse_tokens,
            loaded=False,
            resume_tokens=0,
            deadline_s=DEADLINE_S,
        )
        times = live or Times(0)
        times.sent_ns = time.perf_counter_ns()
        async for outputs in self._engine.run(turn):
            _note(times, outputs, time.perf_counter_ns())
            last = outputs[-1]
            if isinstance(last, Finished):
                talk.messages.append(last.message)
                talk.held_tokens = last.prompt_tokens + last.out_tokens - 1
        if not times.marks:
            raise EngineProtocolError(
                f"card {self.card.card} ended an answer without a token; nothing can be timed"
            )
        return times


def _note(times: Times, outputs: Sequence[Output], now_ns: int) -> None:
    tokens = times.marks[-1].tokens if times.marks else 0
    before = tokens
    for output in outputs:
        match output:
            case StoredPrefix():
                pass  # it moves KV on its way; the time is the prompt's
            case Started():
                times.started_ns = now_ns
                times.prompt_tokens = output.prompt_tokens
                times.cached_tokens = output.cached_tokens
            case Delta():
                tokens += output.tokens
            case Finished():
                times.end_ns = now_ns
                times.prompt_tokens = output.prompt_tokens
                times.cached_tokens = output.cached_tokens
                times.out_tokens = output.out_tokens
                tokens = max(tokens, output.out_tokens)  # some may have had no text to show
            case _:
                assert_never(output)
    if tokens > before:
        times.marks.append(Mark(now_ns, tokens))
