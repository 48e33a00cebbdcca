"""Stores, loads and drops of one card, and how much KV each of its slots holds.

Where moves stall the card (llama.cpp), each happens between two steps, drops too, and none steps
meanwhile; elsewhere they run beside the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bedplate.core import events as ev
from bedplate.core.actions import DropKv, LoadKv, StoreKv
from bedplate.core.events import Event
from bedplate.core.ids import CardId, EntryId, SlotId
from bedplate.perf.profile import CardProfile, MoveCost
from bedplate.twin.stepper import Stepper
from bedplate.twin.transfer import Move


class Moving:
    """The moves of one card; a dead one (`alive` False) takes orders and does nothing."""

    __slots__ = (
        "_bytes_per_token",
        "_card",
        "_drops_wait",
        "_load_cost",
        "_partition",
        "_slot_tokens",
        "_start",
        "_stepper",
        "_store_cost",
        "_tell",
        "alive",
        "loads",
        "moved_bytes",
        "stores",
    )

    def __init__(
        self,
        card: CardId,
        partition: str,
        profile: CardProfile,
        *,
        stepper: Stepper,
        tell: Callable[[Event], None],
        start: Callable[[Move], None],
    ) -> None:
        """`start` begins a move, which `ended` answers."""
        self._card = card
        self._partition = partition
        self._bytes_per_token = profile.kv_bytes_per_token
        self._store_cost = profile.store
        self._load_cost = profile.load
        self._drops_wait = profile.store.stalls or profile.load.stalls
        self._stepper = stepper
        self._tell = tell
        self._start = start
        self.alive = False
        self.stores = self.loads = self.moved_bytes = 0
        self.empty()

    def empty(self) -> None:
        """Lose what the slots hold."""
        self._slot_tokens: dict[SlotId, int] = {}
        self._stepper.batch.idle_tokens = 0

    def hold(self, slot: SlotId, tokens: int) -> None:
        """Note what a slot holds beside the batch; 0 also while its turn is in the batch."""
        self._stepper.batch.idle_tokens += tokens - self._slot_tokens.get(slot, 0)
        self._slot_tokens[slot] = tokens

    def held(self, slot: SlotId) -> int:
        """Return the tokens that a slot holds beside the batch."""
        return self._slot_tokens.get(slot, 0)

    def store(self, order: StoreKv) -> None:
        """Copy what a slot holds to the pool."""
        tokens = self._slot_tokens[order.slot]
        self._move("store", order.slot, order.entry, tokens, self._store_cost)

    def store_opening(self, slot: SlotId, entry: EntryId, tokens: int) -> None:
        """Copy what a prompt begins with to the pool, once the prompt is computed.

        A live card does so before it computes the rest, which takes the same time together.
        """
        self._move("store", slot, entry, tokens, self._store_cost)

    def load(self, order: LoadKv, tokens: int) -> None:
        """Fill a slot from a pool entry of so many tokens."""
        self._move("load", order.slot, order.entry, tokens, self._load_cost)

    def drop(self, order: DropKv) -> None:
        """Empty a slot."""
        if not self.alive:
            return
        if self._drops_wait:
            self._stepper.between_steps(partial(self._drop, order.slot))
        else:
            self._drop(order.slot)

    def _drop(self, slot: SlotId) -> bool:
        self.hold(slot, 0)
        self._tell(ev.KvDropped(self._card, slot))
        return False

    def _move(self, op: str, slot: SlotId, entry: EntryId, tokens: int, cost: MoveCost) -> None:
        if not self.alive:
            return
        move = Move(op, entry, cost)
        move.card = self._card
        move.slot = slot
        move.partition = self._partition
        move.tokens = tokens
        move.size_bytes = tokens * self._bytes_per_token
        if cost.stalls:
            self._stepper.between_steps(partial(self._stall_for, move))
        else:
            self._start(move)

    def _stall_for(self, move: Move) -> bool:
        self._start(move)
        return True

    def ended(self, move: Move, failure: str) -> None:
        """Answer a move that is over, well or for the reason in `failure`; steps go on."""
        if move.cost.stalls:
            self._stepper.end_stall(partial(self._answer, move, failure))
        else:
            self._answer(move, failure)

    def _answer(self, move: Move, failure: str) -> None:
        card, slot, entry = self._card, move.slot, move.entry
        if failure:
            self._tell(ev.KvFailed(move.op, card, slot, entry, failure))
            return
        self.moved_bytes += move.size_bytes
        if move.op == "store":
            self.stores += 1
            self._tell(ev.KvStored(card, slot, entry, move.tokens, move.size_bytes))
        else:
            self.loads += 1
            self.hold(slot, move.tokens)
            self._tell(ev.KvLoaded(card, slot, entry, move.tokens))
