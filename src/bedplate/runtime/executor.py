"""Runs turns at engines: one task a dispatch, outputs to the client's stream, ends to the core.

Promises, whatever an engine does:

- One dispatch is answered by exactly one TurnEnded or DispatchFailed of its attempt.
- A cancel is answered within `STOP_S`. An engine that has not stopped by then is reported as ended
  all the same; its task keeps the slot (`slots.py`), so nothing new starts there before it is gone.
- A dispatch past its deadline is stopped the same way and fails with engine_timeout, which is not
  retried: whatever hung for so long costs every card it is tried on.
- A run that waited for its client for an eighth of its time or longer ends as held when it is
  stopped: that it is late is no fault of its engine.
- A turn that is dispatched again goes on in the same stream. What an older attempt still says is
  dropped; how much was delivered is counted here, where it is known, not in the core's books.
- A turn that yielded has its prompt counted as its first run found it, however much was cached when
  it went on: it is paid for once.

Length: one dispatch, from its start to its one answer, is read in one place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bedplate.core.actions import Dispatch
from bedplate.core.events import (
    DispatchFailed,
    Event,
    KvFailed,
    KvStored,
    TokensEmitted,
    TurnEnded,
    TurnStarted,
)
from bedplate.core.ids import CardId
from bedplate.core.limits import Policy
from bedplate.core.units import MILLISECOND_NS, SECOND_NS
from bedplate.engines.base import (
    Delta,
    Finished,
    Output,
    Started,
    StoredPrefix,
    TurnRun,
)
from bedplate.errors import (
    BedplateError,
    CapacityError,
    EngineError,
    EngineLost,
    EngineProtocolError,
    EngineTimeout,
    PoolError,
)
from bedplate.runtime.clock import Clock
from bedplate.runtime.committer import Committer
from bedplate.runtime.live import LiveTurn, Run
from bedplate.runtime.outcome import of_turn, prompt_of_turn, status_of, tool_of
from bedplate.runtime.slots import SlotUse
from bedplate.runtime.turns import TurnStream

_log = logging.getLogger(__name__)

STOP_S = 0.9
BACKSTOP_S = 5.0
"""Time after the deadline, at which core and adapter stop a run, for when neither does."""
HELD_SHARE = 8
"""A run that waited for its client longer than an eighth of its time was late by the client."""
PROGRESS_TOKENS = 16
PROGRESS_NS = 250 * MILLISECOND_NS


@dataclass(slots=True)
class ExecutorDeps:
    """What the executor needs.

    `first_token(lane, ns)` counts times to first token. `together()` makes what is written in it
    one group.
    """

    post: Callable[[Event], int]
    clock: Clock
    committer: Committer
    slots: SlotUse
    first_token: Callable[[int, int], None]
    together: Callable[[], AbstractContextManager[None]]


class Executor:
    """Carries out Dispatch, CancelTurn and YieldTurn."""

    def __init__(self, deps: ExecutorDeps, policy: Policy) -> None:
        self._deps = deps
        self._policy = policy
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[Run, LiveTurn] = {}

    @property
    def running(self) -> int:
        """Dispatches that are not answered."""
        return len(self._running)

    def dispatch(self, live: LiveTurn, action: Dispatch) -> None:
        """Start an attempt; an older one of the same turn is stopped and says nothing more."""
        if live.run is not None and not live.run.over:
            self._close_books(live.run)
            self._cancel_task(live.run)
        attempt, limit, now_ns = action.attempt, action.limit_tokens, self._deps.clock.now_ns()
        run = Run(attempt, action.card, action.slot, limit, live.out_tokens, now_ns)
        run.prefix_entry = action.prefix_entry
        live.run = run
        self._running[run] = live
        loop = asyncio.get_running_loop()
        deadline_s = self._deadline_s(live, action)
        backstop_s = deadline_s + BACKSTOP_S
        run.deadline = loop.call_later(backstop_s, self._stop, live, run, "deadline")
        run.task = task = loop.create_task(self._serve(live, run, action, deadline_s))
        self._tasks.add(task)
        self._deps.slots.enter(action.card, action.slot, task)
        if action.prefix_tokens:
            self._deps.slots.stores[action.prefix_entry] = task
        task.add_done_callback(lambda done: self._task_done(live, run, done))

    def cancel(self, live: LiveTurn, attempt: int) -> None:
        """Stop this attempt if it still runs; TurnEnded(cancelled) follows within a second."""
        run = live.run
        if run is not None and run.attempt == attempt and not run.over:
            self._stop(live, run, "cancelled")

    def make_way(self, live: LiveTurn, attempt: int) -> None:
        """Stop this attempt if it can go on later; TurnEnded(yielded) follows within a second."""
        run = live.run
        again = live.call.prompt.resumable or not live.delivered
        if run is not None and run.attempt == attempt and not run.over and again:
            self._stop(live, run, "yielded")

    def report_progress(self, card: CardId) -> None:
        """Tell the core what a card's runs delivered, before it hears that the card is lost."""
        for run, live in list(self._running.items()):
            if run.card == card and live.out_tokens > run.reported_tokens:
                run.reported_tokens = live.out_tokens
                self._deps.post(TokensEmitted(live.call.turn, run.attempt, live.out_tokens))

    async def stop(self) -> None:
        """Give up everything that runs, without an answer, and wait until it is gone."""
        for run in list(self._running):
            self._close_books(run)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    def _deadline_s(self, live: LiveTurn, action: Dispatch) -> float:
        tokens = live.call.prompt.tokens + action.limit_tokens
        policy = self._policy
        return (policy.run_base_ns + policy.run_token_ns * tokens) / SECOND_NS

    async def _serve(self, live: LiveTurn, run: Run, action: Dispatch, deadline_s: float) -> None:
        try:
            await self._deps.slots.turn_of(action.card, action.slot)
            if live.delivered and not live.call.prompt.resumable:
                raise EngineLost("the engine was lost in the middle of an answer")
            await self._pump(live, run, live.engine.run(_turn_run(live, run, action, deadline_s)))
            if not run.over:
                raise EngineProtocolError(f"engine {live.engine.name} ended without a Finished")
        except asyncio.CancelledError:
            if not run.over:
                if not run.stopping:
                    raise
                self._conclude(live, run, self._stopped(live, run))
        except BedplateError as error:
            if not run.over:
                live.error = error
            self._conclude(
                live, run, self._stopped(live, run) if run.stopping else _lost(live, run, error)
            )
        except Exception as error:  # noqa: BLE001 (an adapter's bug costs the turn, not the cell)
            _log.exception("engine %s: turn %s failed", live.engine.name, live.call.turn)
            live.error = EngineError(f"engine {live.engine.name} failed: {type(error).__name__}")
            self._conclude(live, run, _lost(live, run, live.error, retryable=False))

    async def _pump(
        self, live: LiveTurn, run: Run, iterator: AsyncIterator[Sequence[Output]]
    ) -> None:
        stream = live.stream
        committer = self._deps.committer
        try:
            async for outputs in iterator:
                if committer.stalled:
                    await committer.flowing()
                if run.over:
                    continue
                if type(outputs[0]) is StoredPrefix:
                    self._stored(run, outputs[0])
                    continue
                finished = self._deliver(live, run, outputs)
                if finished is not None:
                    finished = of_turn(finished, run.delivered_before, live.first)
                    with self._deps.together():
                        if live.call.answered is not None and not stream.ended:
                            live.call.answered(finished)
                        seq = self._conclude(live, run, _ended(live, run, finished))
                    stream.finish(finished, seq)
                elif stream.full:
                    await self._room(run, stream)
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

    async def _room(self, run: Run, stream: TurnStream) -> None:
        """Wait for the client, and count the time: it is not the engine's."""
        full_ns = self._deps.clock.now_ns()
        try:
            await stream.room()
        finally:
            run.held_ns += self._deps.clock.now_ns() - full_ns

    def _deliver(self, live: LiveTurn, run: Run, outputs: Sequence[Output]) -> Finished | None:
        """Hand a batch to the stream, and what matters to the core; return the end if it is in."""
        fresh: list[Output] = []
        finished: Finished | None = None
        resumable = live.call.prompt.resumable
        for output in outputs:
            if type(output) is Delta:
                live.out_tokens += output.tokens
                live.delivered = True
                if resumable:
                    live.text.append(output.content)
                fresh.append(output)
            elif type(output) is Started:
                if self._start(live, run, output):
                    fresh.append(output)
            else:
                assert isinstance(output, Finished)
                finished = output
        if run.started is None:
            raise EngineProtocolError(f"engine {live.engine.name} answered before it started")
        if fresh:
            live.stream.push(fresh)
        if finished is None and live.out_tokens - run.reported_tokens >= PROGRESS_TOKENS:
            now_ns = self._deps.clock.now_ns()
            if now_ns - run.reported_ns >= PROGRESS_NS:
                run.reported_tokens = live.out_tokens
                run.reported_ns = now_ns
                self._deps.post(TokensEmitted(live.call.turn, run.attempt, live.out_tokens))
        return finished

    def _stored(self, run: Run, stored: StoredPrefix) -> None:
        """Tell the core that the pool has the run's opening, or that it has not."""
        del self._deps.slots.stores[run.prefix_entry]
        card, slot, entry = run.card, run.slot, run.prefix_entry
        if stored.tokens:
            self._deps.post(KvStored(card, slot, entry, stored.tokens, stored.size_bytes))
        else:
            self._deps.post(KvFailed("store", card, slot, entry, PoolError.code))

    def _start(self, live: LiveTurn, run: Run, started: Started) -> bool:
        """Note that prefill is done; True when the client has not heard it yet."""
        run.started = started
        run.reported_tokens = live.out_tokens
        run.reported_ns = self._deps.clock.now_ns()
        stream = live.stream
        first = stream.started_ns == 0
        if first:
            stream.started_ns = run.reported_ns
            self._deps.first_token(live.call.lineage.lane, run.reported_ns - stream.arrival_ns)
        turn = live.call.turn
        self._deps.post(
            TurnStarted(turn, run.attempt, started.prompt_tokens, started.cached_tokens)
        )
        return first

    def _conclude(self, live: LiveTurn, run: Run, event: Event) -> int:
        """Answer the dispatch, once; later calls do nothing and return 0."""
        if run.over:
            return 0
        self._close_books(run)
        return self._deps.post(event)

    def _close_books(self, run: Run) -> None:
        run.over = True
        del self._running[run]
        for handle in (run.deadline, run.grace):
            if handle is not None:
                handle.cancel()

    def _stop(self, live: LiveTurn, run: Run, reason: str) -> None:
        if run.over or run.stopping:
            return
        run.stopping = reason
        run.grace = asyncio.get_running_loop().call_later(STOP_S, self._overdue, live, run)
        self._cancel_task(run)

    def _task_done(self, live: LiveTurn, run: Run, task: asyncio.Task[None]) -> None:
        """Answer for a task cancelled before its first step, and name what else it raised."""
        self._tasks.discard(task)
        self._deps.slots.stores.pop(run.prefix_entry, None)
        if run.stopping:
            self._conclude(live, run, self._stopped(live, run))
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("turn %s: could not be answered: %s", live.call.turn, error)

    def _cancel_task(self, run: Run) -> None:
        assert run.task is not None
        run.task.cancel()

    def _stopped(self, live: LiveTurn, run: Run, *, settled: bool = True) -> Event:
        """What a stopped run has used, and what its slot holds if it yielded and is `settled`.

        That is all that was delivered but the last token, which may not have been computed. After a
        cancel the slot holds nothing that can be relied on.
        """
        held = HELD_SHARE * run.held_ns > self._deps.clock.now_ns() - run.began_ns
        status = "held" if held and run.stopping != "yielded" else run.stopping
        if status == "deadline":
            live.error = EngineTimeout("the turn took longer than its deadline; it was stopped")
            return _lost(live, run, live.error, retryable=False)
        counts = prompt_of_turn(run.started, run.delivered_before, live.first)
        kv_tokens = 0
        if status == "yielded" and run.started is not None:
            live.first = counts
            new_tokens = live.out_tokens - run.delivered_before
            if settled and new_tokens:
                kv_tokens = run.started.prompt_tokens + new_tokens - 1
        return TurnEnded(
            turn=live.call.turn,
            attempt=run.attempt,
            status=status,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            out_tokens=live.out_tokens,
            kv_tokens=kv_tokens,
            tool="",
            exact=False,
        )

    def _overdue(self, live: LiveTurn, run: Run) -> None:
        _log.error("engine %s: turn %s does not stop", live.engine.name, live.call.turn)
        self._conclude(live, run, self._stopped(live, run, settled=False))


def _turn_run(live: LiveTurn, run: Run, action: Dispatch, deadline_s: float) -> TurnRun:
    call = live.call
    return TurnRun(
        turn=call.turn,
        attempt=action.attempt,
        lineage=call.lineage,
        request=call.request,
        prompt=call.prompt,
        card=action.card,
        slot=action.slot,
        limit_tokens=action.limit_tokens,
        expect_cached_tokens=action.expect_cached_tokens,
        loaded=action.loaded,
        resume_tokens=run.delivered_before,
        deadline_s=deadline_s,
        delivered="".join(live.text),
        prefix_entry=action.prefix_entry,
        prefix_tokens=action.prefix_tokens,
        prompted_before=live.first is not None,
    )


def _ended(live: LiveTurn, run: Run, finished: Finished) -> TurnEnded:
    """The engine's own count."""
    return TurnEnded(
        turn=live.call.turn,
        attempt=run.attempt,
        status="cancelled" if run.stopping else status_of(finished.finish_reason),
        prompt_tokens=finished.prompt_tokens,
        cached_tokens=finished.cached_tokens,
        out_tokens=finished.out_tokens,
        kv_tokens=finished.kv_tokens,
        tool=tool_of(finished.message),
        exact=finished.exact,
    )


def _lost(
    live: LiveTurn, run: Run, error: BedplateError, *, retryable: bool | None = None
) -> DispatchFailed:
    """A card that was lost or has no room is worth another; else it would answer the same."""
    if retryable is None:
        retryable = isinstance(error, (EngineLost, CapacityError))
    return DispatchFailed(live.call.turn, run.attempt, error.code, retryable, live.out_tokens)
