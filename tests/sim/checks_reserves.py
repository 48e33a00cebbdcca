"""Checks of reserves: what is kept for a tenant, running turns and idle KV of others leave it."""

from __future__ import annotations

from bedplate.core import actions as act
from bedplate.core import events as ev
from tests.sim.book import Book, Turn
from tests.sim.checkers import Check
from tests.sim.checks_kv import Retention
from tests.sim.checks_order import Observer
from tests.sim.sequence import length
from tests.sim.shares import Shares
from tests.sim.things import Slot


class Kept(Check):
    """A turn beyond its tenant's reserve begins only where it leaves others theirs (INV-13)."""

    name = "kept"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.shares = Shares(book)
        self.observer = Observer(book)

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch) or not self.observer.calm():
            return
        book, shares = self.book, self.shares
        turn = book.turns[action.turn]
        tenant, model = turn.arrived.tenant, turn.arrived.model
        assert book.policy is not None
        if book.cards[action.card].draining or turn.at_ns <= book.last_fault_ns:
            return
        need = shares.blocks(turn.arrived.prompt_tokens + action.limit_tokens)
        mine = shares.held(tenant, model, running=True) + need
        if mine <= shares.reserve(tenant, model):
            return
        total = sum(card.up.kv_tokens // book.policy.block_tokens for card in shares.cards(model))
        if shares.sliced(model) or any(
            slot.broken for card in shares.cards(model) for slot in card.slots
        ):
            return
        asked = mine
        kept = 0
        for other in sorted({t.arrived.tenant for t in book.turns.values()} | self._named()):
            if other != tenant:
                running = shares.held(other, model, running=True)
                lends = book.tenant_policy(other).lend_tokens
                kept += shares.kept(other, model)
                asked += (
                    shares.kept(other, model) if lends else max(running, shares.kept(other, model))
                )
        self.need(not kept or asked <= total, f"{action}: {asked} of {total} blocks are kept")

    def _named(self) -> set[str]:
        assert self.book.policy is not None
        named = {one.tenant for one in self.book.policy.tenants}
        return named | {part.tenant for part in self.book.policy.slices}


class Floor(Check):
    """Idle KV within a reserve goes for a turn within another reserve, and for nothing else."""

    name = "floor"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.shares = Shares(book)
        self.rest = Retention(book)
        self.observer = Observer(book)
        self.arriving = ""
        """Turn of the call of this step."""
        self.wrong: list[tuple[str, str]] = []
        """Session and complaint; none of sessions that end in this step, with all they hold."""

    def event(self, event: ev.Event) -> None:
        self.rest.event(event)
        self.arriving = event.turn if isinstance(event, ev.TurnArrived) else ""

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.DropKv) or not self.observer.calm():
            return
        card = self.book.cards[action.card]
        slot = card.slots[action.slot]
        reserve = self.shares.reserve(slot.tenant, card.up.model) if slot.tenant else 0
        if self.shares.sliced(card.up.model):
            return
        if not reserve or card.draining or not self.rest.at_rest(slot) or slot.drops_failed:
            return
        if self._own(slot) or (slot.loaded and slot.idle_since_ns == self.book.now):
            return
        held = self.shares.held(slot.tenant, card.up.model, running=False)
        left = held - self.shares.blocks(self.book.held_tokens(card, slot))
        if left < reserve and not self._for_a_reserve(slot, card.up.model):
            self.wrong.append((slot.session, f"{action}: {left} of {reserve}"))

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        ended = {str(a.session) for a in actions if isinstance(a, act.SessionEnded)}
        for session, complaint in self.wrong:
            self.need(session in ended, complaint)
        self.wrong.clear()

    def _own(self, slot: Slot) -> bool:
        """It may go for its own tenant: for a turn of it, or its limit."""
        if self.book.tenant_policy(slot.tenant).card_tokens_max:
            return True
        return any(turn.arrived.tenant == slot.tenant for turn in self._waiting())

    def _for_a_reserve(self, slot: Slot, model: str) -> bool:
        return any(
            self.shares.need(turn) <= self.shares.reserve(turn.arrived.tenant, model)
            for turn in self._waiting()
            if turn.arrived.tenant != slot.tenant
        )

    def _waiting(self) -> list[Turn]:
        turns = [turn for turn in self.book.open.values() if turn.waiting]
        return [*turns, self.book.turns[self.arriving]] if self.arriving else turns


class OnCards(Check):
    """A tenant's turn begins only where its KV on cards stays within its own limit (F20)."""

    name = "on-cards"

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch):
            return
        book = self.book
        assert book.policy is not None
        turn, block = book.turns[action.turn], book.policy.block_tokens
        limit = book.tenant_policy(turn.arrived.tenant).card_tokens_max // block
        if not limit or book.policy_ns >= turn.at_ns:
            return
        blocks = -(-(turn.arrived.prompt_tokens + action.limit_tokens) // block)
        for name, card in book.cards.items():
            for number, slot in enumerate(card.slots):
                here = (name, number) == (action.card, action.slot)
                gone = slot.op == "drop" or slot.drops_failed
                if slot.tenant == turn.arrived.tenant and not gone and not here:
                    full = card.up.kv == "full"
                    held = length(slot.tokens) if full and not slot.turn else 0
                    held = book.held_tokens(card, slot) if slot.turn else held
                    blocks += -(-held // block)
        self.need(blocks <= limit, f"{action}: {blocks} of {limit} blocks of {turn.arrived.tenant}")


CHECKS = (Kept, Floor, OnCards)
