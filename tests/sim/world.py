"""The event heap: one seed, one core, virtual time, faults that stop, and then it must drain.

Heap entries are ordered by (time_ns, rank, serial). The world carries out each action and posts the
answers; the checkers see every step. Nothing here knows how the core decides. The timer is armed
and cleared exactly as SetTimer and ClearTimer say, so a timer that the core lost shows as a hang.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import BranchId, CardId, EntryId, SessionId, SlotId, TurnId
from bedplate.core.units import MILLISECOND_NS, SECOND_NS
from tests.sim.book import GOOD_ENDS
from tests.sim.cards import CLIENT, FAULT, TIMER, Fire, Pool, VirtualCard
from tests.sim.checkers import Checkers, CheckFailed
from tests.sim.clients import Crowd
from tests.sim.options import Options

STEPS_MAX = 200_000
IDLE_TIMERS_MAX = 200
"""TimerFired in a row that change nothing: the core spins."""

_TURN_EVENTS = (ev.TurnStarted, ev.TokensEmitted, ev.TurnEnded, ev.DispatchFailed)
_ANSWERS = (*_TURN_EVENTS, ev.KvStored, ev.KvLoaded, ev.KvDropped, ev.EntryDropped)


class Core(Protocol):
    """What the world needs of a core."""

    @property
    def digest(self) -> bytes:
        """Chain over all steps."""
        ...

    def handle(self, now_ns: int, event: ev.Event) -> tuple[act.Action, ...]:
        """Take one step."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to."""

    seed: int
    digest: str
    steps: int
    turns: int
    served: int
    virtual_seconds: int


class World:
    """One run of one seed."""

    def __init__(self, options: Options, core: Core, checkers: Checkers) -> None:
        self.options = options
        self.core = core
        self.checkers = checkers
        self.rng = random.Random(f"world {options.seed}")
        self.now = 1_000_000_000_000
        self.serial = 0
        self.steps = 0
        self.heap: list[tuple[int, int, int, Fire]] = []
        self.timer = 0
        self.timers_idle = 0
        self.faulty = True
        self.pool = Pool(options.policy.pool_bytes_max)
        self.crowd = Crowd(options, self.rng, self.later)
        self.cards = {
            up.card: VirtualCard(up, self.rng, options.faults, self.later, self.pool)
            for up in options.cards
        }
        self.past: list[ev.Event] = []
        self.first_cached: dict[TurnId, int] = {}
        """What the first run of a turn found cached, once the turn has yielded."""

    def later(self, delay_ns: int, rank: int, fire: Fire) -> None:
        """Schedule something."""
        assert delay_ns >= 0
        self.serial += 1
        heapq.heappush(self.heap, (self.now + delay_ns, rank, self.serial, fire))

    def run(self) -> Result:
        """Run until nothing is left to happen, then let the checkers look back.

        Raises:
            CheckFailed: a property does not hold, the core spins, or it does not drain.
        """
        self.step(ev.PolicyChanged(self.options.policy))
        for card in self.cards.values():
            delay = self.rng.choice((0, 0, self.rng.randint(0, 5 * SECOND_NS)))
            self.later(delay, FAULT, card.start)
        self.crowd.start()
        if self.options.day_ns:
            self.later(0, CLIENT, self._midnight(self.now))
        self._plan_faults()
        while self.heap:
            at_ns, _, _, fire = heapq.heappop(self.heap)
            self.now = max(self.now, at_ns)
            for event in fire():
                self.step(event)
        self.checkers.finish()
        book = self.checkers.book
        return Result(
            seed=self.options.seed,
            digest=self.core.digest.hex(),
            steps=self.steps,
            turns=len(book.turns),
            served=sum(1 for turn in book.turns.values() if turn.ended is not None),
            virtual_seconds=self.now // SECOND_NS - 1_000,
        )

    # -- one step

    def step(self, event: ev.Event) -> None:
        """Give one event to the core, show both sides to the checkers, carry out the actions."""
        self._one(event)
        if (
            self.faulty
            and isinstance(event, _ANSWERS)
            and self._chance(self.options.faults.duplicate)
        ):
            self._one(event)

    def _one(self, event: ev.Event) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise CheckFailed("drain", f"more than {STEPS_MAX} steps")
        if isinstance(event, ev.TurnEnded) and event.status in GOOD_ENDS:
            self._learn(event)
        if isinstance(event, ev.TurnEnded) and event.status == "yielded" and event.prompt_tokens:
            self.first_cached.setdefault(event.turn, event.cached_tokens)
        if isinstance(event, _TURN_EVENTS) and self._chance(self.options.faults.stale):
            self.past.append(event)
        actions = self.core.handle(self.now, event)
        self._spin(event, actions)
        self.checkers.step(self.now, event, actions)
        for action in actions:
            self._carry_out(action)
            self.crowd.hear(action)

    def _learn(self, event: ev.TurnEnded) -> None:
        if self.checkers.book.current(event.turn, event.attempt) is not None:
            self.crowd.learn(event)

    def _spin(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        idle = isinstance(event, ev.TimerFired) and all(
            isinstance(a, act.SetTimer) for a in actions
        )
        self.timers_idle = self.timers_idle + 1 if idle else 0
        if self.timers_idle > IDLE_TIMERS_MAX:
            raise CheckFailed("timer", f"{self.timers_idle} timers in a row changed nothing")

    def _carry_out(self, action: act.Action) -> None:
        if isinstance(action, act.Dispatch):
            call = self.crowd.calls[action.turn]
            self.cards[action.card].dispatch(
                action,
                call.prompt,
                stops_at=call.stops_at,
                first_cached=self.first_cached.get(action.turn),
            )
        elif isinstance(action, act.CancelTurn):
            for card in self.cards.values():
                card.cancel(action)
        elif isinstance(action, act.YieldTurn):
            turn = self.checkers.book.turns[action.turn]
            self.cards[CardId(turn.card)].yields(action, resumable=turn.arrived.resumable)
        elif isinstance(action, act.StoreKv):
            self.cards[action.card].store(action)
        elif isinstance(action, act.LoadKv):
            self.cards[action.card].load(action)
        elif isinstance(action, act.DropKv):
            self.cards[action.card].drop(action)
        elif isinstance(action, act.DropEntry):
            self._drop_entry(action.entry)
        elif isinstance(action, act.SetTimer):
            self._arm(action.at_ns)
        elif isinstance(action, act.ClearTimer):
            self.timer += 1

    def _arm(self, at_ns: int) -> None:
        self.timer += 1
        mine = self.timer

        def fire() -> Iterator[ev.Event]:
            if self.timer == mine:
                yield ev.TimerFired()

        late = self.rng.randint(0, 20) * MILLISECOND_NS
        self.later(max(0, at_ns - self.now) + late, TIMER, fire)

    def _drop_entry(self, entry: EntryId) -> None:
        def fire() -> Iterator[ev.Event]:
            if self._chance(self.options.faults.drop_entry):
                yield ev.KvFailed("drop_entry", CardId(""), SlotId(-1), entry, "pool_error")
                return
            self.pool.entries.pop(entry, None)
            yield ev.EntryDropped(entry)

        self.later(self.rng.randint(1, 20) * MILLISECOND_NS, CLIENT, fire)

    # -- faults

    def _plan_faults(self) -> None:
        faults, over_ns = self.options.faults, self.options.arrivals_ns + 60 * SECOND_NS
        for _ in range(faults.cards):
            card = self.rng.choice(list(self.cards.values()))
            kind = self.rng.choice((self._loses, self._restarts, self._drains, self._jumps))
            self.later(self.rng.randint(0, over_ns), FAULT, kind(card))
        for number in range(faults.policies):
            policy = self.options.later_policies[number % 2]
            self.later(self.rng.randint(0, over_ns), FAULT, self._policy(ev.PolicyChanged(policy)))
        for _ in range(faults.stalls):
            start = self.rng.randint(0, over_ns)
            self.later(start, FAULT, _just(ev.JournalStalled(True)))
            self.later(start + self._ms(1, 5_000), FAULT, _just(ev.JournalStalled(False)))
        for _ in range(faults.noise // 5):
            self.later(self.rng.randint(0, over_ns), CLIENT, self._noise)
        for card in self.cards.values():
            for _ in range(3):
                self.later(self.rng.randint(0, over_ns), FAULT, self._reports(card))
        for _ in range(10 if faults.stale else 0):
            self.later(self.rng.randint(0, over_ns), FAULT, self._stale)
        self.later(over_ns + 120 * SECOND_NS, FAULT, self._faults_end)
        if self.options.shutdown:
            self.later(over_ns // 2, FAULT, _just(ev.ShutdownRequested()))

    def _faults_end(self) -> Iterator[ev.Event]:
        self.faulty = False
        calm = type(self.options.faults)()
        self.options = type(self.options)(
            **{name: getattr(self.options, name) for name in self.options.__slots__}
            | {"faults": calm}
        )
        self.crowd.options = self.options
        for card in self.cards.values():
            card.faults = calm
            if not card.alive:
                yield from card.start()
            yield ev.CardDraining(card.up.card, False)
            for run in card.runs():
                yield ev.TurnCancelled(run, "deadline")

    def _loses(self, card: VirtualCard) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if card.alive:
                yield from card.die(told=True)
                self.later(self._ms(0, 30_000), FAULT, self._returns(card))

        return fire

    def _restarts(self, card: VirtualCard) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if card.alive:
                yield from card.die(told=False)
                yield from card.start()

        return fire

    def _returns(self, card: VirtualCard) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if not card.alive:
                yield from card.start()

        return fire

    def _drains(self, card: VirtualCard) -> Fire:
        def fire() -> Iterator[ev.Event]:
            yield ev.CardDraining(card.up.card, True)
            self.later(self._ms(0, 60_000), FAULT, _just(ev.CardDraining(card.up.card, False)))

        return fire

    def _jumps(self, _: VirtualCard) -> Fire:
        def fire() -> Iterator[ev.Event]:
            self.now += self._ms(1, 100_000)
            yield from ()

        return fire

    def _midnight(self, start_ns: int) -> Fire:
        """Tell of the days one by one, some late, while there are calls to come."""

        def fire() -> Iterator[ev.Event]:
            day_ns = self.options.day_ns
            number = (self.now - start_ns) // day_ns
            day, month = start_ns + number * day_ns, start_ns + number // 3 * 3 * day_ns
            if self.now < start_ns + self.options.arrivals_ns + 60 * SECOND_NS:
                late = self.rng.choice((0, 1, 3_000)) * MILLISECOND_NS
                self.later(day + day_ns - self.now + late, CLIENT, self._midnight(start_ns))
            yield ev.CalendarDay("UTC", day, day + day_ns, month, month + 3 * day_ns)

        return fire

    def _policy(self, event: ev.PolicyChanged) -> Fire:
        def fire() -> Iterator[ev.Event]:
            self.pool.size_max = max(self.pool.size_max, event.policy.pool_bytes_max)
            yield event

        return fire

    def _reports(self, card: VirtualCard) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if card.alive:
                yield card.report()

        return fire

    def _stale(self) -> Iterator[ev.Event]:
        book = self.checkers.book
        for event in self.rng.sample(self.past, min(3, len(self.past))):
            assert isinstance(event, _TURN_EVENTS)
            if book.current(event.turn, event.attempt) is None:
                yield event

    def _noise(self) -> Iterator[ev.Event]:
        nobody = TurnId("nobody")
        yield self.rng.choice(
            (
                ev.TurnCancelled(nobody, "client_cancelled"),
                ev.SessionClosed(SessionId("nobody"), "client"),
                ev.ToolProgress(SessionId("nobody"), BranchId(0), 5),
                ev.TurnEnded(nobody, 1, "stop", 1, 0, 1, 2, "", True),
                ev.TurnStarted(nobody, 1, 1, 0),
                ev.KvStored(CardId("nowhere"), SlotId(0), EntryId(10**9), 1, 1),
                ev.KvLoaded(CardId("c0"), SlotId(99), EntryId(10**9), 1),
                ev.KvDropped(CardId("nowhere"), SlotId(0)),
                ev.KvFailed("load", CardId("nowhere"), SlotId(0), EntryId(10**9), "pool_error"),
                ev.EntryDropped(EntryId(10**9)),
                ev.CardDown(CardId("nowhere"), "fuzz"),
                ev.CardDraining(CardId("nowhere"), True),
                ev.CardReport(CardId("nowhere"), 0, 0, 0, 0, 0),
                ev.TimerFired(),
                ev.DispatchFailed(nobody, 1, "engine_error", True, 0),
                ev.TokensEmitted(nobody, 1, 3),
            )
        )

    def _chance(self, permille: int) -> bool:
        return self.rng.random() * 1000 < permille

    def _ms(self, low: int, high: int) -> int:
        return self.rng.randint(low, high) * MILLISECOND_NS


def _just(event: ev.Event) -> Fire:
    def fire() -> Iterator[ev.Event]:
        yield event

    return fire
