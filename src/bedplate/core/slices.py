"""Slices: parts of a model's cards that are one tenant's for a time, asked for and given back.

A slice of cards takes whole cards, those with the least running first; they take turns of its
tenant alone (and of its lane, if it names one) and others leave them without being cut (`leaving`).
A slice of KV adds to its tenant's reserve (`shares`). Slices come with the policy and begin and end
by themselves. A card that fails or is taken out is replaced while there is one that is nobody's.

Whether a slice fits is asked before it is put into the policy (`refusal`); core gives what there
is.
"""

from __future__ import annotations

from bedplate.core import leaving, shares
from bedplate.core.card import touch
from bedplate.core.group import Group
from bedplate.core.limits import Slice
from bedplate.core.state import State
from bedplate.core.states import Card


def renew(state: State, group: Group) -> None:
    """Give the slices of a group the cards that they should have now, and take back the others.

    Cost: O(slices + cards log cards), and O(slots) of cards that change hands.
    """
    parts = [part for part in state.policy.slices if part.model == group.model]
    holds = {part.id: part for part in parts if part.from_ns <= state.now_ns < part.until_ns}
    for card in group.cards:
        part = card.slice
        if part is None:
            continue
        now = holds.get(part.id)
        same = now is not None and (now.tenant, now.lane) == (part.tenant, part.lane)
        if same and _serves(card):
            card.slice = now
        else:
            _give_back(state, card)
    for part in holds.values():
        have = [card for card in group.cards if card.slice == part]
        for card in have[part.cards :]:
            _give_back(state, card)
        free = [card for card in group.cards if card.slice is None and _serves(card)]
        free.sort(key=lambda c: (c.busy_blocks + c.claimed_blocks, c.used_blocks, c.index))
        for card in free[: max(0, part.cards - len(have))]:
            card.slice = part
            shares.set_common(card, on=False)
            leaving.clear(state, card)
            touch(state, card)
    times = [at_ns for part in parts for at_ns in (part.from_ns, part.until_ns)]
    soonest = min((at_ns for at_ns in times if at_ns > state.now_ns), default=0)
    if soonest and soonest != group.slice_ns:
        group.slice_ns = soonest
        state.push_deadline(soonest, "slice", group.model)


def _serves(card: Card) -> bool:
    return card.up and not card.draining


def _give_back(state: State, card: Card) -> None:
    card.slice = None
    touch(state, card)


def refusal(state: State, part: Slice) -> str:
    """Say why a slice does not fit what is free while it holds, "" when it does.

    Cards are those that are up and not draining now. Reserves of all tenants stay whole, on the
    cards that would be left if the largest went. Cost: O(cards log cards + slices + tenants).
    """
    group = state.groups.get(part.model)
    cards = [card for card in group.cards if _serves(card)] if group is not None else []
    if group is None or not cards:
        return f"no card that serves {part.model} is up"
    others = [
        other
        for other in state.policy.slices
        if other.model == part.model
        if other.from_ns < part.until_ns and part.from_ns < other.until_ns
    ]
    taken = sum(other.cards for other in others)
    if part.cards > len(cards) - taken:
        free = max(0, len(cards) - taken)
        return f"cards of {part.model} asked for: {part.cards}, free then: {free}"
    sizes = sorted(card.total_blocks * group.block_tokens for card in cards)
    room = sum(sizes[: len(cards) - taken - part.cards])
    kept = sum(other.kv_tokens for other in others)
    kept += sum(policy.reserve_tokens for policy in state.policy.tenants)
    if kept + part.kv_tokens > room:
        if part.cards:
            return (
                f"cards of {part.model} asked for: {part.cards}; those that are left would hold "
                f"{room} tokens of KV, the reserves of tenants and other slices are {kept}"
            )
        return (
            f"KV of {part.model} asked for: {part.kv_tokens} tokens; beside the reserves of "
            f"tenants and other slices {max(0, room - kept)} tokens are free then"
        )
    return ""
