"""Tenants inside a lane: everyone gets service by weight, within a quantum.

Each tenant has a *virtual service* a lane: what it got there, divided by its weight. A turn is
charged what it is expected to cost when it starts, and the rest when it is settled:

    cost = uncached prompt tokens + 2 x output tokens + KV held on cards / 128 token-seconds

Output is dearer, as a token of it is a pass over all weights; KV is charged while it idles too, so
that long leases are paid for by who holds them. The weights 1 and 2 are those of VTC (Sheng et al.,
OSDI 2024); the rent makes KV that fills a card for a second cost about what the card computes in
that second.

Tenants go by whole quanta that they are ahead of the least among those that wait; inside a quantum
order and locality are free (DLPM, Cao et al., 2025). A quantum is what one card computes in
`Policy.fair_quantum_ns`.

One that begins to wait is lifted to the lane's floor, the least virtual service seen at the latest
start, less a credit of what the cards compute in `CREDIT_NS`. So who asks less than its share goes
before who asks more, also when its turns come in bursts, and nobody saves up more than the credit
by being away.

While a tenant waits, it has got at most a quantum, the credit of another, and what one turn costs
on each card, less than any other of the same weight; without the credit where both wait all the
time (INV-14).
"""

from __future__ import annotations

from typing import Final

from bedplate.core.group import Group
from bedplate.core.prefixes import opening_of
from bedplate.core.state import State
from bedplate.core.states import Branch, Tenant, Turn
from bedplate.core.units import SECOND_NS

PROMPT_COST: Final = 1
OUTPUT_COST: Final = 2
RENT_NS = 128 * SECOND_NS
"""Token-nanoseconds on a card that cost as much as one prompt token."""
CREDIT_NS = 2 * SECOND_NS
"""Work of the group's cards that a tenant may have left to others and get back at once."""
SCALE: Final = 1_000
"""Virtual service counts in thousandths of cost, so that weights divide it well."""
OUTPUT_SHIFT: Final = 3
"""The mean output of a tenant's turns moves an eighth of the way with each one."""


def tenant_rank(state: State, turn: Turn, least: int) -> int:
    """Return how many whole quanta the turn's tenant is ahead of the least that waits."""
    quantum = turn.branch.group.costs.tokens_in(state.policy.fair_quantum_ns)
    return max(0, virtual(turn) - least) // max(1, quantum * SCALE)


def virtual(turn: Turn) -> int:
    """Return the virtual service of the turn's tenant in its lane."""
    branch = turn.branch
    return branch.group.virtual[turn.lane].get(branch.session.tenant.id, 0)


def lift(group: Group, turn: Turn) -> None:
    """Note that a tenant begins to wait in a lane."""
    tenant = turn.branch.session.tenant.id
    served = group.virtual[turn.lane]
    credit = SCALE * group.costs.tokens_in(CREDIT_NS) * max(1, group.streams)
    served[tenant] = max(served.get(tenant, 0), group.floors[turn.lane] - credit)


def expected_cost(turn: Turn) -> int:
    """Return what the turn will probably cost, in prompt tokens."""
    out = min(turn.limit_tokens, turn.branch.session.tenant.output_mean)
    return PROMPT_COST * fresh_tokens(turn) + OUTPUT_COST * out


def fresh_tokens(turn: Turn) -> int:
    """Return how many prompt tokens must probably be computed, at least one."""
    held = min(_reusable(turn.branch), turn.reuse_tokens, turn.prompt_tokens)
    if not held and turn.branch.entry is None:
        opening = opening_of(turn)
        held = opening.tokens if opening is not None else 0
    return max(1, turn.prompt_tokens - held)


def _reusable(branch: Branch) -> int:
    if branch.slot is not None:
        return branch.slot.shared_tokens
    if branch.entry is not None:
        return branch.entry.shared_tokens
    return branch.source_tokens if branch.source is not None else 0


def charge_start(turn: Turn) -> None:
    """Charge a turn that starts with what it will probably cost; once more if it starts again."""
    cost = expected_cost(turn)
    turn.charged += cost
    _add(turn, cost)


def charge_end(turn: Turn, *, cached_tokens: int, area_card: int) -> None:
    """Charge what an ended turn cost beyond what it was charged, or give back what is over."""
    tenant = turn.branch.session.tenant
    cost = area_card // RENT_NS
    if turn.attempt:
        cost += PROMPT_COST * max(0, turn.prompt_tokens - cached_tokens)
        cost += OUTPUT_COST * turn.out_tokens
        tenant.output_mean += (turn.out_tokens - tenant.output_mean) >> OUTPUT_SHIFT
    _add(turn, cost - turn.charged)
    turn.charged = 0


def charge_rest(branch: Branch, area_card: int) -> None:
    """Charge KV that a branch held on a card since its last turn, which no turn will be charged."""
    _add_to(branch, branch.session.lane, area_card // RENT_NS)


def _add(turn: Turn, cost: int) -> None:
    _add_to(turn.branch, turn.lane, cost)


def _add_to(branch: Branch, lane: int, cost: int) -> None:
    tenant: Tenant = branch.session.tenant
    served = branch.group.virtual[lane]
    served[tenant.id] = served.get(tenant.id, 0) + cost * SCALE // tenant.policy.weight
