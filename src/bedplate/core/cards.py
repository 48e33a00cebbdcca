"""Events of cards: up, down, draining, reports; and the policy that core runs under."""

from __future__ import annotations

from bedplate.core import leaving, pool, settle, shares, slices
from bedplate.core import tenant as limits
from bedplate.core.actions import Alarm
from bedplate.core.card import empty_slot, touch
from bedplate.core.dispatch import leave_slot
from bedplate.core.events import CardDown, CardDraining, CardReport, CardUp, PolicyChanged
from bedplate.core.group import Group
from bedplate.core.ids import SlotId
from bedplate.core.state import State
from bedplate.core.states import BREAKER_HALF, BREAKER_OPEN, STORING, Card, Slot
from bedplate.core.units import blocks_for

RESTART = "restart"
"""Reason of a CardDown that an orderly restart of the service causes: nothing was lost."""


def up(state: State, event: CardUp) -> None:
    """Take a card into its group, empty.

    A card that was up has restarted and lost what it held. One that now serves another model leaves
    its old group a dead card behind. One that was taken out stays out.
    """
    card = state.cards.get(event.card)
    group = state.groups.get(event.model)
    if group is None:
        group = state.groups[event.model] = Group(event.model, state.policy.block_tokens)
        shares.enlist(state, group)
    if card is not None and card.up:
        _lose(state, card, "restarted")
    if card is None or card.group is not group:
        out = card is not None and card.draining
        if card is not None:
            recount(state, card.group)
        card = Card(event.card, len(group.cards), group)
        card.draining = out
        group.cards.append(card)
        state.cards[card.id] = card
    block = state.policy.block_tokens
    card.partition = event.partition
    card.kv = event.kv
    card.can_cut = event.can_cut
    card.running_max = min(event.running_max, event.slots)
    card.prompt_streams = event.prompt_streams
    card.running_busy = event.running_busy
    card.total_blocks = event.kv_tokens // block
    card.context_tokens = min(event.context_tokens, card.total_blocks * block)
    card.bytes_per_token = event.kv_bytes_per_token
    card.slots = [Slot(SlotId(index), card) for index in range(event.slots)]
    card.free = [slot.id for slot in card.slots]
    card.report = (0, 0, 0, 0, 0)
    card.up = True
    if card.breaker == BREAKER_OPEN:
        card.breaker = BREAKER_HALF  # it began anew: one turn may try it at once
    group.priced_bytes = event.kv_bytes_per_token
    group.bytes_per_token = max(group.bytes_per_token, event.kv_bytes_per_token)
    recount(state, group)
    touch(state, card)


def down(state: State, event: CardDown) -> None:
    """A card is gone with all it held; its turns run elsewhere or end."""
    card = state.cards.get(event.card)
    if card is None or not card.up:
        state.count("stale_events")
        return
    _lose(state, card, event.reason)
    recount(state, card.group)
    if event.reason != RESTART:
        state.count("cards_lost")
        state.emit(Alarm("card_down", card.id, 1))


def _lose(state: State, card: Card, reason: str) -> None:
    card.up = False
    leaving.unbind(list(card.bound.values()))
    lost = list(card.placed.values())
    active = [slot.turn for slot in card.slots if slot.turn is not None]
    lost += [turn for turn in active if turn.id not in card.placed]
    for turn in lost:
        leave_slot(state, turn)
    branches = [slot.branch for slot in card.slots if slot.branch is not None]
    for slot in card.slots:
        storing = slot.entry if slot.state == STORING else None
        state.pending_stores.pop((card.id, slot.id), None)
        empty_slot(state, slot)
        if storing is not None:
            pool.drop(state, storing)
    assert card.used_blocks == card.claimed_blocks == card.running == 0, card.id
    for turn in lost:
        settle.retry(state, turn, "engine_lost", f"card {card.id}: {reason}")
    for branch in branches:
        settle.store_over(state, branch)


def draining(state: State, event: CardDraining) -> None:
    """Take a card out, or back in, without cutting anything; the mark outlives its process.

    What an outgoing card holds is stored, then dropped; its running turns end first.
    """
    card = state.cards.get(event.card)
    if card is None or card.draining == event.on:
        state.count("stale_events")
        return
    card.draining = event.on
    if not card.up:
        return
    recount(state, card.group)
    touch(state, card)
    if not event.on:
        return
    leaving.clear(state, card)


def report(state: State, event: CardReport) -> None:
    """Keep the engine's own counters; metering compares them with the rows."""
    card = state.cards.get(event.card)
    if card is not None:
        card.report = (
            event.kv_used_tokens,
            event.running,
            event.prompt_tokens_total,
            event.cached_tokens_total,
            event.out_tokens_total,
        )


def policy_changed(state: State, event: PolicyChanged) -> None:
    """Put new limits in force. What is already let in stays."""
    assert len(event.policy.lanes) == 3
    before = state.policy.block_tokens
    state.policy = event.policy
    if event.policy.block_tokens != before:
        _resize_blocks(state, before)
    state.shutting_down = False  # a service that starts again sends its policy first
    for tenant in state.tenants.values():
        limits.refill(tenant, state.now_ns)
        limits.change(tenant, state.tenant_policy(tenant.id))
        state.moved[tenant.id] = tenant
    for group in state.groups.values():
        shares.enlist(state, group)
        recount(state, group)


def _resize_blocks(state: State, before: int) -> None:
    """Count in blocks of the new size, which needs that no card holds any of the old."""
    if any(card.up for card in state.cards.values()):
        state.policy = state.policy._replace(block_tokens=before)
        state.emit(Alarm("block_size_kept", str(before), 1))
        return
    block = state.policy.block_tokens
    for group in state.groups.values():
        group.block_tokens = block
    for turn in state.turns.values():
        turn.need_blocks = blocks_for(turn.prompt_tokens + turn.limit_tokens, block)


def slice_due(state: State, group: Group) -> None:
    """A slice of the group begins or ends."""
    group.slice_ns = 0
    shares.enlist(state, group)
    recount(state, group)


def recount(state: State, group: Group) -> None:
    """Renew whose a group's cards are, and what they and the pool can hold together, in tokens."""
    block = state.policy.block_tokens
    alive = [card for card in group.cards if card.up]
    serving = [card for card in alive if not card.draining]
    slices.renew(state, group)
    shares.recount(state, group)
    room = sum(card.total_blocks * block for card in serving)
    if group.bytes_per_token and any(card.kv == "full" for card in serving):
        room += state.policy.pool_bytes_max // group.bytes_per_token
    group.capacity_tokens = room
    group.running_max = sum(card.running_max for card in serving)
    group.streams = sum(max(1, card.prompt_streams) for card in serving)
    if alive:
        group.context_tokens = max(card.context_tokens for card in alive)
        group.lost_ns = 0
    elif not group.lost_ns:
        group.lost_ns = state.now_ns
        settle.await_return(state, group)
    state.stir(group)
