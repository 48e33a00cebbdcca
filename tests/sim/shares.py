"""What an observer knows of the blocks that tenants hold, and of what is kept for them."""

from __future__ import annotations

from tests.sim.book import Book, Turn
from tests.sim.sequence import length
from tests.sim.things import Card, Slot


class Shares:
    """Blocks of tenants on the cards of a model that take turns."""

    def __init__(self, book: Book) -> None:
        self.book = book

    def cards(self, model: str) -> list[Card]:
        """Cards that tenants share."""
        cards = self.book.cards.values()
        return [c for c in cards if c.alive and not c.draining and c.up.model == model]

    def held(self, tenant: str, model: str, *, running: bool) -> int:
        """Blocks of a tenant's slots, of those with turns only or of all."""
        return sum(
            self.blocks(max(self.counted(card, slot), slot.before_tokens * bool(slot.turn)))
            for card in self.cards(model)
            for slot in card.slots
            if slot.tenant == tenant and slot.op != "drop" and (slot.turn or not running)
        )

    def counted(self, card: Card, slot: Slot) -> int:
        """KV tokens that count for the tenant of a slot, of endpoints too.

        An endpoint has its own cache, so nothing needs to go for others there; what a turn left
        there is its tenant's all the same until the slot is used again.
        """
        if card.up.kv == "hints" and not slot.turn:
            return length(slot.tokens)
        return self.book.held_tokens(card, slot)

    def reserve(self, tenant: str, model: str) -> int:
        """Whole blocks of a tenant's reserve, with what slices add."""
        assert self.book.policy is not None
        tokens = self.book.tenant_policy(tenant).reserve_tokens
        for part in self.book.policy.slices:
            if (part.tenant, part.model) == (tenant, model):
                tokens += part.kv_tokens * (part.from_ns <= self.book.now < part.until_ns)
        return tokens // self.book.policy.block_tokens

    def kept(self, tenant: str, model: str) -> int:
        """Those of them that it never lends."""
        lends = self.book.tenant_policy(tenant).lend_tokens
        return max(0, self.reserve(tenant, model) - self.blocks(lends))

    def sliced(self, model: str) -> bool:
        """Some slice may have cards of the model: an observer cannot tell which."""
        assert self.book.policy is not None
        return any(part.cards and part.model == model for part in self.book.policy.slices)

    def blocks(self, tokens: int) -> int:
        """Blocks that hold tokens."""
        assert self.book.policy is not None
        return -(-tokens // self.book.policy.block_tokens)

    def need(self, turn: Turn) -> int:
        """Blocks that a turn may grow to."""
        return self.blocks(turn.arrived.prompt_tokens + self.book.limit_of(turn))

    def reserved(self, model: str) -> list[str]:
        """Tenants that have a reserve."""
        assert self.book.policy is not None
        named = {one.tenant for one in self.book.policy.tenants}
        named |= {part.tenant for part in self.book.policy.slices}
        return [tenant for tenant in sorted(named) if self.reserve(tenant, model)]

    def held_back(self, turn: Turn) -> bool:
        """Reserves of others may keep the turn waiting, wherever there is room."""
        book, first = self.book, turn.arrived
        others = [tenant for tenant in self.reserved(first.model) if tenant != first.tenant]
        if not others:
            return False
        cards = self.cards(first.model)
        if any(slot.op for card in cards for slot in card.slots):
            return True  # some turn may have its place there
        tenants = {slot.tenant for card in cards for slot in card.slots if slot.turn}
        running = {one: self.held(one, first.model, running=True) for one in tenants}
        mine = running.get(first.tenant, 0) + self.need(turn)
        if mine <= self.reserve(first.tenant, first.model):
            return False
        waits = (other for other in book.open.values() if other.waiting and other is not turn)
        if any(
            self.need(other) <= self.reserve(other.arrived.tenant, first.model) for other in waits
        ):
            return True  # a card may be kept for it
        total = sum(card.up.kv_tokens // self.block for card in cards)
        kept = sum(self.reserve(tenant, first.model) for tenant in others)
        return sum(running.values()) + self.need(turn) + kept > total

    @property
    def block(self) -> int:
        """Tokens of a block."""
        assert self.book.policy is not None
        return self.book.policy.block_tokens
