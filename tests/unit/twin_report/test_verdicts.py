"""A verdict is right when more of what it names makes sessions faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bedplate.core.limits import TenantPolicy, default_policy
from bedplate.core.units import SECOND_NS
from bedplate.perf.profile import Batching, CardProfile, LinearCost, MoveCost
from bedplate.twin.faults import CardLost, Fault, LinkSlow
from bedplate.twin.report import Report, make_report
from bedplate.twin.run import simulate
from bedplate.twin.site import NO_POOL, CardSpec, PoolSpec, Site
from bedplate.twin.workload.generate import Mix, generate

GIB = 1 << 30
MS = 1e6
LOAD = generate(
    Mix(shares={"customer_service": 1}, sessions_per_hour=15_000, hours=0.004, flat=True), seed=1
)
CARD = CardProfile(
    name="card",
    model="m",
    evidence="roofline",
    kv="full",
    can_cut=True,
    slots=64,
    running_max=64,
    kv_tokens=600_000,
    context_tokens=60_000,
    kv_bytes_per_token=131_072,
    batching=Batching(token_budget=2_048),
    step=LinearCost(2 * MS, 8 * MS, 0.02 * MS, 0.02 * MS, 0.02, 40.0),
    store=MoveCost(1 * MS, 0.04, stalls=False),
    load=MoveCost(1 * MS, 0.04, stalls=False),
)
POOL = PoolSpec(256 * GIB, 100e9, 0.0)


def run(
    card: CardProfile, pool: PoolSpec, *faults: Fault, tenant: TenantPolicy | None = None
) -> Report:
    policy = default_policy(pool_bytes_max=pool.size_bytes)
    waits = tuple(lane._replace(refuse_ns=0) for lane in policy.lanes)  # who is refused is no row
    policy = policy._replace(lanes=waits)
    if tenant is not None:
        policy = policy._replace(default_tenant=tenant)
    site = Site("one", (CardSpec("c", "", card),), policy, pool)
    return make_report(simulate(site, LOAD, seed=1, faults=faults), LOAD, site)


Case = tuple[CardProfile, PoolSpec]


def few_slots() -> Case:
    return replace(CARD, running_max=1), POOL


def small_memory() -> Case:
    return replace(CARD, kv_tokens=20_000, context_tokens=20_000), POOL


def slow_arithmetic(sequence_ns: float = 8 * MS) -> Case:
    step = LinearCost(0.1 * MS, 0.1 * MS, 0.02 * MS, sequence_ns, 0.02, 40.0)
    return replace(CARD, running_max=16, step=step), POOL


def slow_link() -> Case:
    return replace(CARD, kv_tokens=40_000, context_tokens=40_000), replace(POOL, bytes_per_s=3e8)


@pytest.mark.parametrize(
    ("make", "binds", "relax"),
    [
        (few_slots, "slots", lambda c, p: (replace(c, running_max=2 * c.running_max), p)),
        (small_memory, "kv_room", lambda c, p: (replace(c, kv_tokens=2 * c.kv_tokens), p)),
        (slow_arithmetic, "compute", lambda _c, _p: slow_arithmetic(4 * MS)),
        (slow_link, "link", lambda c, p: (c, replace(p, bytes_per_s=2 * p.bytes_per_s))),
    ],
)
def test_more_of_what_binds_helps(
    make: Callable[[], Case], binds: str, relax: Callable[[CardProfile, PoolSpec], Case]
) -> None:
    before = run(*make())
    assert before.bottleneck.binds == binds, before.bottleneck
    after = run(*relax(*make()))
    one, other = before.overall.times.turn, after.overall.times.turn
    assert one is not None
    assert other is not None
    assert other.mean < 0.8 * one.mean


def test_where_tools_bind_twice_the_card_hardly_helps() -> None:
    before, after = run(CARD, POOL), run(replace(CARD, running_max=128), POOL)
    assert before.bottleneck.binds == "tools"
    one, other = before.overall.times.session, after.overall.times.session
    assert one is not None
    assert other is not None
    assert other.mean == pytest.approx(one.mean, rel=0.02)


@pytest.mark.parametrize("factor", [300.0])
def test_a_link_that_a_fault_makes_slow_binds(factor: float) -> None:
    card = replace(CARD, kv_tokens=40_000, context_tokens=40_000)
    slow = LinkSlow(at_ns=0, partition="", factor=factor)
    found = run(card, POOL, slow).bottleneck
    assert found.binds == "link", found
    assert "a fault" in found.why
    assert run(card, POOL).bottleneck.binds != "link"


FREE = default_policy().default_tenant


@pytest.mark.parametrize(
    "tenant",
    [
        FREE._replace(running_max=1),
        FREE._replace(inflight_max=2),
        FREE._replace(requests_per_minute=60),
    ],
)
def test_a_limit_of_the_tenant_binds(tenant: TenantPolicy) -> None:
    found = run(CARD, POOL, tenant=tenant).bottleneck
    assert found.binds == "limits", found


def test_without_a_card_it_is_cards_that_lack() -> None:
    found = run(CARD, POOL, CardLost(at_ns=100 * SECOND_NS, card="c"))
    assert found.bottleneck.binds == "cards"
    [lane] = found.lanes
    assert lane.turns < lane.turns_offered
    assert lane.goodput.offered == lane.turns_offered == sum(len(s.turns) for s in LOAD.sessions)
    assert lane.goodput.share < lane.turns_done / lane.turns
    [fault] = found.faults
    assert (fault.effect, fault.good_before) == ("lasting", 1.0)


def test_memory_binds_without_a_pool_too() -> None:
    found = run(replace(CARD, kv_tokens=30_000, context_tokens=30_000), NO_POOL)
    assert found.bottleneck.binds == "kv_room"
