"""A virtual card: it runs turns as its profile says, and tells the core what a live engine would.

    dispatch ─ begin_ns ─► batch: prompt, then decoding ─ end_ns ─► TurnEnded
                             └ end of the prompt's last step: TurnStarted

What a slot truly holds is what the core believes of it on cards that store and load (`kv` = full):
the fuzz tests of the core check that elsewhere. Cards with `kv` = hints measure their own cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bedplate.core import events as ev
from bedplate.core.actions import Dispatch
from bedplate.core.events import Event
from bedplate.core.ids import CardId, ModelId, TurnId
from bedplate.core.units import MILLISECOND_NS
from bedplate.perf.profile import CardProfile
from bedplate.twin.batch import BEGINNING, DECODING, ENDING, GONE, PROMPT, Batch, Sequence
from bedplate.twin.call import Call, Run
from bedplate.twin.heap import CARD, Heap
from bedplate.twin.moving import Moving
from bedplate.twin.outcome import CardRow
from bedplate.twin.own_cache import OwnCache
from bedplate.twin.stepper import Host, Stepper
from bedplate.twin.steps import steps_until
from bedplate.twin.transfer import Move

PROGRESS_NS = 250 * MILLISECOND_NS
"""Shortest time between two TokensEmitted of one turn."""
STOP_NS = 900 * MILLISECOND_NS
"""After this time a cancelled run of a card that does not answer is taken as ended."""


class VirtualCard:
    """One card.

    `tell` gives an event to the core and carries out what it answers. `moving` has its moves.
    """

    __slots__ = (
        "_begin_ns",
        "_cache",
        "_cancels",
        "_end_ns",
        "_heap",
        "_numbers",
        "_out_tokens",
        "_profile",
        "_progress_tokens",
        "_runs",
        "_stepper",
        "_tell",
        "_up_ns",
        "_up_since_ns",
        "alive",
        "batch",
        "id",
        "moving",
        "partition",
    )

    def __init__(
        self,
        name: str,
        partition: str,
        profile: CardProfile,
        *,
        memo: dict[int, float],
        heap: Heap,
        tell: Callable[[Event], None],
        start_move: Callable[[Move], None],
        progress_tokens: int,
        host: Host | None = None,
    ) -> None:
        self.id = CardId(name)
        self.partition = partition
        self._profile = profile
        self._heap = heap
        self._tell = tell
        self._progress_tokens = progress_tokens
        self._begin_ns = math.ceil(profile.begin_ns)
        self._end_ns = profile.end_ns
        self.batch = Batch(profile, memo)
        limit = self._steps_to_progress if progress_tokens else None
        self._stepper = Stepper(self.batch, heap, self._boundary, limit, host)
        self.moving = Moving(
            self.id, partition, profile, stepper=self._stepper, tell=tell, start=start_move
        )
        self._numbers = 0
        self._up_ns = self._up_since_ns = 0
        self._out_tokens = 0
        self.alive = False
        self._clear()
        self._empty()

    def _clear(self) -> None:
        """Forget what runs and waits."""
        self._runs: dict[TurnId, Run] = {}
        self._cancels: list[Run] = []
        self._stepper.clear()

    def _empty(self) -> None:
        """Lose all KV."""
        self.moving.empty()
        own = self._profile.kv == "hints"
        self._cache = OwnCache(self._profile.kv_tokens) if own else None

    # Life.

    def up_event(self) -> ev.CardUp:
        """Return what the card says of itself when it is ready."""
        profile = self._profile
        return ev.CardUp(
            card=self.id,
            model=ModelId(profile.model),
            partition=self.partition,
            kv=profile.kv,
            can_cut=profile.can_cut,
            slots=profile.slots,
            running_max=profile.running_max,
            kv_tokens=profile.kv_tokens,
            context_tokens=profile.context_tokens,
            kv_bytes_per_token=profile.kv_bytes_per_token,
            prompt_streams=profile.prompt_streams,
            running_busy=profile.running_busy,
        )

    def start(self, *, heard: bool = True) -> None:
        """Be there, empty, and say so to whoever is there to hear it."""
        assert not self.alive
        self._lose_runs(heard=heard)
        self._empty()
        self.alive = self.moving.alive = True
        self._up_since_ns = self._heap.now_ns
        if heard:
            self._tell(self.up_event())

    def freeze(self) -> None:
        """Stop in the middle of whatever it does; what it holds is lost, nobody is told yet."""
        assert self.alive
        self._stepper.stop()
        self.alive = self.moving.alive = False
        self._up_ns += self._heap.now_ns - self._up_since_ns
        for run in self._runs.values():
            if run.state != BEGINNING:
                produced = self.batch.produced(run, self.batch.run_steps)
                run.call.delivered_tokens = run.delivered_before + produced
                self._out_tokens += produced

    def bury(self, reason: str) -> None:
        """Tell the core that the frozen card is lost."""
        assert not self.alive
        self._lose_runs(heard=True)
        self._tell(ev.CardDown(self.id, reason))

    def _lose_runs(self, *, heard: bool) -> None:
        """Forget what ran; what was delivered of it is told before the core hears of the loss."""
        runs = list(self._runs.values())
        self._clear()
        for run in runs:
            run.state = GONE
            out_tokens = run.call.delivered_tokens
            if heard and out_tokens > run.told_tokens:
                self._tell(ev.TokensEmitted(run.call.turn, run.attempt, out_tokens))

    def abandon(self) -> None:
        """Drop what runs and what slots hold, without a word: nobody listens any more."""
        if self.alive:
            self._stepper.stop()
        self._lose_runs(heard=False)
        self.moving.empty()
        if self._cache is not None:
            self._cache.abandon()

    def slow_down(self, factor: float) -> None:
        """Let every step from the next on last `factor` times what the profile says."""
        self.batch.slowness = factor
        if self.alive:
            self._stepper.disturb()

    # Turns.

    def dispatch(self, order: Dispatch, call: Call) -> None:
        """Run a turn; a dead card takes it and says nothing."""
        self._numbers += 1
        cached_tokens = order.expect_cached_tokens
        if self._cache is not None:
            reserved = call.prompt_tokens + order.limit_tokens
            found = self._cache.begin(call.session, reserved)
            cached_tokens = min(found, call.reuse_tokens, call.prompt_tokens - 1)
        elif call.delivered_tokens and cached_tokens == call.prompt_tokens - 1:
            whole = call.prompt_tokens + call.delivered_tokens
            cached_tokens = max(cached_tokens, min(self.moving.held(order.slot), whole - 1))
        run = Run(self._numbers, order, call, cached_tokens)
        self._runs[order.turn] = run
        if not self.alive:
            return
        if self._begin_ns:
            self._heap.at(self._heap.now_ns + self._begin_ns, CARD, self._begin, run)
        else:
            self._begin(run)

    def _begin(self, run: Run) -> None:
        if run.state != BEGINNING or not self.alive:
            return
        if run.target_tokens <= run.delivered_before:
            self._all_delivered(run)
            return
        self.moving.hold(run.slot, 0)
        if self.batch.join(run):
            self._stepper.disturb()

    def _all_delivered(self, run: Run) -> None:
        """End a turn whose card was lost after its last token and before its end."""
        run.state = ENDING
        run.out_tokens = run.cached_tokens = 0
        self._tell(ev.TurnStarted(run.call.turn, run.attempt, run.prompt_tokens, 0))
        self._finish(run)

    def cancel(self, turn: TurnId, attempt: int, *, yields: bool = False) -> None:
        """Stop a run at the end of the step under way; one that `yields` leaves its KV."""
        run = self._runs.get(turn)
        if run is None or run.attempt != attempt or run.state == ENDING:
            return
        run.yields = yields
        if not self.alive:
            self._heap.at(self._heap.now_ns + STOP_NS, CARD, self._give_up, run)
        elif run.state == BEGINNING:
            self._stop(run)
        else:
            self._cancels.append(run)
            self._stepper.disturb()

    def _give_up(self, run: Run) -> None:
        if run.state != GONE:
            self._stop(run)

    def _stop(self, run: Run) -> None:
        """Answer a cancel: what the run used so far, and what its slot holds if it yields."""
        call = run.call
        kv_tokens = 0
        if self.alive and run.state in (PROMPT, DECODING):
            produced = self.batch.produced(run, 0)
            call.delivered_tokens = run.delivered_before + produced
            self._out_tokens += produced
            if run.yields and produced:
                kv_tokens = run.prompt_tokens + produced - 1
            self.batch.leave(run)
        cached_tokens = _cached(run)
        if run.yields and run.started:
            call.first_cached_tokens = cached_tokens
        prompt_tokens = call.prompt_tokens if run.started or call.first_cached_tokens >= 0 else 0
        self._over(run, kv_tokens)
        self._tell(
            ev.TurnEnded(
                call.turn,
                run.attempt,
                "yielded" if run.yields else "cancelled",
                prompt_tokens,
                min(cached_tokens, prompt_tokens),
                call.delivered_tokens,
                kv_tokens,
                "",
                False,
            )
        )

    def _over(self, run: Run, kv_tokens: int) -> None:
        """A run is over and leaves KV of so many tokens in its slot."""
        call = run.call
        run.state = GONE
        del self._runs[call.turn]
        call.kv_tokens = kv_tokens
        self.moving.hold(run.slot, kv_tokens)
        if self._cache is not None:
            self._cache.end(call.session, call.prompt_tokens + run.limit_tokens, kept=kv_tokens)

    # Steps.

    def _boundary(self, started: list[Sequence], ended: list[Sequence]) -> None:
        """Say what the steps before came to, and stop whom the core wants stopped."""
        for run in started:
            assert isinstance(run, Run)
            self._say_started(run)
        for run in ended:
            assert isinstance(run, Run)
            if self._end_ns:
                self.moving.hold(run.slot, run.prompt_tokens + run.out_tokens - 1)
                end_ns = math.ceil(self._stepper.began_ns + self._end_ns)
                self._heap.at(max(self._heap.now_ns, end_ns), CARD, self._finish, run)
            else:
                self._finish(run)
        if self._cancels:
            cancels, self._cancels = self._cancels, []
            for run in cancels:
                goes_on = run.yields and run.started and not run.call.resumable
                if run.state in (PROMPT, DECODING) and not goes_on:
                    self._stop(run)
        if self._progress_tokens:
            self._say_progress()

    def _say_started(self, run: Run) -> None:
        run.started = True
        run.told_ns = self._heap.now_ns
        call = run.call
        if call.first_ns < 0:
            call.first_ns = run.told_ns
        self._tell(ev.TurnStarted(call.turn, run.attempt, run.prompt_tokens, run.cached_tokens))
        if run.prefix_tokens:
            self.moving.store_opening(run.slot, run.prefix_entry, run.prefix_tokens)

    def _finish(self, run: Run) -> None:
        """Say that a turn is done, with what its slot holds now."""
        if run.state != ENDING or not self.alive:
            return
        call = run.call
        self._out_tokens += run.out_tokens
        out_tokens = call.delivered_tokens = run.delivered_before + run.out_tokens
        kv_tokens = call.prompt_tokens + out_tokens if run.out_tokens else 0
        if kv_tokens and self._cache is None:
            kv_tokens -= 1  # the last token was sampled, and its KV computed nowhere
        self._over(run, kv_tokens)
        call.cached_tokens = _cached(run)
        self._tell(
            ev.TurnEnded(
                call.turn,
                run.attempt,
                "length" if run.cut_short else call.status,
                call.prompt_tokens,
                call.cached_tokens,
                out_tokens,
                kv_tokens,
                "" if run.cut_short else call.tool,
                True,
            )
        )

    def _say_progress(self) -> None:
        now_ns = self._heap.now_ns
        for run in self._runs.values():
            if run.state != DECODING or now_ns - run.told_ns < PROGRESS_NS:
                continue
            out_tokens = run.delivered_before + self.batch.produced(run, 0)
            if out_tokens - run.told_tokens >= self._progress_tokens:
                run.told_ns = now_ns
                run.told_tokens = out_tokens
                self._tell(ev.TokensEmitted(run.call.turn, run.attempt, out_tokens))

    def _steps_to_progress(self) -> int:
        """Return after how many steps of the run just planned the first sequence has news."""
        batch = self.batch
        least = batch.run_steps
        if not batch.decodes:
            return least
        for run in self._runs.values():
            if run.state == DECODING:
                untold = run.delivered_before + batch.produced(run, 0) - run.told_tokens
                wait_ns = self._stepper.worked_ns(run.told_ns + PROGRESS_NS - 1)
                steps = steps_until(wait_ns, batch.first_ns, batch.growth_ns)
                least = min(least, max(1, steps, self._progress_tokens - untold))
        return least

    # Looking back.

    def row(self) -> CardRow:
        """Return what the card did over the run. Prompt tokens are those that it computed."""
        up_ns = self._up_ns
        if self.alive:
            up_ns += self._heap.now_ns - self._up_since_ns
        return CardRow(
            card=self.id,
            busy_ns=round(self._stepper.busy_ns),
            stall_ns=round(self._stepper.stall_ns),
            up_ns=up_ns,
            prompt_tokens=self.batch.prompt_tokens,
            out_tokens=self._out_tokens,
            stores=self.moving.stores,
            loads=self.moving.loads,
            moved_bytes=self.moving.moved_bytes,
        )


def _cached(run: Run) -> int:
    """Return the prompt tokens that the turn found computed, in its first run if it yielded."""
    call = run.call
    found = run.cached_tokens if call.first_cached_tokens < 0 else call.first_cached_tokens
    return min(found, call.prompt_tokens)
