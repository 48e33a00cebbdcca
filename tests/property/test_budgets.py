"""No order of calls and ends passes a budget, and what is enforced is what the bill says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core import invariants
from bedplate.core.base import Base
from bedplate.core.codec import body_of
from bedplate.core.ids import BranchId, CardId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import TenantPolicy, default_policy
from bedplate.core.prices import DEFAULT_PRICES
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.units import SECOND_NS
from bedplate.metering.bill import make_bill
from tests.sim.checkers import Checkers
from tests.sim.options import draw
from tests.sim.world import World
from tests.unit.metering.builders import Log

START_NS = 1_000 * SECOND_NS
DAY_NS = 100 * SECOND_NS
TOKENS_ONLY = DEFAULT_PRICES._replace(
    uncached_micro=2_345_678, cached_micro=200_001, card_kv_micro=0, pool_kv_micro=0
)
LIMITS = TenantPolicy(
    TenantId(""), 0, 0, 0, 0, 0, 0,
    day_micro_max=900, month_micro_max=2_000,
    session_micro_max=700, session_total_tokens_max=200,
)  # fmt: skip
CARD = ev.CardUp(CardId("c"), ModelId("m"), "p", "hints", True, 64, 64, 100_000, 1_000, 1)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 3), st.integers(1, 60), st.integers(1, 40)),
        st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 40), st.integers(0, 60)),
        st.tuples(st.just("fail"), st.integers(0, 9), st.booleans(), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0), st.just(0)),
        st.tuples(st.just("close"), st.integers(0, 3), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 120), st.booleans(), st.just(0)),
        st.tuples(st.just("embed"), st.integers(0, 3), st.integers(1, 200), st.booleans()),
        st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class Till:
    """A core whose tenant has every budget, and who runs what of it."""

    def __init__(self) -> None:
        self.base = Base()
        self.now = START_NS
        self.serial = 0
        self.running: dict[TurnId, act.Dispatch] = {}
        self.prompt: dict[TurnId, int] = {}
        policy = default_policy()._replace(prices=TOKENS_ONLY, default_tenant=LIMITS)
        for event in (ev.PolicyChanged(policy), CARD, self.calendar()):
            self.tell(event)

    def calendar(self) -> ev.CalendarDay:
        """The day and the month of three days that hold now."""
        day = START_NS + (self.now - START_NS) // DAY_NS * DAY_NS
        month = START_NS + (self.now - START_NS) // (3 * DAY_NS) * 3 * DAY_NS
        return ev.CalendarDay("UTC", day, day + DAY_NS, month, month + 3 * DAY_NS)

    def tell(self, event: ev.Event) -> tuple[act.Action, ...]:
        actions = self.base.handle(self.now, event)
        invariants.check(self.base)
        for action in actions:
            if isinstance(action, act.Dispatch):
                self.running[action.turn] = action
            elif isinstance(action, act.Settled):
                self.running.pop(action.turn, None)
        state = self.base.state
        for tenant in state.tenants.values():
            assert tenant.day_micro + tenant.reserved_micro <= LIMITS.day_micro_max
            assert tenant.month_micro + tenant.reserved_micro <= LIMITS.month_micro_max
        for session in state.sessions.values():
            assert session.spent_micro + session.reserved_micro <= LIMITS.session_micro_max
            used = session.spent_tokens + session.reserved_tokens
            assert used <= LIMITS.session_total_tokens_max
        return actions

    def call(self, number: int, prompt: int, limit: int) -> None:
        self.serial += 1
        turn = TurnId(f"t{self.serial}")
        self.prompt[turn] = prompt
        self.tell(
            ev.TurnArrived(
                turn, SessionId(f"s{number}"), BranchId(self.serial), -1,
                TenantId("a" if number % 2 else "b"), 0, ModelId("m"), prompt, 0, limit, True, True,
            )
        )  # fmt: skip

    def embed(self, number: int, tokens: int, *, ends: bool) -> None:
        """An embedding call, which ends with what was booked, or never while the story lasts."""
        self.serial += 1
        call, tenant = TurnId(f"e{self.serial}"), TenantId("a" if number % 2 else "b")
        actions = self.tell(ev.CallArrived(call, tenant, 0, ModelId("m"), tokens))
        if ends and not actions:
            self.tell(ev.CallEnded(call, "stop", tokens, 5))

    def pick(self, number: int) -> act.Dispatch | None:
        runs = list(self.running.values())
        return runs[number % len(runs)] if runs else None

    def end(self, number: int, out: int, cached: int) -> None:
        run = self.pick(number)
        if run is not None:
            prompt = self.prompt[run.turn]
            out, cached = min(out, run.limit_tokens), min(cached, prompt)
            self.tell(
                ev.TurnEnded(
                    run.turn, run.attempt, "stop", prompt, cached, out, prompt + out, "", True
                )
            )

    def fail(self, number: int, *, retryable: bool) -> None:
        run = self.pick(number)
        if run is not None:
            self.tell(ev.DispatchFailed(run.turn, run.attempt, "engine_lost", retryable, 0))

    def cancel(self, number: int) -> None:
        run = self.pick(number)
        if run is not None:
            self.tell(ev.TurnCancelled(run.turn, "client_cancelled"))
            self.tell(
                ev.TurnEnded(
                    run.turn, run.attempt, "cancelled", self.prompt[run.turn], 0, 1, 0, "", False
                )
            )


@given(steps)
@settings(max_examples=150, deadline=None)
def test_spent_and_reserved_never_pass_a_limit(story: list[tuple[str, int, int, int]]) -> None:
    till = Till()
    for what, one, two, three in story:
        till.now += SECOND_NS // 100
        if what == "call":
            till.call(one, two, three)
        elif what == "end":
            till.end(one, two, three)
        elif what == "fail":
            till.fail(one, retryable=bool(two))
        elif what == "cancel":
            till.cancel(one)
        elif what == "close":
            till.tell(ev.SessionClosed(SessionId(f"s{one}"), "client"))
        elif what == "embed":
            till.embed(one, two, ends=bool(three))
        elif what == "wait":
            till.now += one * SECOND_NS
            till.tell(till.calendar() if two else ev.TimerFired())
        else:
            till.base = restore(snapshot(till.base))
    while till.running:
        till.end(0, 1, 0)
    for call in list(till.base.state.calls):
        till.tell(ev.CallEnded(call, "lost", 0, 0))
    assert all(not tenant.reserved_micro for tenant in till.base.state.tenants.values())


class Journaled:
    """A core whose cards and rows are written down as the runtime writes them."""

    def __init__(self) -> None:
        self.base = Base()
        self.log = Log()

    @property
    def digest(self) -> bytes:
        return self.base.digest

    def handle(self, now_ns: int, event: ev.Event) -> tuple[act.Action, ...]:
        actions = self.base.handle(now_ns, event)
        self.log.add(type(event).__name__, body_of(event))
        for action in actions:
            if isinstance(action, act.Settled):
                self.log.usage(action)
        return actions


@pytest.mark.parametrize("seed", range(40, 52))
def test_failures_f03_what_is_enforced_is_the_bill(seed: int) -> None:
    """F03: whatever fails, each tenant's money is the sum of its rows, to the last millionth."""
    options = draw(seed)
    prices = DEFAULT_PRICES._replace(
        card_kv_micro=10**12, pool_kv_micro=10**11 + 7, card_hour_micro=3_333_333_333
    )
    free = TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0)
    policies = [
        policy._replace(prices=prices, tenants=(), default_tenant=free)
        for policy in (options.policy, *options.later_policies)
    ]
    options = replace(options, policy=policies[0], later_policies=tuple(policies[1:]), day_ns=0)
    core = Journaled()
    core.log.prices(**{**prices.body(), "version": "p-1"})
    World(options, core, Checkers()).run()
    bill = make_bill(core.log.records)
    billed = {line.key[0]: line.cost.total for line in bill.lines}
    tenants = core.base.state.tenants.values()
    assert {t.id: t.month_micro for t in tenants if t.month_micro} == {
        tenant: micro for tenant, micro in billed.items() if micro
    }
    assert sum(billed.values()) > 0
