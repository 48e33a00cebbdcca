"""Load of a session's KV from the pool against its prefill: the embedded engine with real Gemma.

Done exactly as the runtime does it: prepare, run, store on one card; load on another, then the
first turn there, whose measured `cached_tokens` must be what was loaded (the first-turn check), and
whose greedy answer must be that of the card that kept the session.

The time of a load is that of `load_kv` (owner, fingerprint, checksum, transcript, restore, count of
restored tokens) and what the first turn after it takes longer to its first token than the next one
on the same slot, which is warm then and has as many new tokens (medians of a session). The turns
themselves are no part of a load: their few new tokens are prefilled in either case. The ratio with
the whole first turn counted in is reported beside the claim.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bedplate.config.engines import EMBEDDED_MODEL, EMBEDDED_PACKAGE, PACKAGE_PREFIX
from bedplate.core.events import CardUp, Event
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
from bedplate.engines.base import (
    ChatRequest,
    Delta,
    Finished,
    JsonObject,
    Lineage,
    Prompt,
    Started,
    TurnRun,
)
from bedplate.engines.llamacpp.engine import LlamaCppEngine
from bedplate.engines.llamacpp.settings import Settings
from bedplate.pool import KvPool
from bench.harness.claims import Measured, Spec
from bench.harness.run import BenchError, Part, Run
from bench.harness.stats import Spread, spread
from bench.spine.text import long_text

TENANT = TenantId("wealth")
OUT_TOKENS = 8
SLOT = SlotId(0)
POOL_BYTES = 1 << 30
DEADLINE_S = 300.0
FULL_TOKENS, QUICK_TOKENS = 4_096, 768


class Plan(NamedTuple):
    """How much is measured: each seed is a session of its own text, prefilled once."""

    tokens: int
    sessions: int
    loads: int


class Ran(NamedTuple):
    """One turn: seconds to its first token, what the engine counted, what it said."""

    first_s: float
    started: Started
    finished: Finished
    text: str


@dataclass(slots=True)
class Times:
    """Seconds, one entry a measurement; those of loads have a list for each session.

    `firsts` and `seconds` are the turns after a load, to their first token.
    """

    prefill: list[float] = field(default_factory=list)
    store: list[float] = field(default_factory=list)
    loads: list[list[float]] = field(default_factory=list)
    firsts: list[list[float]] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    entry_bytes: list[int] = field(default_factory=list)


def measure(run: Run) -> Mapping[str, Measured]:
    """Measure on two cards and one pool in shared memory."""
    plan = Plan(QUICK_TOKENS, 1, 3) if run.quick else Plan(FULL_TOKENS, 3, 6)
    data_dir = run.cache / "kv"
    data_dir.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        name="bench",
        model=EMBEDDED_MODEL,
        path=PACKAGE_PREFIX + EMBEDDED_PACKAGE,
        data_dir=data_dir,
        cards=2,
        slots=2,
        running_max=1,
        kv_tokens=3 * plan.tokens,
    )
    pool = KvPool.open(
        None, name=f"bench-{os.getpid()}", size_bytes_max=POOL_BYTES, fallback=run.scratch / "pool"
    )
    run.config["kv"] = {
        "tokens": plan.tokens,
        "sessions": plan.sessions,
        "loads": plan.loads,
        "cards": settings.cards,
        "threads": settings.threads,
        "batch_tokens": settings.batch_tokens,
        "kv_type": settings.kv_type,
        "pool": "disk" if pool.on_disk else "shared memory",
    }
    try:
        times = asyncio.run(_Measuring(run, plan, settings, pool).run())
    finally:
        pool.close()
        shutil.rmtree(pool.folder, ignore_errors=True)
    return _claims(run, times)


class _Measuring:
    def __init__(self, run: Run, plan: Plan, settings: Settings, pool: KvPool) -> None:
        self._run = run
        self._plan = plan
        self._pool = pool
        self._engine = LlamaCppEngine(settings, pool)
        self._cards: list[CardId] = []
        self._turns = 0
        self._times = Times()

    async def run(self) -> Times:
        """Start the cards, measure every session, stop the cards."""
        self._run.say("kv: starting two cards")
        await self._engine.start(self._heard)
        try:
            for number in range(self._plan.sessions):
                await self._session(self._run.seeds[number])
        finally:
            await self._engine.stop()
        return self._times

    def _heard(self, event: Event) -> None:
        if isinstance(event, CardUp):
            self._cards.append(event.card)

    async def _session(self, seed: int) -> None:
        store_card, load_card = sorted(self._cards)
        lineage = _lineage(f"session-{seed}")
        first, prompt = await self._sized(seed, lineage)
        self._run.say(f"kv: prefilling {prompt.tokens} tokens of session {seed}")
        cold = await self._turn(first, lineage, prompt, store_card, cached_tokens=0)
        times = self._times
        times.prefill.append(cold.first_s)
        times.tokens.append(prompt.tokens)
        entry = EntryId(seed)
        began = time.perf_counter()
        stored = await self._engine.store_kv(store_card, SLOT, lineage, entry)
        times.store.append(time.perf_counter() - began)
        times.entry_bytes.append(stored.size_bytes)
        more = _next_request(first, cold)
        loads, firsts, seconds, texts = [], [], [], set()
        for branch in range(1, self._plan.loads + 1):
            # As a fork does: the branch has its parent's KV copied, so each load is like the first.
            fork = lineage._replace(branch=BranchId(branch), fork_of=0)
            next_prompt = await self._engine.prepare(more, fork)
            await self._engine.drop_kv(load_card, SLOT)
            began = time.perf_counter()
            loaded = await self._engine.load_kv(load_card, SLOT, lineage, entry)
            loads.append(time.perf_counter() - began)
            ran = await self._turn(
                more, fork, next_prompt, load_card, cached_tokens=loaded, loaded=True
            )
            firsts.append(ran.first_s)
            texts.add(ran.text)
            again = _next_request(more, ran)
            next_prompt = await self._engine.prepare(again, fork)
            kept = ran.finished.kv_tokens
            second = await self._turn(again, fork, next_prompt, load_card, cached_tokens=kept)
            seconds.append(second.first_s)
        times.loads.append(loads)
        times.firsts.append(firsts)
        times.seconds.append(seconds)
        await self._raw_restores(load_card, lineage, entry)
        fork = lineage._replace(branch=BranchId(self._plan.loads + 1), fork_of=0)
        next_prompt = await self._engine.prepare(more, fork)
        warm = await self._turn(more, fork, next_prompt, store_card, cached_tokens=stored.tokens)
        if texts != {warm.text}:
            raise BenchError(f"greedy answers differ: warm {warm.text!r}, loaded {texts}")
        await self._engine.drop_kv(store_card, SLOT)
        await self._engine.drop_kv(load_card, SLOT)
        await self._engine.forget(lineage.session)

    async def _raw_restores(self, card: CardId, lineage: Lineage, entry: EntryId) -> None:
        """Time the server's restore alone, without any of our checks."""
        opened = self._pool.open_entry(entry, None, lineage.tenant).name
        server = self._engine.fleet.cards[card].server()
        for _ in range(self._plan.loads):
            await server.erase(SLOT)
            began = time.perf_counter()
            await server.restore(SLOT, opened)
            self._times.restore.append(time.perf_counter() - began)

    async def _sized(self, seed: int, lineage: Lineage) -> tuple[ChatRequest, Prompt]:
        """Return a request of about the planned tokens; the seed says where its text begins."""
        target = self._plan.tokens
        size = target * 4
        for _ in range(8):
            request = ChatRequest(
                model=ModelId(self._engine.model),
                messages=(
                    {"role": "system", "content": long_text(seed, size)},
                    _user("What should the desk do first?"),
                ),
                temperature=0.0,
            )
            prompt = await self._engine.prepare(request, lineage)
            if abs(prompt.tokens - target) <= target // 50:
                return request, prompt
            size = size * target // prompt.tokens
        raise BenchError(
            f"no text of about {target} tokens was found, the last had {prompt.tokens}"
        )

    async def _turn(
        self,
        request: ChatRequest,
        lineage: Lineage,
        prompt: Prompt,
        card: CardId,
        *,
        cached_tokens: int,
        loaded: bool = False,
    ) -> Ran:
        self._turns += 1
        turn = TurnRun(
            turn=TurnId(f"t{self._turns}"),
            attempt=1,
            lineage=lineage,
            request=request,
            prompt=prompt,
            card=card,
            slot=SLOT,
            limit_tokens=OUT_TOKENS,
            expect_cached_tokens=cached_tokens,
            loaded=loaded,
            resume_tokens=0,
            deadline_s=DEADLINE_S,
        )
        began = time.perf_counter()
        first_s = 0.0
        started: Started | None = None
        text = ""
        async for outputs in self._engine.run(turn):
            for output in outputs:
                if isinstance(output, Started):
                    started, first_s = output, time.perf_counter() - began
                elif isinstance(output, Delta):
                    text += output.content
                elif isinstance(output, Finished):
                    assert started is not None
                    if started.cached_tokens != cached_tokens:
                        raise BenchError(
                            f"first-turn check: {started.cached_tokens} tokens were reused, "
                            f"{cached_tokens} were expected"
                        )
                    return Ran(first_s, started, output, text)
        raise BenchError("a turn did not finish")


def _lineage(session: str) -> Lineage:
    return Lineage(TENANT, SessionId(session), BranchId(0), -1, 0)


def _next_request(request: ChatRequest, ran: Ran) -> ChatRequest:
    return ChatRequest(
        model=request.model,
        messages=(*request.messages, ran.finished.message, _user("Go on.")),
        temperature=0.0,
    )


def _user(content: str) -> JsonObject:
    return {"role": "user", "content": content}


def _claims(run: Run, times: Times) -> dict[str, Measured]:
    checked, whole = [], []
    sessions = zip(times.prefill, times.loads, times.firsts, times.seconds, strict=True)
    for cold_s, loads, firsts, seconds in sessions:
        check = max(0.0, statistics.median(firsts) - statistics.median(seconds))
        checked += [cold_s / (load + check) for load in loads]
        whole += [cold_s / (load + first) for load, first in zip(loads, firsts, strict=True)]
    prefill, restore = spread(times.prefill), spread(times.restore)
    found = spread(checked)
    run.rounds["kv"] = {
        "tokens": list(times.tokens),
        "entry_bytes": list(times.entry_bytes),
        "prefill_s": list(times.prefill),
        "store_s": list(times.store),
        "load_s": [list(values) for values in times.loads],
        "first_turn_after_load_s": [list(values) for values in times.firsts],
        "second_turn_s": [list(values) for values in times.seconds],
        "raw_restore_s": list(times.restore),
    }
    run.figure("prefill, s", prefill.text(2))
    run.figure("load_kv (checksum included), ms", _ms(_all(times.loads)))
    run.figure("first turn after a load, ms", _ms(_all(times.firsts)))
    run.figure("second turn, ms", _ms(_all(times.seconds)))
    run.figure("raw restore, ms", _ms(restore))
    run.figure("raw restore against prefill", f"{prefill.median / restore.median:,.0f}×")
    run.figure("load_kv against prefill", f"{prefill.median / _all(times.loads).median:,.0f}×")
    run.figure("load with checks against prefill, repeats", found.text(0))
    run.figure("load and whole first turn against prefill", spread(whole).text(0))
    tokens = round(sum(times.tokens) / len(times.tokens))
    against = f"prefill of {tokens:,} tokens: {prefill.median:.1f} s"
    return {"kv_load_vs_prefill": Measured(found.median, found.n, against)}


def _all(sessions: list[list[float]]) -> Spread:
    return spread([value for session in sessions for value in session])


def _ms(seconds: Spread) -> str:
    median, least, most = (value * 1e3 for value in seconds[:3])
    return Spread(median, least, most, seconds.n).text()


PART = Part(
    "kv",
    (
        Spec(
            "kv_load_vs_prefill",
            "×",
            ">= 400",
            "load of a 4K-token session on another card, with all checks, against prefilling it",
        ),
    ),
    measure,
)
