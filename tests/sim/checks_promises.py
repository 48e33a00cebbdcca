"""Checks of what a client is promised in time and on failure: waits, runs, tries, and reasons."""

from __future__ import annotations

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.limits import DISPATCH_ATTEMPTS_MAX, INTERACTIVE, YIELDS_MAX
from bedplate.core.units import SECOND_NS
from tests.sim.book import MOVE_NS, Book, Turn
from tests.sim.checkers import Check
from tests.sim.patience import patience_ns, served

LATE_NS = SECOND_NS
"""How late a timer may be, with room."""
LATE_LOSS_NS = 10 * SECOND_NS
BUSY = ("capacity", "no_engine")
"""Codes with which a card that is up says that it has no room."""


class Bounds(Check):
    """A turn waits no longer than its lane allows, and runs no longer than its deadline."""

    name = "bounds"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.late: dict[str, int] = {}
        """When a turn was first seen to wait for too long: the clock may have leapt."""

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        policy, now = self.book.policy, self.book.now
        if policy is None:
            return
        late: dict[str, int] = {}
        for name, turn in self.book.open.items():
            if turn.running and not turn.stopping:
                most = policy.run_base_ns + policy.run_token_ns * turn.need
                ran = now - turn.last_dispatch_ns
                self.need(ran <= most + LATE_NS, f"runs for {ran}, may for {most}: {turn}")
            elif turn.waiting and self.book.last_fault_ns < turn.waiting_since_ns:
                most = policy.lanes[turn.arrived.lane].wait_max_ns
                waits = now - turn.waiting_since_ns
                if waits > most:
                    late[name] = self.late.get(name, now)
                    more = now - late[name]
                    self.need(more <= MOVE_NS, f"waits for {waits}, may for {most}: {turn}")
        self.late = late


class Failures(Check):
    """Nobody is failed without the reason that is given, nor before the tries are used up (F16)."""

    name = "failures"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.cancelled: dict[str, str] = {}
        self.codes: dict[str, set[str]] = {}

    def event(self, event: ev.Event) -> None:
        if isinstance(event, ev.TurnCancelled):
            self.cancelled.setdefault(event.turn, event.reason)
        elif isinstance(event, ev.DispatchFailed) and self.book.current(event.turn, event.attempt):
            self.codes.setdefault(event.turn, set()).add(event.code)
        elif isinstance(event, ev.CardDown | ev.CardUp):
            card = self.book.cards.get(event.card)
            for slot in card.running() if card is not None else ():
                self.codes.setdefault(slot.turn, set()).add("engine_lost")

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        for action in actions:
            if isinstance(action, act.FailTurn):
                turn = self.book.turns[action.turn]
                lost = isinstance(event, ev.CardDown | ev.CardUp)
                so = (lost and action.reason == "engine_lost") or self._true(action.reason, turn)
                self.need(so, f"{action}: not so, {turn}")
                if action.reason in ("engine_lost", "lane_full", "no_engine") and self._waited_out(
                    turn
                ):
                    continue
                if action.reason == "retry_budget_spent":
                    continue
                if isinstance(event, ev.DispatchFailed | ev.CardDown | ev.CardUp):
                    self.need(self._used_up(event, turn), f"{action}: may be tried again, {turn}")

    def _true(self, reason: str, turn: Turn) -> bool:
        assert self.book.policy is not None
        name, now = turn.arrived.turn, self.book.now
        if reason == "retry_budget_spent":
            return True  # `checks_breakers` judges that
        if reason == "session_not_found":
            return self.book.sessions[turn.arrived.session].closed
        if reason == "draining":
            return self.cancelled.get(name) == "shutdown"
        if reason == "deadline_exceeded":
            held = turn.ended is not None and turn.ended.status == "held"
            return held or self.cancelled.get(name) == "deadline"
        if reason == "engine_timeout":
            policy = self.book.policy
            most = policy.run_base_ns + policy.run_token_ns * turn.need
            ran_out = turn.attempts > 0 and now - turn.last_dispatch_ns >= most
            return ran_out or reason in self._said(name)
        if reason == "no_engine" and self._waited_out(turn):
            return turn.attempts > 0 and not served(self.book, turn.arrived.model)
        if reason == "lane_full":
            return 0 < turn.yielded == turn.attempts and self._waited_out(turn)
        if reason == "engine_lost" and turn.attempts:
            return reason in self._said(name) or self._waited_out(turn)
        if turn.ended is not None and turn.ended.status in ("error", "lost"):
            return reason in ("engine_error", "engine_lost")
        return reason in self._said(name)

    def _waited_out(self, turn: Turn) -> bool:
        """Another turn's failure may be the step in which this one's patience ends."""
        most = patience_ns(self.book, turn.arrived)
        return self.book.now - turn.waiting_since_ns >= most

    def _said(self, name: str) -> set[str]:
        return self.codes.get(name, set())

    def _used_up(self, event: ev.DispatchFailed | ev.CardDown | ev.CardUp, turn: Turn) -> bool:
        """The turn had all its tries, or may not be tried again."""
        book, first = self.book, turn.arrived
        tries = turn.attempts - turn.yielded
        if tries >= DISPATCH_ATTEMPTS_MAX or (turn.delivered and not first.resumable):
            return True
        if turn.cancelled or turn.stopping or book.shutdown or book.sessions[first.session].closed:
            return True
        if not isinstance(event, ev.DispatchFailed):
            return False
        if event.code not in BUSY and self._late(turn):
            return True
        return not event.retryable or (event.code in BUSY and not self._untried(turn))

    def _late(self, turn: Turn) -> bool:
        """An endpoint may still compute what its connection lost after so long without a token."""
        endpoint = self.book.cards[turn.card].up.kv != "full"
        ran = self.book.now - turn.last_dispatch_ns
        return endpoint and not turn.delivered and ran > LATE_LOSS_NS

    def _untried(self, turn: Turn) -> bool:
        return any(
            card.alive and card.up.model == turn.arrived.model and name not in turn.failed_on
            for name, card in self.book.cards.items()
        )


class Yields(Check):
    """Who is asked to yield runs below one that waits, can go on, and is asked a few times."""

    name = "yields"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.gave_way = ""
        """The turn that this event is about, if it has just yielded and nobody ends it."""

    def event(self, event: ev.Event) -> None:
        self.gave_way = ""
        if isinstance(event, ev.TurnEnded) and event.status == "yielded":
            turn = self.book.current(event.turn, event.attempt)
            if turn is not None and not turn.stopping and not turn.cancelled:
                closed = self.book.sessions[turn.arrived.session].closed
                self.gave_way = "" if closed else event.turn

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.YieldTurn):
            return
        turn = self.book.turns.get(action.turn)
        self.need(turn is not None, f"{action}: no such turn")
        assert turn is not None
        first = turn.arrived
        self.need(turn.running, f"{action}: it is not running")
        self.need(turn.attempts == action.attempt, f"{action}: attempt {turn.attempts} runs")
        self.need(not turn.yielding, f"{action}: it was asked")
        self.need(not turn.cancelled and not turn.stopping, f"{action}: it is being stopped")
        self.need(first.lane > INTERACTIVE, f"{action}: it is interactive")
        self.need(turn.yielded < YIELDS_MAX, f"{action}: it yielded {turn.yielded} times")
        card = self.book.cards[turn.card].up
        self.need(card.kv == "full", f"{action}: its card keeps nothing")
        again = first.resumable or (turn.computing and not turn.delivered)
        self.need(again, f"{action}: it cannot go on")

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        for action in actions:
            if isinstance(action, act.YieldTurn):
                turn = self.book.turns[action.turn].arrived
                above = any(
                    other.waiting
                    and other.arrived.lane < turn.lane
                    and other.arrived.model == turn.model
                    for other in self.book.open.values()
                )
                self.need(above, f"{action}: nobody above waits")
            elif isinstance(action, act.Settled) and action.turn:
                self.need(action.turn != self.gave_way, f"{action}: it goes on")


CHECKS = (Bounds, Failures, Yields)
