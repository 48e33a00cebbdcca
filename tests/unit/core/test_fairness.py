"""What a tenant is charged for: what it computed, and KV that it kept on cards meanwhile."""

from __future__ import annotations

from bedplate.core.ids import ModelId, TenantId
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import Steps

SCALE = 1_000
A_TURN = 20 + 2 * 10
"""Its prompt, and its output twice."""


def served(run: Steps, lane: int = 1) -> int:
    """Virtual service of tenant t."""
    return run.base.state.groups[ModelId("m")].virtual[lane][TenantId("t")]


def test_kv_that_idles_is_charged_with_the_next_turn() -> None:
    """30 tokens for 160 s are worth 37 prompt tokens."""
    run = Steps(pool_bytes_max=0)
    run.card()
    run.arrive("a", "s")
    run.end("a")
    assert served(run) == A_TURN * SCALE
    run.now += 160 * SECOND_NS
    run.arrive("b", "s", prompt_tokens=35, reuse_tokens=30, limit_tokens=5)
    run.end("b", prompt_tokens=35, cached_tokens=30, out_tokens=5, kv_tokens=40)
    turn = 5 + 2 * 5
    rent = 30 * 160 // 128
    assert served(run) == (A_TURN + turn + rent) * SCALE


def test_kv_that_idles_until_its_session_is_over_is_charged_too() -> None:
    run = Steps(pool_bytes_max=0)
    run.card()
    run.arrive("a", "s")
    run.end("a")
    run.now += 160 * SECOND_NS
    run.close("s")
    assert served(run) == (A_TURN + 30 * 160 // 128) * SCALE


def test_kv_in_the_pool_costs_nothing_here() -> None:
    run = Steps()
    run.card()
    run.keep("a", "s")
    run.drain()
    for slot in run.base.state.cards["c0"].slots:  # type: ignore[index]
        assert slot.branch is None
    before = served(run)
    run.now += 160 * SECOND_NS
    run.close("s")
    assert served(run) == before
