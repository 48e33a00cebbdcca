"""Small sites and workloads for tests of the twin."""

from __future__ import annotations

from typing import Any

from bedplate.core.limits import Policy, default_policy
from bedplate.core.units import MILLISECOND_NS
from bedplate.perf.profile import Batching, CardProfile, LinearCost, MoveCost
from bedplate.twin.run import NO_POOL, CardSpec, PoolSpec, Site
from bedplate.twin.workload.form import Session, Spawn, Turn, Workload

MS = MILLISECOND_NS


def card_profile(**changes: Any) -> CardProfile:
    """Return a card: a step of 10 ms, 256 tokens of prompt each, 8 turns at once."""
    fields: dict[str, Any] = {
        "name": "small",
        "model": "m",
        "evidence": "measured",
        "kv": "full",
        "can_cut": True,
        "slots": 16,
        "running_max": 8,
        "kv_tokens": 65_536,
        "context_tokens": 16_384,
        "kv_bytes_per_token": 1_000,
        "batching": Batching(token_budget=256),
        "step": LinearCost(
            launch_ns=2e6,
            weights_ns=8e6,
            prompt_ns=40_000,
            sequence_ns=100_000,
            pair_ns=1.0,
            context_ns=50.0,
        ),
        "store": MoveCost(base_ns=1e6, byte_ns=0.5, stalls=False),
        "load": MoveCost(base_ns=1e6, byte_ns=0.25, stalls=False),
    }
    return CardProfile(**{**fields, **changes})


POOL = PoolSpec(size_bytes=10**9, bytes_per_s=4e9, base_ns=0.0)


def site(
    cards: int = 2,
    *,
    partitions: int = 1,
    pool: PoolSpec = NO_POOL,
    policy: Policy | None = None,
    progress_tokens: int = 0,
    **profile: Any,
) -> Site:
    """Return a site of equal cards c0, c1, ... in partitions p0, p1, ... in turn."""
    made = card_profile(**profile)
    return Site(
        name="test",
        cards=tuple(CardSpec(f"c{i}", f"p{i % partitions}", made) for i in range(cards)),
        policy=policy or default_policy(),
        pool=pool,
        progress_tokens=progress_tokens,
    )


def session(
    key: str,
    *turns: tuple[int, int, int],
    start_ns: int = 0,
    tool: str = "",
    spawn: Spawn | None = None,
    lane: int = 1,
) -> Session:
    """Return a session; each turn is (gap in ms, new tokens, output tokens)."""
    made = tuple(
        Turn(gap_ms * MS if i else 0, tool if i else "", -1, new, out)
        for i, (gap_ms, new, out) in enumerate(turns)
    )
    return Session(key, "acme", lane, "test", start_ns, spawn, made)


def workload(*sessions: Session) -> Workload:
    """Return sessions as a workload."""
    return Workload("test", "tests", sessions)


def agents(count: int, *, turns: int = 5, every_ms: int = 100, gap_ms: int = 400) -> Workload:
    """Return sessions that begin one after another and differ in their sizes."""
    return workload(
        *(
            session(
                f"s{i}",
                *(
                    (gap_ms, 100 + 37 * ((i + n) % 5), 10 + 7 * ((i * 3 + n) % 6))
                    for n in range(turns)
                ),
                start_ns=i * every_ms * MS,
            )
            for i in range(count)
        )
    )
