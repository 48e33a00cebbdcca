"""How long a new session would wait, by what waits before it; who would wait too long is refused.

A refusal at once is worth more than one after a minute: the agent can go elsewhere, and those that
were let in get through. Only the first call of a session is asked about: what was begun goes on.

The wait is the longer of two: the prompts that go before it, at the pace that the group's cards
were seen to have, over the prompts they compute side by side; and the turns that go before it, at
the time that a turn was seen to take, over the turns they run side by side. Those of the lanes
above go before it, and in its own lane as many of each tenant as wait of its own: so a tenant's
flood shuts out that tenant, not the others. Sessions under way will ask again, which is not
counted, so the wait may be longer; it is a reason to refuse only when it is long already.

A session that was refused and comes back stands where it would stand had it been let in: of its
tenant's turns only those that were asked before it go before it. It is known by its id for
`TURNED_AWAY_NS`, with at most `TURNED_AWAY_MAX` others of its tenant. Else those that ask later
take its place each time it stays away for as long as it was told.
"""

from __future__ import annotations

from bedplate.core.group import Group
from bedplate.core.ids import SessionId
from bedplate.core.limits import LANE_NAMES
from bedplate.core.states import Tenant, Turn
from bedplate.core.units import MINUTE_NS, SECOND_NS

MEAN_SHIFT = 4
"""The mean time of a turn moves a sixteenth of the way with each one."""
TURNED_AWAY_NS = 5 * MINUTE_NS
TURNED_AWAY_MAX = 256
"""How long a refused session keeps its place, and how many of a tenant do."""


def wait_ns(group: Group, lane: int, tenant: Tenant, asked_ns: int) -> int:
    """Return about how long a session that was asked for then would wait for its first card.

    Cost: O(tenants that wait + turns of its own that do).
    """
    ahead, waiting = _ahead(group, lane, tenant, asked_ns), max(1, group.waiting_turns[lane])
    tokens = sum(group.waiting_tokens[:lane]) + group.waiting_tokens[lane] * ahead // waiting
    turns = sum(group.waiting_turns[:lane]) + ahead
    prompts_ns = group.costs.time_of(tokens) if group.costs.prefills.known() else 0
    by_prompts_ns = prompts_ns // max(1, group.streams)
    return max(by_prompts_ns, turns * group.turn_ns // max(1, group.running_max))


def asked_ns(tenant: Tenant, session: SessionId, now_ns: int) -> int:
    """Return when a session that has not begun asked first; now, if it is not known."""
    asked = tenant.turned_away.get(session, now_ns)
    return asked if now_ns - asked <= TURNED_AWAY_NS else now_ns


def turn_away(tenant: Tenant, session: SessionId, now_ns: int) -> None:
    """Remember when a session that the lane refuses asked first. Cost: amortised O(1)."""
    known = tenant.turned_away
    while known:
        oldest = next(iter(known))
        full = len(known) >= TURNED_AWAY_MAX and session not in known
        if not full and now_ns - known[oldest] <= TURNED_AWAY_NS:
            break
        del known[oldest]
    known.setdefault(session, now_ns)


def let_in(tenant: Tenant, session: SessionId) -> None:
    """Forget that a session was refused."""
    tenant.turned_away.pop(session, None)


def _ahead(group: Group, lane: int, tenant: Tenant, asked_ns: int) -> int:
    """Return how many turns of the lane go before: as many of each tenant as of this one do."""
    lines = (group.queues[lane], group.admit_queues[lane])
    own = 0
    for line in lines:
        for turn in line.get(tenant.id, ()):
            own += turn.asked_ns <= asked_ns
    return sum(min(own, len(queue)) for line in lines for queue in line.values())


def note_waiting(group: Group, turn: Turn, fresh_tokens: int) -> None:
    """Note that a turn waits that has so many tokens to compute."""
    assert turn.waiting_tokens == 0
    turn.waiting_tokens = fresh_tokens
    group.waiting_tokens[turn.lane] += fresh_tokens
    group.waiting_turns[turn.lane] += 1


def note_gone(group: Group, turn: Turn) -> None:
    """Note that a turn does not wait any more."""
    group.waiting_tokens[turn.lane] -= turn.waiting_tokens
    group.waiting_turns[turn.lane] -= 1
    turn.waiting_tokens = 0
    assert group.waiting_tokens[turn.lane] >= 0
    assert group.waiting_turns[turn.lane] >= 0


def note_ended(group: Group, slot_ns: int) -> None:
    """Fold the time that a turn was on a card into the mean."""
    group.turn_ns += (slot_ns - group.turn_ns) >> MEAN_SHIFT if group.turn_ns else slot_ns


def too_long(lane: int, wait_ns: int, most_ns: int) -> str:
    """Say how long a new session would wait, and how long it may."""
    return (
        f"a new session would wait about {_seconds(wait_ns)} s for its first card, and lane "
        f"{LANE_NAMES[lane]} refuses one beyond {_seconds(most_ns)} s (refuse_seconds)"
    )


def _seconds(span_ns: int) -> str:
    """Return seconds to the tenth, rounded up: what is longer than a limit reads as longer."""
    tenths = -(-10 * span_ns // SECOND_NS)
    return f"{tenths // 10}.{tenths % 10}"
