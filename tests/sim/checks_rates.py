"""Check of quotas: exactly the calls that the tenant's limits forbid are turned away for them.

The buckets here follow the words of the limits: each refills evenly and holds one minute; a call
takes one request, and prompt and output limit in tokens; what it did not use comes back with its
end. A call is let in while a request is left and any token is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.limits import TenantPolicy
from bedplate.core.units import MINUTE_NS
from tests.sim.book import Book
from tests.sim.checkers import Check


@dataclass(slots=True)
class Bucket:
    """One rate: `level` in units × a minute in nanoseconds, so that it stays whole."""

    rate: int = 0
    level: int = 0
    at_ns: int = 0

    def refill(self, now: int) -> None:
        """Let it grow to now."""
        self.level = min(self.rate * MINUTE_NS, self.level + (now - self.at_ns) * self.rate)
        self.at_ns = now

    def change(self, rate: int, now: int) -> None:
        """Put another rate in force: a new limit begins full, a lower one cuts."""
        self.refill(now)
        full = rate * MINUTE_NS
        self.level = min(self.level, full) if self.rate else full
        self.rate = rate

    def take(self, units: int) -> None:
        """Take or, below 0, give back."""
        self.level = min(self.rate * MINUTE_NS, self.level - units * MINUTE_NS)


@dataclass(slots=True)
class Account:
    """One tenant: both buckets, and the tokens that its open turns took."""

    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)
    taken: dict[str, int] = field(default_factory=dict)
    inflight: int = 0


class Rates(Check):
    """A call is refused for a quota if, and only if, the quota is used up."""

    name = "rates"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.accounts: dict[str, Account] = {}
        self.spent = False
        """Whether the arrival of this step found a limit reached."""

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        if isinstance(event, ev.PolicyChanged):
            for tenant in self.accounts:
                self._change(tenant)
        elif isinstance(event, ev.TurnArrived):
            account = self._account(event.tenant)
            self.spent = self._reached(account, event.tenant)
            if self.book.turns[event.turn].accepted:
                self.need(not self.spent, f"{event}: accepted beyond a limit: {account}")
                self._take(event, account)
            for action in actions:
                if isinstance(action, act.Refuse) and action.turn == event.turn:
                    quota = action.reason == "quota_exceeded"
                    self.need(self.spent or not quota, f"{action}: not reached: {account}")
        for action in actions:
            if isinstance(action, act.Settled) and action.turn:
                self._give_back(action)

    def _account(self, tenant: str) -> Account:
        if tenant not in self.accounts:
            self.accounts[tenant] = Account()
            self._change(tenant)
        account = self.accounts[tenant]
        account.requests.refill(self.book.now)
        account.tokens.refill(self.book.now)
        return account

    def _change(self, tenant: str) -> None:
        account, policy = self.accounts[tenant], self.book.tenant_policy(tenant)
        account.requests.change(policy.requests_per_minute, self.book.now)
        account.tokens.change(policy.tokens_per_minute, self.book.now)

    def _reached(self, account: Account, tenant: str) -> bool:
        policy: TenantPolicy = self.book.tenant_policy(tenant)
        return bool(
            (policy.inflight_max and account.inflight >= policy.inflight_max)
            or (policy.requests_per_minute and account.requests.level < MINUTE_NS)
            or (policy.tokens_per_minute and account.tokens.level <= 0)
        )

    def _take(self, event: ev.TurnArrived, account: Account) -> None:
        account.inflight += 1
        if account.requests.rate:
            account.requests.take(1)
        if account.tokens.rate:
            asked = event.prompt_tokens + self.book.limit_for(event)
            account.taken[event.turn] = asked
            account.tokens.take(asked)

    def _give_back(self, action: act.Settled) -> None:
        account = self._account(action.tenant)
        account.inflight -= 1
        taken = account.taken.pop(action.turn, None)
        if taken is not None:
            account.tokens.take(action.prompt_tokens + action.out_tokens - taken)


CHECKS = (Rates,)
