"""What the speed of the twin is measured on: a trace on a box of cards, agents on a supernode."""

from __future__ import annotations

import random

from bedplate.core.limits import SHARED, default_policy
from bedplate.core.units import SECOND_NS
from bedplate.perf.profile import Batching, CardProfile, LinearCost, MoveCost
from bedplate.twin.run import NO_POOL, CardSpec, PoolSpec, Site
from bedplate.twin.workload.form import Session, Turn, Workload

PROFILE = CardProfile(
    name="bench",
    model="bench",
    evidence="roofline",
    kv="full",
    can_cut=True,
    slots=256,
    running_max=64,
    kv_tokens=800_000,
    context_tokens=131_072,
    kv_bytes_per_token=70_272,
    batching=Batching(token_budget=2_048),
    step=LinearCost(
        launch_ns=1.0e6,
        weights_ns=9.0e6,
        prompt_ns=4.0e4,
        sequence_ns=4.0e4,
        pair_ns=0.5,
        context_ns=20.0,
    ),
    store=MoveCost(base_ns=5.0e4, byte_ns=0.0066, stalls=False),
    load=MoveCost(base_ns=5.0e4, byte_ns=0.0066, stalls=False),
)
"""A card of a supernode, roughly: what it takes is of no matter here, what happens on it is."""
TURNS = 15
SESSIONS_PER_S = 10.0
GAP_S = 20.0
POOL_BYTES = 24 << 40
POOL_BYTES_PER_S = 5.0e12


def box(cards: int) -> Site:
    """Return cards without a pool, for requests of one turn."""
    return Site("box", _cards(cards), default_policy(), NO_POOL)


def supernode(cards: int) -> Site:
    """Return cards that share a pool."""
    pool = PoolSpec(POOL_BYTES, POOL_BYTES_PER_S, 1_000.0)
    return Site("supernode", _cards(cards), default_policy(pool_bytes_max=POOL_BYTES), pool)


def _cards(count: int) -> tuple[CardSpec, ...]:
    return tuple(CardSpec(f"card-{n}", f"node-{n // 8}", PROFILE) for n in range(count))


def agents(sessions: int, seed: int) -> Workload:
    """Return sessions of `TURNS` turns: growing contexts, heavy-tailed gaps, Poisson starts."""
    rng = random.Random(seed)
    at_s = 0.0
    found = []
    for number in range(sessions):
        at_s += rng.expovariate(SESSIONS_PER_S)
        turns = tuple(
            Turn(
                gap_ns=round(rng.lognormvariate(0.0, 1.0) * GAP_S * SECOND_NS) if turn else 0,
                tool="tool" if turn else "",
                keep_tokens=-1,
                new_tokens=rng.randint(200, 1_500) if turn else rng.randint(1_000, 6_000),
                out_tokens=rng.randint(50, 400),
            )
            for turn in range(TURNS)
        )
        start_ns = round(at_s * SECOND_NS)
        tenant = f"tenant-{number % 16}"
        found.append(Session(f"s{number}", tenant, SHARED, "agent", start_ns, None, turns))
    return Workload("agents", f"{sessions} sessions of {TURNS} turns, seed {seed}", tuple(found))
