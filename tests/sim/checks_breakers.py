"""Checks of failing cards (F10): breakers, and what may be sent again."""

from __future__ import annotations

from bedplate.core import actions as act
from bedplate.core import events as ev
from tests.sim.book import Book
from tests.sim.checkers import Check


class Breakers(Check):
    """Nothing is begun on a card whose breaker is open, and it is told of when it is."""

    name = "breakers"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.told: dict[str, bool] = {}
        """Cards whose breaker is open by the core's own alarms."""
        self.tries: dict[str, str] = {}
        """The turn that tries a card."""

    def action(self, action: act.Action) -> None:
        if isinstance(action, act.Alarm) and action.kind == "breaker":
            self.told[action.subject] = bool(action.level)
            self.tries.pop(action.subject, None)
        if not isinstance(action, act.Dispatch):
            return
        card = self.book.cards[action.card]
        if not card.open_until_ns:
            return
        self.need(card.open_until_ns <= self.book.now, f"{action}: the breaker is open: {card}")
        before = self.book.turns.get(self.tries.get(action.card, ""))
        busy = (
            before is not None
            and before.running
            and before.computing
            and before.card == action.card
        )
        self.need(not busy, f"{action}: {before} tries the card")
        self.tries[action.card] = action.turn

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        for name, card in self.book.cards.items():
            told = self.told.get(name, False)
            self.need(told == bool(card.open_until_ns), f"card {name}: alarm {told}, {card}")


class Resends(Check):
    """Prompts are sent again within the pool's budget, and while there is some (F10)."""

    name = "resends"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.owed = 0
        """Thousandths of a token that were sent again beyond what accepted calls cover."""
        self.failed: dict[str, int] = {}
        """Turns that a card lost in this step, with the tokens that another try takes."""

    def event(self, event: ev.Event) -> None:
        self.failed = {}
        if isinstance(event, ev.DispatchFailed):
            turn = self.book.current(event.turn, event.attempt)
            if turn is not None and event.code not in ("capacity", "no_engine"):
                delivered = max(turn.delivered, event.out_tokens)
                self.failed[event.turn] = turn.arrived.prompt_tokens + delivered
        elif isinstance(event, ev.CardDown | ev.CardUp):
            card = self.book.cards.get(event.card)
            for slot in card.running() if card is not None and card.alive else ():
                turn = self.book.turns[slot.turn]
                self.failed[slot.turn] = turn.arrived.prompt_tokens + turn.delivered

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        policy = self.book.policy
        assert policy is not None
        if isinstance(event, ev.TurnArrived) and self.book.turns[event.turn].accepted:
            self.owed = max(0, self.owed - event.prompt_tokens * policy.retry_permille)
        spent = [
            action.turn
            for action in actions
            if isinstance(action, act.FailTurn) and action.reason == "retry_budget_spent"
        ]
        cap = policy.retry_tokens * 1000
        for name, tokens in self.failed.items():
            if not self.book.turns[name].over:
                self.owed += tokens * 1000
                within = not cap or self.owed <= cap
                self.need(within, f"{event}: {name} is sent again, {self.owed} of {cap}")
        for name in spent:
            self.need(name in self.failed, f"{event}: no card lost {name}")
            over = self.owed + self.failed[name] * 1000 > cap > 0
            self.need(over, f"{event}: {self.owed} of {cap}, {name} may go on")


CHECKS = (Breakers, Resends)
