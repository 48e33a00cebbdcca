"""What one seed draws: cards, policy, load and faults."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bedplate.core.events import CardUp
from bedplate.core.ids import CardId, ModelId, TenantId
from bedplate.core.limits import LanePolicy, Policy, Slice, TenantPolicy
from bedplate.core.prices import Prices
from bedplate.core.units import MILLISECOND_NS, MINUTE_NS, SECOND_NS


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances in permille, each drawn where the thing happens."""

    dispatch: int = 0
    stop_midway: int = 0
    hang: int = 0
    load: int = 0
    load_lies: int = 0
    store: int = 0
    drop: int = 0
    drop_entry: int = 0
    duplicate: int = 0
    stale: int = 0
    cancel: int = 0
    close: int = 0
    vanish: int = 0
    cards: int = 0
    """Card losses, restarts and drains over the run."""
    policies: int = 0
    stalls: int = 0
    noise: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """One run."""

    seed: int
    cards: tuple[CardUp, ...]
    policy: Policy
    later_policies: tuple[Policy, ...]
    tenants: tuple[TenantId, ...]
    models: tuple[ModelId, ...]
    sessions: int
    turns_max: int
    prompt_first_max: int
    prompt_more_max: int
    limit_max: int
    arrivals_ns: int
    gap_ns: int
    forks: int
    cuts: int
    side_by_side: int
    load_seconds_max: int
    faults: Faults
    shutdown: bool
    shadow: bool
    day_ns: int
    """Length of a day of the calendar, 0 without one; a month has three."""
    openings: tuple[int, ...] = ()
    """Tokens of the openings that sessions share, by number; 0 for a session without one."""


def draw(seed: int) -> Options:
    """Return the options of a seed, two of five with budgets."""
    rng = random.Random(f"options {seed}")
    models = tuple(ModelId(f"m{i}") for i in range(rng.choice((1, 1, 2))))
    tenants = tuple(TenantId(f"t{i}") for i in range(rng.randint(1, 5)))
    block = rng.choice((1, 8, 16, 32))
    cards = tuple(_card(rng, number, models) for number in range(rng.randint(len(models), 5)))
    room = sum(card.kv_tokens for card in cards) * 1000
    pool = rng.choice((0, room // 8, room // 2, room, room * 4))
    policy = _policy(rng, block=block, pool=pool, tenants=tenants)
    context = max(card.context_tokens for card in cards)
    calm = rng.random() < 0.3
    purse = random.Random(f"budgets {seed}")
    budgets = purse.random() < 0.4
    later = tuple(
        _policy(rng, block=block, pool=rng.choice((pool, pool // 2)), tenants=tenants)
        for _ in range(2)
    )
    if budgets:
        prices = _prices(purse)
        policy = _with_budgets(purse, policy, prices, context)
        later = tuple(_with_budgets(purse, one, prices, context) for one in later)
    keeper = random.Random(f"reserves {seed}")
    if keeper.random() < 0.4:
        policy = _with_reserves(keeper, policy, cards, tenants)
        later = tuple(_with_reserves(keeper, one, cards, tenants) for one in later)
    return Options(
        seed=seed,
        cards=cards,
        policy=policy,
        later_policies=later,
        tenants=tenants,
        models=models,
        sessions=rng.randint(3, 40),
        turns_max=rng.randint(1, 8),
        prompt_first_max=max(2, context * rng.choice((10, 25, 60, 120)) // 100),
        prompt_more_max=max(2, context * rng.choice((2, 10, 30)) // 100),
        limit_max=max(1, context * rng.choice((2, 10, 40)) // 100),
        arrivals_ns=rng.choice((1, 20, 120)) * SECOND_NS,
        gap_ns=rng.choice((10 * MILLISECOND_NS, SECOND_NS, 20 * SECOND_NS)),
        forks=rng.choice((0, 0, 100, 400)),
        cuts=rng.choice((0, 0, 100, 300)),
        side_by_side=rng.choice((0, 0, 50, 200)),
        load_seconds_max=1,
        faults=Faults() if calm else _faults(rng),
        shutdown=rng.random() < 0.15,
        shadow=rng.random() < 0.25,
        day_ns=purse.choice((0, 5, 60)) * SECOND_NS if budgets else 0,
        openings=_openings(seed),
    )


def _prices(rng: random.Random) -> Prices:
    return Prices(
        version="drawn",
        currency="CNY",
        uncached_micro=rng.choice((1_000_000, 2_345_678, 0)),
        cached_micro=rng.choice((1_000_000, 200_001, 3_000_000)),
        output_micro=rng.choice((1_000_000, 8_000_000, 7)),
        card_kv_micro=rng.choice((0, 10**9)),
        pool_kv_micro=rng.choice((0, 10**8)),
        card_hour_micro=rng.choice((0, 10**6)),
    )


def _with_budgets(rng: random.Random, policy: Policy, prices: Prices, context: int) -> Policy:
    """Return the policy with money and token budgets of a few turns each."""

    def some() -> int:
        return rng.choice((0, 0, 3, 20)) * context

    def limited(tenant: TenantPolicy) -> TenantPolicy:
        return tenant._replace(
            day_micro_max=some(),
            month_micro_max=2 * some(),
            session_micro_max=some(),
            session_total_tokens_max=some(),
            card_tokens_max=rng.choice((0, 0, context, 2 * context)),
        )

    return policy._replace(
        retry_permille=rng.choice((0, 100, 1_000)),
        retry_tokens=rng.choice((0, context, 10 * context)),
        prices=prices,
        tenants=tuple(limited(tenant) for tenant in policy.tenants),
        default_tenant=limited(policy.default_tenant),
    )


def _openings(seed: int) -> tuple[int, ...]:
    """Return none for half of the seeds, else a few, some too short to be worth a copy."""
    rng = random.Random(f"openings {seed}")
    if rng.random() < 0.5:
        return ()
    return tuple(rng.choice((0, 64, 256, 300, 700)) for _ in range(rng.randint(1, 3)))


def _with_reserves(
    rng: random.Random, policy: Policy, cards: tuple[CardUp, ...], tenants: tuple[TenantId, ...]
) -> Policy:
    """Return the policy with KV that is kept for some tenants, more than there is now and then."""
    room = min(sum(c.kv_tokens for c in cards if c.model == model) for model in {cards[0].model})
    own = {one.tenant: one for one in policy.tenants}
    for tenant in tenants:
        if rng.random() < 0.5:
            before = own.get(tenant, policy.default_tenant._replace(tenant=tenant))
            reserve = room * rng.choice((5, 10, 25, 60)) // 100
            own[tenant] = before._replace(
                reserve_tokens=reserve,
                lend_tokens=rng.choice((0, reserve // 2, reserve)),
                pool_reserve_bytes=rng.choice((0, policy.pool_bytes_max // 5)),
            )
    begins = 1_000 * SECOND_NS + rng.choice((0, 20, 60)) * SECOND_NS
    part = Slice(
        id="s",
        tenant=rng.choice(tenants),
        model=cards[0].model,
        cards=rng.choice((0, 0, 1)),
        kv_tokens=rng.choice((0, room // 10)),
        lane=rng.choice((-1, -1, 0)),
        from_ns=begins,
        until_ns=begins + rng.choice((10, 60, 10_000)) * SECOND_NS,
    )
    return policy._replace(
        tenants=tuple(own[tenant] for tenant in sorted(own)),
        slices=(part,) if part.cards or part.kv_tokens else (),
    )


def _card(rng: random.Random, number: int, models: tuple[ModelId, ...]) -> CardUp:
    slots = rng.randint(1, 6)
    kv_tokens = rng.choice((128, 512, 1024, 4096))
    kv = rng.choice(("full", "full", "full", "full", "hints", "none"))
    return CardUp(
        card=CardId(f"c{number}"),
        model=models[number % len(models)],
        partition=f"p{number % 2}",
        kv=kv,
        can_cut=rng.random() < 0.5,
        slots=slots,
        running_max=rng.randint(1, slots),
        kv_tokens=kv_tokens,
        context_tokens=kv_tokens * rng.choice((50, 100)) // 100,
        kv_bytes_per_token=1000,
        prompt_streams=rng.choice((0, 0, 1, 2)),
    )


def _policy(rng: random.Random, *, block: int, pool: int, tenants: tuple[TenantId, ...]) -> Policy:
    lanes = tuple(
        LanePolicy(
            admit_permille=permille,
            queue_max=rng.choice((2, 8, 64)),
            wait_max_ns=rng.choice((5, 60, 600)) * SECOND_NS,
            output_tokens=rng.choice((4, 16, 64)),
            lease_ns=rng.choice((0, 1, 30)) * SECOND_NS,
            idle_max_ns=rng.choice((1, 5)) * MINUTE_NS,
        )
        for permille in rng.choice(((950, 900, 800), (1000, 1000, 1000), (900, 500, 300)))
    )
    limited = tuple(
        TenantPolicy(
            tenant=tenant,
            running_max=rng.choice((0, 0, 1, 3)),
            inflight_max=rng.choice((0, 0, 4)),
            requests_per_minute=rng.choice((0, 0, 0, 30)),
            tokens_per_minute=rng.choice((0, 0, 0, 20_000)),
            session_tokens_max=rng.choice((0, 0, 0, 600)),
            pool_bytes_max=rng.choice((0, 0, pool // 4)),
        )
        for tenant in tenants
        if rng.random() < 0.3
    )
    weights = {tenant: rng.choice((1, 1, 3)) for tenant in tenants}
    shares = rng.choice(((0, 0, 0), (0, 0, 0), (0, 100, 50)))
    return Policy(
        block_tokens=block,
        lanes=tuple(
            lane._replace(share_permille=share) for lane, share in zip(lanes, shares, strict=True)
        ),
        tenants=tuple(one._replace(weight=weights[one.tenant]) for one in limited),
        default_tenant=TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0),
        pool_bytes_max=pool,
        water_permille=rng.choice(((700, 850, 950), (500,), ())),
        run_base_ns=60 * SECOND_NS,
        run_token_ns=SECOND_NS,
        sessions_max=rng.choice((5, 1000, 1000, 1000)),
        fair_quantum_ns=rng.choice((0, 100, 1000)) * MILLISECOND_NS,
    )


def _faults(rng: random.Random) -> Faults:
    def some(most: int) -> int:
        return rng.choice((0, 0, most // 4, most))

    return Faults(
        dispatch=some(200),
        stop_midway=some(150),
        hang=some(30),
        load=some(300),
        load_lies=some(200),
        store=some(300),
        drop=some(200),
        drop_entry=some(200),
        duplicate=some(200),
        stale=some(200),
        cancel=some(200),
        close=some(100),
        vanish=some(500),
        cards=some(4) * 2,
        policies=some(4) // 2,
        stalls=some(4) // 2,
        noise=some(100),
    )
