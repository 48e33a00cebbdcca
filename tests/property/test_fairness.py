"""Tenants that wait get service by weight, within a quantum and what runs (INV-14)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.base import SHIPPED, Base
from bedplate.core.fairness import CREDIT_NS
from bedplate.core.ids import BranchId, CardId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import LanePolicy, Policy, TenantPolicy
from bedplate.core.rules import Rules
from bedplate.core.state import State
from bedplate.core.states import Turn
from bedplate.core.units import MINUTE_NS, SECOND_NS

LANE = LanePolicy(9_000, 64, 10_000 * SECOND_NS, 10, 0, 60 * MINUTE_NS)
PROMPT_MAX, LIMIT_MAX = 3_000, 500
MODELS = ("m", "n")
WAITING = 3
"""Turns of each tenant that wait at any time."""
RUN_SECONDS = 2
RENT = (PROMPT_MAX + LIMIT_MAX + 16) * RUN_SECONDS // 128 + 1
COST_MAX = PROMPT_MAX + 2 * LIMIT_MAX + RENT


class Backlog:
    """Tenants whose lines never run empty, on cards with room for all that may run.

    `served` is what each tenant's ended turns of the first model cost, by the rows alone, over its
    weight. Those in `away` want only the second model until they `come`.
    """

    def __init__(
        self,
        weights: list[int],
        sizes: list[int],
        *,
        quantum: int,
        running_max: int,
        rules: Rules,
        away: frozenset[int] = frozenset(),
    ) -> None:
        self.rng = random.Random(1)
        self.weights = weights
        self.sizes = sizes
        self.away = away
        self.bound = quantum + 2 * running_max * COST_MAX // min(weights)
        self.served = [0.0] * len(weights)
        self.base = Base(rules)
        self.now = SECOND_NS
        self.calls = 0
        self.running: list[act.Dispatch] = []
        self.shape: dict[str, tuple[int, str, int, int]] = {}
        tenants = tuple(
            TenantPolicy(TenantId(f"t{i}"), 0, 0, 0, 0, 0, 0, weight)
            for i, weight in enumerate(weights)
        )
        free = TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0)
        policy = Policy(
            16, (LANE,) * 3, tenants, free, 0, (), 60 * SECOND_NS, SECOND_NS, 10**6, quantum
        )
        self.tell(ev.PolicyChanged(policy))
        for index, model in enumerate(MODELS * 2):
            self.tell(
                ev.CardUp(
                    CardId(f"c{index}"),
                    ModelId(model),
                    "p",
                    "none",
                    True,
                    running_max,
                    running_max,
                    10**6,
                    10**5,
                    1,
                )
            )
        for tenant in range(len(weights)):
            self.begin(tenant, MODELS[1] if tenant in away else MODELS[0])

    def begin(self, tenant: int, model: str) -> None:
        """A tenant's line for a model, as long as it will stay."""
        running_max = self.base.state.cards[CardId("c0")].running_max
        for _ in range(WAITING + 2 * running_max):
            self.arrive(tenant, model)

    def come(self) -> None:
        """From now on all want the first model, those that were away beside the second."""
        self.served = [0.0] * len(self.weights)
        for tenant in sorted(self.away):
            self.begin(tenant, MODELS[0])

    def tell(self, event: ev.Event) -> None:
        for action in self.base.handle(self.now, event):
            if isinstance(action, act.Dispatch):
                self.running.append(action)
            elif isinstance(action, act.Settled):
                self.settle(action)

    def settle(self, row: act.Settled) -> None:
        """Add a row's cost."""
        if row.model != MODELS[0]:
            return
        tenant = int(row.tenant[1:])
        cost: float = row.prompt_tokens - row.cached_tokens + 2 * row.out_tokens
        cost += row.kv_card_token_ns / (128 * SECOND_NS)
        self.served[tenant] += cost / self.weights[tenant]

    def arrive(self, tenant: int, model: str) -> None:
        """A session of one turn; its tenant's turns are alike in size."""
        self.calls += 1
        prompt = self.rng.randint(1, self.sizes[tenant])
        limit = self.rng.randint(1, LIMIT_MAX)
        self.shape[f"{self.calls}"] = (tenant, model, prompt, limit)
        self.tell(
            ev.TurnArrived(
                TurnId(f"{self.calls}"),
                SessionId(f"s{self.calls}"),
                BranchId(0),
                -1,
                TenantId(f"t{tenant}"),
                1,
                ModelId(model),
                prompt,
                0,
                limit,
                False,
                True,
            )
        )

    def step(self) -> None:
        """One of the running turns ends, another of its tenant's arrives."""
        order = self.running.pop(self.rng.randrange(len(self.running)))
        tenant, model, prompt, limit = self.shape[order.turn]
        out = self.rng.randint(0, limit)
        self.now += self.rng.randint(0, RUN_SECONDS * SECOND_NS) // max(1, len(self.running))
        self.tell(ev.TurnEnded(order.turn, 1, "stop", prompt, 0, out, prompt + out, "", True))
        self.tell(ev.SessionClosed(SessionId(f"s{order.turn}"), "client"))
        self.arrive(tenant, model)

    def gap(self) -> float:
        """Return how far the tenants' services are apart."""
        return max(self.served) - min(self.served)


some_backlogs = given(
    weights=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    sizes=st.lists(st.sampled_from((20, 300, PROMPT_MAX)), min_size=4, max_size=4),
    quantum=st.sampled_from((0, 500, 4_096)),
    running_max=st.integers(1, 3),
)


@settings(max_examples=25, deadline=None)
@some_backlogs
def test_services_of_tenants_that_wait_stay_within_the_bound(
    weights: list[int], sizes: list[int], quantum: int, running_max: int
) -> None:
    load = Backlog(weights, sizes, quantum=quantum, running_max=running_max, rules=SHIPPED)
    for _ in range(150):
        load.step()
        assert load.gap() <= load.bound


@settings(max_examples=25, deadline=None)
@some_backlogs
def test_nobody_saves_up_service_of_a_model_by_waiting_for_another(
    weights: list[int], sizes: list[int], quantum: int, running_max: int
) -> None:
    load = Backlog(
        weights,
        sizes,
        quantum=quantum,
        running_max=running_max,
        rules=SHIPPED,
        away=frozenset(range(1, len(weights))),
    )
    for _ in range(300):
        load.step()
    load.come()
    group = load.base.state.groups[ModelId(MODELS[0])]
    credit = group.costs.tokens_in(CREDIT_NS) * group.streams
    for _ in range(300):
        load.step()
        assert load.gap() <= load.bound + credit


def _nobody_behind(state: State, turn: Turn, least: int) -> int:
    return 0


def _all_the_same(state: State, turn: Turn, least: int) -> int:
    return turn.branch.session.tenant.policy.weight


@pytest.mark.parametrize("rule", [_nobody_behind, _all_the_same])
def test_the_bound_is_one_that_other_orders_break(rule: Callable[[State, Turn, int], int]) -> None:
    rules = SHIPPED._replace(tenant_rank=rule)
    load = Backlog([1, 2], [20, PROMPT_MAX], quantum=0, running_max=1, rules=rules)
    gaps = []
    for _ in range(400):
        load.step()
        gaps.append(load.gap())
    assert max(gaps) > load.bound
