"""Budgets: money of a tenant in a day and a month, money and tokens of one session.

A call reserves the most that it may cost (its prompt computed, at its upper bound where it is only
estimated, and its limit produced) and is let in only if spent + reserved stays within every budget;
its usage row then settles it: what it did cost is spent, the reservation is gone (INV-20). A turn
that fails on our side costs nothing. So calls of one instant cannot pass a budget together, and
what is enforced is the sum of the rows, to the last millionth: both come from `prices.cost_of`.

Money that time costs (KV kept, hours of a card) cannot be reserved, for nobody knows how long. It
counts when its row is written, and may take what is spent beyond the budget; then nothing more is
let in.

Days and months are the tenant's own. CalendarDay tells when they begin and end; a row belongs to
the day in which it is written, as on a bill. A zone without a calendar has one day without end.
"""

from __future__ import annotations

from typing import NamedTuple

from bedplate.core.actions import Alarm, Settled
from bedplate.core.charges import amount, cost_of, highest
from bedplate.core.events import CalendarDay, LedgerRead
from bedplate.core.ids import CardId
from bedplate.core.state import State
from bedplate.core.states import Session, Tenant, Turn
from bedplate.core.units import MINUTE_NS, SECOND_NS

SETTLE_NS = SECOND_NS
"""When to ask again where open turns hold what the call needs."""


WARN_PERMILLE = 800
"""Share of a budget from which on operators are warned."""


class Over(NamedTuple):
    """A budget that a call would pass: the code and the words of the refusal, and when to return.

    `retry_ns` is 0 where waiting cannot help.
    """

    code: str
    detail: str
    retry_ns: int


def refusal(
    state: State, payer: Tenant, session: Session | None, prompt_tokens: int, limit_tokens: int
) -> Over | None:
    """Return the first budget that a call would pass, None when it may come in.

    Cost: a few microseconds.
    """
    policy = payer.policy
    asked = highest(state.policy.prices, prompt_tokens=prompt_tokens, limit_tokens=limit_tokens)
    if policy.session_total_tokens_max:
        tokens = prompt_tokens + limit_tokens
        spent = session.spent_tokens if session is not None else 0
        reserved = session.reserved_tokens if session is not None else 0
        limit = policy.session_total_tokens_max
        if spent + reserved + tokens > limit:
            text = _words(str(spent), str(reserved), str(limit), str(tokens))
            wait_ns = SETTLE_NS if spent + tokens <= limit else 0
            return Over("session_budget_exceeded", f"tokens of the session: {text}", wait_ns)
    if policy.session_micro_max:
        spent = session.spent_micro if session is not None else 0
        reserved = session.reserved_micro if session is not None else 0
        over = _over(state, (spent, reserved, policy.session_micro_max), asked)
        if over:
            wait_ns = SETTLE_NS if spent + asked <= policy.session_micro_max else 0
            return Over("session_budget_exceeded", f"money of the session: {over}", wait_ns)
    if not policy.day_micro_max and not policy.month_micro_max:
        return None
    roll(state, payer)
    day_end_ns, month_end_ns = _ends(state, payer)
    for name, spent, limit, end_ns in (
        ("day", payer.day_micro, policy.day_micro_max, day_end_ns),
        ("month", payer.month_micro, policy.month_micro_max, month_end_ns),
    ):
        over = _over(state, (spent, payer.reserved_micro, limit), asked) if limit else ""
        if over:
            if asked > limit:
                wait_ns = 0
            elif spent + asked <= limit:
                wait_ns = SETTLE_NS
            else:
                wait_ns = max(SETTLE_NS, end_ns - state.now_ns)
            window = f"money of the {name} of tenant {payer.id}"
            if end_ns > state.now_ns:
                left = _span(end_ns - state.now_ns)
                window = f"{window}, which ends in {left} ({policy.zone})"
            return Over("budget_exceeded", f"{window}: {over}", wait_ns)
    return None


def _span(span_ns: int) -> str:
    """Return a time in the two units that tell most of it: 3 d 4 h, or 4 h 31 min."""
    minutes = -(-span_ns // MINUTE_NS)
    days, rest = minutes // 1_440, minutes % 1_440
    return f"{days} d {rest // 60} h" if days else f"{rest // 60} h {rest % 60} min"


def _over(state: State, budget: tuple[int, int, int], asked: int) -> str:
    """Say what is spent, reserved and the limit, if the call would pass it."""
    spent, reserved, limit = budget
    if spent + reserved + asked <= limit:
        return ""
    prices = state.policy.prices
    words = [amount(micro, prices) for micro in (spent, reserved, limit, asked)]
    return _words(words[0], words[1], words[2], words[3])


def _words(spent: str, reserved: str, limit: str, asked: str) -> str:
    return f"spent {spent}, reserved {reserved}, limit {limit}, this call may take {asked}"


def take(state: State, turn: Turn, prompt_tokens: int) -> None:
    """Reserve what an accepted call may cost, with the most tokens that its prompt can have."""
    session = turn.branch.session
    tenant = session.tenant
    assert turn.budget_micro == turn.budget_tokens == 0
    turn.budget_tokens = prompt_tokens + turn.limit_tokens
    turn.budget_micro = highest(
        state.policy.prices, prompt_tokens=prompt_tokens, limit_tokens=turn.limit_tokens
    )
    session.reserved_tokens += turn.budget_tokens
    session.reserved_micro += turn.budget_micro
    tenant.reserved_micro += turn.budget_micro


def release(turn: Turn) -> None:
    """Give back what a turn reserved, for its row is about to be written."""
    session = turn.branch.session
    session.reserved_tokens -= turn.budget_tokens
    session.reserved_micro -= turn.budget_micro
    session.tenant.reserved_micro -= turn.budget_micro
    turn.budget_micro = turn.budget_tokens = 0
    assert session.reserved_tokens >= 0
    assert session.tenant.reserved_micro >= session.reserved_micro >= 0


def meter(state: State, tenant: Tenant, session: Session | None, row: Settled) -> None:
    """Emit a usage row and count what it costs as spent; embeddings belong to no session.

    An alarm tells when a tenant's money of the day or month is nearly spent, and when it is.
    """
    state.emit(row)
    card = state.cards.get(CardId(row.card))
    group = state.groups.get(row.model)
    cost = cost_of(
        row,
        state.policy.prices,
        kv_bytes_per_token=(
            card.bytes_per_token
            if card is not None
            else (group.priced_bytes if group is not None else 0)
        ),
        slots=max(1, len(card.slots)) if card is not None else 1,
    ).total
    if session is not None:
        session.spent_tokens += row.prompt_tokens + row.out_tokens
        session.spent_micro += cost
    roll(state, tenant)
    policy = tenant.policy
    day, month = tenant.day_micro + cost, tenant.month_micro + cost
    for kind, before, after, limit in (
        ("budget_day", tenant.day_micro, day, policy.day_micro_max),
        ("budget_month", tenant.month_micro, month, policy.month_micro_max),
    ):
        if _level(after, limit) > _level(before, limit):
            state.emit(Alarm(kind, tenant.id, _level(after, limit)))
    tenant.day_micro, tenant.month_micro = day, month


def _level(spent: int, limit: int) -> int:
    """Return 1 from WARN_PERMILLE of a budget on, 2 once it is spent, 0 without a limit."""
    if not limit:
        return 0
    return int(spent * 1000 >= limit * WARN_PERMILLE) + int(spent >= limit)


def roll(state: State, tenant: Tenant) -> None:
    """Begin the tenant's day and month anew if new ones have begun."""
    day_ns, month_ns = _starts(state, tenant)
    if tenant.day_ns < day_ns:
        tenant.day_ns, tenant.day_micro = state.now_ns, 0
    if tenant.month_ns < month_ns:
        tenant.month_ns, tenant.month_micro = state.now_ns, 0


def spent_now(state: State, tenant: Tenant) -> tuple[int, int]:
    """Return what the tenant has spent in the day and month of the last event; changes nothing."""
    day_ns, month_ns = _starts(state, tenant)
    day = tenant.day_micro if tenant.day_ns >= day_ns else 0
    return day, tenant.month_micro if tenant.month_ns >= month_ns else 0


def _starts(state: State, tenant: Tenant) -> tuple[int, int]:
    day_ns, day_end_ns, month_ns, month_end_ns = state.calendars.get(
        tenant.policy.zone, (0, 0, 0, 0)
    )
    now_ns = state.now_ns
    return _begun(day_ns, day_end_ns, now_ns), _begun(month_ns, month_end_ns, now_ns)


def _begun(start_ns: int, end_ns: int, now_ns: int) -> int:
    """Return when the window of now began, by a calendar that may be of a window before.

    Those since then are taken to be as long as that one; they are until the calendar says better.
    """
    if now_ns < end_ns or end_ns == 0:
        return start_ns
    length_ns = end_ns - start_ns
    return end_ns + (now_ns - end_ns) // length_ns * length_ns


def _ends(state: State, tenant: Tenant) -> tuple[int, int]:
    _, day_end_ns, _, month_end_ns = state.calendars.get(tenant.policy.zone, (0, 0, 0, 0))
    return day_end_ns, month_end_ns


def calendar_day(state: State, event: CalendarDay) -> None:
    """Learn the windows of a zone."""
    assert event.day_ns < event.day_end_ns
    assert event.month_ns < event.month_end_ns
    state.calendars[event.zone] = (
        event.day_ns,
        event.day_end_ns,
        event.month_ns,
        event.month_end_ns,
    )


def ledger_read(state: State, event: LedgerRead) -> None:
    """Take over what the rows of a former core say was spent."""
    tenant = state.tenant(event.tenant)
    roll(state, tenant)
    tenant.day_micro = event.day_micro
    tenant.month_micro = event.month_micro
