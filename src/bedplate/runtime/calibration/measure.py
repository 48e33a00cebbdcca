"""The rounds of one card: each measures every shape of the plan once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from bedplate.perf.profile import Batching
from bedplate.runtime.calibration.plan import SHORT_TOKENS, Plan
from bedplate.runtime.calibration.probe import Probe, Talk, Times
from bedplate.runtime.calibration.samples import (
    MoveSample,
    Samples,
    Shape,
    decode_sample,
    mixed_sample,
    prefill_sample,
)

CHUNK_GUESS = 64
"""Least tokens of a step that a prompt's neighbours must outlast, where the rule is not known."""
POLL_S = 0.001
MOVES = 3
"""Each store and load is measured so often in a round: they are short."""
LIMIT_SHARE = 1.2
"""Of the time of all rounds, where a first round that takes too long is cut."""


class _TimeIsUp(Exception):
    """A round takes too long; raised between two turns, when nothing runs."""


class CardRounds:
    """Measures one card by a plan."""

    def __init__(
        self, probe: Probe, plan: Plan, batching: Batching | None, samples: Samples
    ) -> None:
        self._probe = probe
        self._plan = plan
        self._batching = batching
        self._samples = samples
        self._told = True
        """The engine says how much of a prompt it had already; endpoints may not."""

    @property
    def tells_cached(self) -> bool:
        """False where a second turn's prompt was reported as not cached at all."""
        return self._told

    async def run(self, progress: Callable[[float], None]) -> int:
        """Measure round after round until time is up; return how many there were.

        `progress` is told the share of the time that is over.
        """
        plan = self._plan
        began = time.perf_counter()

        def step() -> None:
            share = (time.perf_counter() - began) / plan.seconds
            progress(min(1.0, share))
            if share > LIMIT_SHARE:
                raise _TimeIsUp

        for done in range(1, plan.rounds_max + 1):
            try:
                await self._round(step)
            except _TimeIsUp:
                return max(1, done - 1)
            each_s = (time.perf_counter() - began) / done
            if (done + 1) * each_s > plan.seconds:
                return done
        return plan.rounds_max

    async def _round(self, step: Callable[[], None]) -> None:
        plan = self._plan
        talks = [await self._probe.open(slot) for slot in range(plan.slots)]
        await asyncio.gather(*(self._probe.turn(talk, SHORT_TOKENS, 4) for talk in talks))
        for size in plan.batches:
            await self._batch(talks[:size], "short")
            step()
        grown = await self._grow(talks[-1], step)
        for size in plan.batches:
            await self._batch([grown, *talks[: size - 1]], "long")
            step()
        for length in plan.beside_idle:
            await self._alone(talks[0], length, ("idle", length))
            step()
        for beside, length in plan.mixed:
            await self._mixed(beside, length)
            step()
        for talk in (*talks, grown):
            await self._probe.close(talk)

    async def _batch(self, talks: Sequence[Talk], name: str) -> None:
        tokens = self._plan.out_tokens
        idle_tokens = self._probe.idle_tokens(*talks)
        turns = await asyncio.gather(
            *(self._probe.turn(talk, SHORT_TOKENS, tokens) for talk in talks)
        )
        self._samples.add((name, len(talks)), decode_sample(turns, idle_tokens))

    async def _grow(self, talk: Talk, step: Callable[[], None]) -> Talk:
        """Bring a session to its length by all shapes in order; return it as it ends."""
        talk = await self._probe.open(talk.slot)
        for at, length in enumerate(self._plan.lengths):
            await self._alone(talk, length, ("grown", at))
            if self._probe.card.kv == "full":
                await self._move(talk, at)
            if not self._told:
                talk = await self._probe.open(talk.slot)
            step()
        return talk

    async def _alone(self, talk: Talk, length: int, shape: Shape) -> None:
        """Run one turn while no other runs: its beginning and its decoding are samples."""
        first = not talk.messages
        idle_tokens = self._probe.idle_tokens(talk)
        times = await self._probe.turn(talk, length, self._plan.out_tokens)
        if first or times.cached_tokens:
            self._samples.add(shape, prefill_sample(times, idle_tokens))
        else:
            self._told = False
        self._samples.add(shape, decode_sample([times], idle_tokens))
        self._samples.ends_ns.append(times.end_ns - times.marks[-1].time_ns)

    async def _move(self, talk: Talk, at: int) -> None:
        for _ in range(MOVES):
            moved = await self._probe.move(talk)
            for kind, took_ns in (("store", moved.store_ns), ("load", moved.load_ns)):
                sample = MoveSample(kind, took_ns, moved.tokens, moved.size_bytes)
                self._samples.add((kind, at), sample)

    async def _mixed(self, beside: int, length: int) -> None:
        """Compute a prompt while others decode; those are cut off once it has its first token."""
        probe = self._probe
        chunk = self._batching.token_budget - beside if self._batching else CHUNK_GUESS
        tokens = 2 * length // max(1, chunk) + self._plan.out_tokens
        lives = [Times(0) for _ in range(beside)]
        talks = [await probe.open(slot) for slot in range(beside)]
        prompted = await probe.open(beside)
        idle_tokens = probe.idle_tokens(*talks, prompted)
        running = [
            asyncio.create_task(probe.turn(talk, SHORT_TOKENS, tokens, live=live))
            for talk, live in zip(talks, lives, strict=True)
        ]
        try:
            while not all(live.marks for live in lives):
                failed = [task for task in running if task.done()]
                if failed:
                    failed[0].result()
                    return
                await asyncio.sleep(POLL_S)
            times = await probe.turn(prompted, length, 1)
            self._samples.add((beside, length), mixed_sample(times, lives, idle_tokens))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        for talk in (*talks, prompted):
            await probe.close(talk)
