"""Check of budgets (F01, F03): a call comes in if, and only if, its worst case is left everywhere.

The arithmetic here follows the words of the price list, with fractions; what is spent is the sum of
the rows alone, in windows that the calendar's events name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from bedplate.core import actions as act
from bedplate.core import events as ev
from tests.sim.book import Book
from tests.sim.checkers import Check

MILLION = 10**6
HOUR_NS = 3_600 * 10**9
REASONS = ("budget_exceeded", "session_budget_exceeded")


@dataclass(slots=True)
class Purse:
    """One tenant or session: what its rows cost, when, and what its open turns may cost."""

    rows: list[tuple[int, int]] = field(default_factory=list)
    micro: int = 0
    tokens: int = 0
    open_micro: dict[str, int] = field(default_factory=dict)
    open_tokens: dict[str, int] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Money of open turns."""
        return sum(self.open_micro.values())

    def since(self, start_ns: int) -> int:
        """Money of the rows from an instant on."""
        return sum(micro for at_ns, micro in self.rows if at_ns >= start_ns)


class Budgets(Check):
    """Spent + reserved stays within every budget, and nobody is refused who had enough left."""

    name = "budgets"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.tenants: dict[str, Purse] = {}
        self.sessions: dict[str, Purse] = {}
        self.calendar = ev.CalendarDay("UTC", 0, 0, 0, 0)

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        if isinstance(event, ev.CalendarDay):
            self.calendar = event
        if isinstance(event, ev.TurnArrived):
            self._arrived(event, actions)
        for action in actions:
            if isinstance(action, act.Settled):
                self._settled(action)
            elif isinstance(action, act.SessionEnded):
                self.sessions.pop(action.session, None)

    def _start(self, start_ns: int, end_ns: int) -> int:
        """When the day or month of now began; they are all as long as the one that was told."""
        while start_ns < end_ns <= self.book.now:
            start_ns, end_ns = end_ns, 2 * end_ns - start_ns
        return start_ns

    def _arrived(self, event: ev.TurnArrived, actions: tuple[act.Action, ...]) -> None:
        accepted = self.book.turns[event.turn].accepted
        told = [a for a in actions if isinstance(a, act.Refuse) and a.turn == event.turn]
        if not accepted and told[0].reason not in REASONS:
            return
        tenant = self.tenants.setdefault(event.tenant, Purse())
        session = self.sessions.get(event.session, Purse())
        tokens = event.prompt_tokens + self.book.limit_for(event)
        micro = self._most(event.prompt_tokens, tokens - event.prompt_tokens)
        over = self._over(event.tenant, tenant, session, micro, tokens)
        if not accepted:
            self.need(over == told[0].reason, f"{told[0]}: enough is left: {tenant} {session}")
        else:
            self.need(not over, f"{event}: accepted beyond a budget: {tenant} {session}")
            self.sessions[event.session] = session
            for purse in (tenant, session):
                purse.open_micro[event.turn] = micro
                purse.open_tokens[event.turn] = tokens

    def _over(self, name: str, tenant: Purse, session: Purse, micro: int, tokens: int) -> str:
        limits = self.book.tenant_policy(name)
        used = session.tokens + sum(session.open_tokens.values())
        if 0 < limits.session_total_tokens_max < used + tokens:
            return "session_budget_exceeded"
        if 0 < limits.session_micro_max < session.micro + session.held + micro:
            return "session_budget_exceeded"
        known = self.calendar
        for start_ns, end_ns, limit in (
            (known.day_ns, known.day_end_ns, limits.day_micro_max),
            (known.month_ns, known.month_end_ns, limits.month_micro_max),
        ):
            spent = tenant.since(self._start(start_ns, end_ns)) if limit else 0
            if 0 < limit < spent + tenant.held + micro:
                return "budget_exceeded"
        return ""

    def _most(self, prompt: int, limit: int) -> int:
        assert self.book.policy is not None
        prices = self.book.policy.prices
        dearest = max(prices.uncached_micro, prices.cached_micro)
        whole = not prices.uncached_micro % MILLION and not prices.cached_micro % MILLION
        return (
            round(Fraction(prompt * dearest, MILLION))
            + round(Fraction(limit * prices.output_micro, MILLION))
            + (0 if whole else 1)
        )

    def _settled(self, row: act.Settled) -> None:
        tenant = self.tenants.setdefault(row.tenant, Purse())
        session = self.sessions[row.session] if row.session else Purse()
        cost = self._cost(row)
        if row.turn:
            most = tenant.open_micro.pop(row.turn)
            del session.open_micro[row.turn], session.open_tokens[row.turn]
            del tenant.open_tokens[row.turn]
            self.need(self._tokens_cost(row) <= most, f"{row}: costs more than was reserved")
        tenant.rows.append((self.book.now, cost))
        session.micro += cost
        session.tokens += row.prompt_tokens + row.out_tokens

    def _tokens_cost(self, row: act.Settled) -> int:
        assert self.book.policy is not None
        prices = self.book.policy.prices
        if row.status in ("error", "lost", "refused"):
            return 0
        fresh = row.prompt_tokens - row.cached_tokens
        return (
            round(Fraction(fresh * prices.uncached_micro, MILLION))
            + round(Fraction(row.cached_tokens * prices.cached_micro, MILLION))
            + round(Fraction(row.out_tokens * prices.output_micro, MILLION))
        )

    def _cost(self, row: act.Settled) -> int:
        assert self.book.policy is not None
        prices, cards = self.book.policy.prices, self.book.cards
        weight = max(card.up.kv_bytes_per_token for card in cards.values())
        gib_hour = 2**30 * HOUR_NS
        kept = round(Fraction(row.kv_card_token_ns * weight * prices.card_kv_micro, gib_hour))
        kept += round(Fraction(row.kv_pool_token_ns * weight * prices.pool_kv_micro, gib_hour))
        hours = 0
        if row.card and row.status not in ("error", "lost", "refused"):
            slots = cards[row.card].up.slots
            hours = round(Fraction(row.slot_ns * prices.card_hour_micro, slots * HOUR_NS))
        return self._tokens_cost(row) + kept + hours


CHECKS = (Budgets,)
