"""Virtual cards and a virtual pool: they carry out actions, late, wrongly or not at all.

An order to a card that died and is not yet known to be dead is lost with it. A card is honest about
physics: what it reuses is what it truly holds (`sequence.usable`). That its cache never overflows,
which on the real engine kills every neighbour, is a check (`checks_kv.CardRoom`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import CardId, EntryId, SlotId, TurnId
from bedplate.core.units import MILLISECOND_NS
from tests.sim.options import Faults
from tests.sim.sequence import Sequence, cut, extend, length, usable

Fire = Callable[[], Iterator[ev.Event]]
"""What happens at one instant: yields the events that it causes."""
Later = Callable[[int, int, Fire], None]
"""Schedule: nanoseconds from now, rank, what happens."""

FAULT, ENGINE, CLIENT, TIMER = range(4)
"""Ranks of things that happen at one instant."""


@dataclass(slots=True)
class Run:
    """One attempt of a turn on a slot."""

    order: act.Dispatch
    prompt: Sequence
    out: int
    produced: int = 0
    reported: int = 0
    cached: int = 0
    started: bool = False
    hung: bool = False
    cancelled: bool = False
    done: bool = False
    first_cached: int | None = None
    """What the turn's first run found cached, once the turn has yielded."""


@dataclass(slots=True)
class Place:
    """One slot: what is in it, and what runs in it."""

    tokens: Sequence = ()
    run: Run | None = None
    lied: bool = False


@dataclass(slots=True)
class Stored:
    """One pool entry."""

    tokens: Sequence
    size: int


@dataclass(slots=True)
class Pool:
    """The pool's physics: entries and a hard cap."""

    size_max: int
    entries: dict[EntryId, Stored] = field(default_factory=dict)

    def used(self) -> int:
        """Bytes in use."""
        return sum(entry.size for entry in self.entries.values())


class VirtualCard:
    """One card. Everything in flight ends with its `life`."""

    def __init__(self, up: ev.CardUp, rng: random.Random, faults: Faults, later: Later, pool: Pool):
        self.up = up
        self.rng = rng
        self.faults = faults
        self.later = later
        self.pool = pool
        self.alive = False
        self.life = 0
        self.places: list[Place] = []
        self.stores: dict[EntryId, tuple[SlotId, Sequence]] = {}
        self.moves: list[ev.KvFailed] = []
        self.prompt_total = 0
        self.cached_total = 0
        self.out_total = 0

    def start(self) -> Iterator[ev.Event]:
        """Come up, empty."""
        self.life += 1
        self.alive = True
        self.places = [Place() for _ in range(self.up.slots)]
        self.prompt_total = self.cached_total = self.out_total = 0
        yield self.up

    def die(self, *, told: bool) -> Iterator[ev.Event]:
        """Lose everything; what clients had got of running turns is reported first.

        `told` False is a restart that only shows as the next CardUp. Stores under way are answered
        late, some of them with success: the pool had committed.
        """
        if not self.alive:
            return
        self.alive = False
        self.life += 1
        for place in self.places:
            run = place.run
            if run is None or run.done:
                continue
            if run.produced > run.reported:
                yield ev.TokensEmitted(run.order.turn, run.order.attempt, run.produced)
            if self.rng.random() < 0.3:
                yield ev.DispatchFailed(
                    run.order.turn, run.order.attempt, "engine_lost", True, run.produced
                )
        stores, self.stores = self.stores, {}
        failed, self.moves = self.moves, []
        if told:
            yield ev.CardDown(self.up.card, "fuzz")
        for entry, (slot, tokens) in stores.items():
            yield from self._stored(entry, slot, tokens, good=self.rng.random() < 0.5)
        if self.rng.random() < 0.5:
            yield from failed

    # -- turns

    def dispatch(
        self,
        order: act.Dispatch,
        prompt: Sequence,
        *,
        stops_at: int,
        first_cached: int | None = None,
    ) -> None:
        """Start a turn; it would emit `stops_at` tokens in all if nothing cut it short."""
        if not self.alive:
            return
        place = self.places[order.slot]
        out = min(max(stops_at, order.resume_tokens + 1), order.limit_tokens)
        run = Run(order, prompt, out=out, produced=order.resume_tokens)
        run.reported = order.resume_tokens
        run.first_cached = first_cached
        place.run = run
        if self._chance(self.faults.dispatch):
            self._at(self._ms(1, 500), self._refuses(place, run))
            return
        run.hung = self._chance(self.faults.hang)
        if run.hung:
            return
        held = () if place.lied else place.tokens
        if self.up.kv == "full":
            line = extend(prompt, f"{order.turn}!", order.resume_tokens)
            saved = usable(held, line, can_cut=self.up.can_cut)
            run.cached = min(saved, length(prompt) - 1)
        else:
            run.cached = self.rng.randint(0, length(prompt) - 1)
        place.lied = False
        if order.prefix_tokens:
            self.stores[order.prefix_entry] = (order.slot, cut(prompt, order.prefix_tokens))
        work = length(prompt) + order.resume_tokens - run.cached
        self._at(MILLISECOND_NS * (1 + work) + self._ms(0, 5), self._starts(place, run))

    def cancel(self, order: act.CancelTurn) -> None:
        """Stop a turn within one second; a turn that just ended answers nothing more."""
        for place in self.places:
            run = place.run
            if run is None or run.done or run.order.turn != order.turn:
                continue
            if run.order.attempt == order.attempt:
                self._at(self._ms(1, 1000), self._stops(place, run))

    def yields(self, order: act.YieldTurn, *, resumable: bool) -> None:
        """Stop a turn within one second and keep its KV; one that cannot go on runs on."""

        def fire(place: Place, run: Run) -> Iterator[ev.Event]:
            if not run.done and (resumable or not run.started):
                yield from self._finish(place, run, "yielded")

        for place in self.places:
            run = place.run
            if run is None or run.done or run.order.turn != order.turn:
                continue
            if run.order.attempt == order.attempt:
                self._at(self._ms(1, 1000), partial(fire, place, run))

    def _refuses(self, place: Place, run: Run) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if run.done:
                return
            run.done, place.run = True, None
            retryable = self.rng.random() < 0.7
            code = self.rng.choice(("engine_error", "engine_protocol_error", "engine_timeout"))
            yield ev.DispatchFailed(
                run.order.turn, run.order.attempt, code, retryable, run.produced
            )

        return fire

    def _starts(self, place: Place, run: Run) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if run.done:
                return
            if run.order.prefix_tokens:
                yield from self._stores_prefix(run.order)
            run.started = True
            run.produced += 1
            prompt = self._measured_prompt(run)
            self.prompt_total += prompt
            self.cached_total += run.cached
            self.out_total += 1
            self._at(self._ms(5, 50), self._goes_on(place, run))
            yield ev.TurnStarted(run.order.turn, run.order.attempt, prompt, run.cached)

        return fire

    def _stores_prefix(self, order: act.Dispatch) -> Iterator[ev.Event]:
        slot, tokens = self.stores.pop(order.prefix_entry)
        good = not self._chance(self.faults.store)
        yield from self._stored(order.prefix_entry, slot, tokens, good=good)

    def _measured_prompt(self, run: Run) -> int:
        return length(run.prompt)

    def _goes_on(self, place: Place, run: Run) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if run.done:
                return
            if self._chance(self.faults.stop_midway):
                run.done, place.run = True, None
                if self.rng.random() < 0.5:
                    yield self._end(run, self.rng.choice(("error", "lost")), 0)
                else:
                    yield ev.DispatchFailed(
                        run.order.turn, run.order.attempt, "engine_error", True, run.produced
                    )
                return
            step = min(16, run.out - run.produced)
            run.produced += step
            self.out_total += step
            if run.produced < run.out:
                run.reported = run.produced
                self._at(self._ms(20, 200), self._goes_on(place, run))
                yield ev.TokensEmitted(run.order.turn, run.order.attempt, run.produced)
                return
            status = "length" if run.out == run.order.limit_tokens else "stop"
            if status == "stop" and self.rng.random() < 0.5:
                status = "tool_calls"
            yield from self._finish(place, run, status)

        return fire

    def _stops(self, place: Place, run: Run) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if not run.done:
                held = run.started and self.rng.random() < 0.2
                yield from self._finish(place, run, "held" if held else "cancelled")

        return fire

    def _finish(self, place: Place, run: Run, status: str) -> Iterator[ev.Event]:
        run.done, place.run = True, None
        self.stores.pop(run.order.prefix_entry, None)
        context = extend(run.prompt, f"{run.order.turn}!", run.produced)
        kept = length(context) - self.rng.randint(0, 1)
        if self.rng.random() < 0.03 or not run.started:
            kept = 0
        place.tokens = cut(context, kept)
        yield self._end(run, status, kept)

    def _end(self, run: Run, status: str, kept: int) -> ev.TurnEnded:
        prompt, cached = self._measured_prompt(run), run.cached
        if run.first_cached is not None:
            cached = run.first_cached
        elif status == "yielded" and not run.started:
            prompt = cached = 0
        return ev.TurnEnded(
            turn=run.order.turn,
            attempt=run.order.attempt,
            status=status,
            prompt_tokens=prompt,
            cached_tokens=cached,
            out_tokens=run.produced,
            kv_tokens=kept,
            tool="calc" if status == "tool_calls" else "",
            exact=True,
        )

    # -- KV

    def store(self, order: act.StoreKv) -> None:
        """Copy a slot to the pool."""
        if not self.alive:
            failure = ev.KvFailed("store", self.up.card, order.slot, order.entry, "engine_lost")
            self.later(MILLISECOND_NS, ENGINE, lambda: iter((failure,)))
            return
        self.stores[order.entry] = (order.slot, self.places[order.slot].tokens)
        good = not self._chance(self.faults.store)

        def fire() -> Iterator[ev.Event]:
            slot, tokens = self.stores.pop(order.entry)
            yield from self._stored(order.entry, slot, tokens, good=good)

        self._at(self._ms(1, 200), fire)

    def _stored(
        self, entry: EntryId, slot: SlotId, tokens: Sequence, *, good: bool
    ) -> Iterator[ev.Event]:
        size = length(tokens) * self.up.kv_bytes_per_token
        if not good or not tokens or self.pool.used() + size > self.pool.size_max:
            yield ev.KvFailed("store", self.up.card, slot, entry, "pool_error")
            return
        self.pool.entries[entry] = Stored(tokens, size)
        yield ev.KvStored(self.up.card, slot, entry, length(tokens), size)

    def load(self, order: act.LoadKv) -> None:
        """Fill a slot from the pool; some loads fail, some lie."""
        if not self.alive:
            return
        place = self.places[order.slot]
        failure = ev.KvFailed("load", self.up.card, order.slot, order.entry, "pool_error")
        self.moves.append(failure)
        good = not self._chance(self.faults.load)

        def fire() -> Iterator[ev.Event]:
            self.moves.remove(failure)
            stored = self.pool.entries.get(order.entry)
            if not good or stored is None:
                yield failure
                return
            place.tokens = stored.tokens
            place.lied = self._chance(self.faults.load_lies)
            yield ev.KvLoaded(self.up.card, order.slot, order.entry, length(stored.tokens))

        self._at(self._ms(1, 300), fire)

    def drop(self, order: act.DropKv) -> None:
        """Empty a slot."""
        if not self.alive:
            return
        failure = ev.KvFailed("drop", self.up.card, order.slot, EntryId(-1), "engine_error")
        self.moves.append(failure)
        good = not self._chance(self.faults.drop)

        def fire() -> Iterator[ev.Event]:
            self.moves.remove(failure)
            if not good:
                yield failure
                return
            self.places[order.slot] = Place()
            yield ev.KvDropped(self.up.card, order.slot)

        self._at(self._ms(1, 50), fire)

    def report(self) -> ev.CardReport:
        """Measure."""
        return ev.CardReport(
            card=CardId(self.up.card),
            kv_used_tokens=sum(length(place.tokens) for place in self.places),
            running=sum(1 for place in self.places if place.run is not None),
            prompt_tokens_total=self.prompt_total,
            cached_tokens_total=self.cached_total,
            out_tokens_total=self.out_total,
        )

    def runs(self) -> list[TurnId]:
        """Turns on the card."""
        return [place.run.order.turn for place in self.places if place.run is not None]

    # -- chance and time

    def _at(self, delay_ns: int, fire: Fire) -> None:
        life = self.life

        def alive() -> Iterator[ev.Event]:
            if self.life == life:
                yield from fire()

        self.later(delay_ns, ENGINE, alive)

    def _chance(self, permille: int) -> bool:
        return self.rng.random() * 1000 < permille

    def _ms(self, low: int, high: int) -> int:
        return self.rng.randint(low, high) * MILLISECOND_NS
