"""What a tenant is charged for: what it computed, and KV that it kept on cards meanwhile."""

from __future__ import annotations

from bedplate.core import actions as act
from bedplate.core.costs import FIRST_TOKEN_NS
from bedplate.core.fairness import CREDIT_NS, tenant_rank
from bedplate.core.ids import ModelId, TenantId, TurnId
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import LANE, Steps

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


LOUD, QUIET, OTHER = TenantId("loud"), TenantId("quiet"), TenantId("other")


def flooded(quantum_ns: int) -> Steps:
    """A card of one slot; one tenant got more than the credit there and has more turns waiting."""
    core = Steps(lanes=(LANE._replace(queue_max=100),) * 3, fair_quantum_ns=quantum_ns)
    core.card(slots=1, running_max=1, kv_tokens=20_000, context_tokens=20_000, kv="none")
    core.arrive("first", tenant=LOUD, prompt_tokens=3 * CREDIT_NS // FIRST_TOKEN_NS)
    for number in range(4):
        core.arrive(f"loud-{number}", tenant=LOUD, prompt_tokens=100)
    core.end("first", kv_tokens=0, prompt_tokens=3 * CREDIT_NS // FIRST_TOKEN_NS)
    assert core.one(act.Dispatch).turn == "loud-0"
    return core


def next_after(core: Steps, turn: str) -> str:
    """End the turn that runs; return the one that starts in its place."""
    asked = core.base.state.turns[TurnId(turn)].prompt_tokens
    core.end(turn, kv_tokens=0, prompt_tokens=asked)
    return str(core.one(act.Dispatch).turn)


def test_who_asked_less_than_its_share_goes_first_with_turns_of_more_work_too() -> None:
    core = flooded(quantum_ns=CREDIT_NS // 4)
    for number in range(2):
        core.arrive(f"quiet-{number}", tenant=QUIET, prompt_tokens=500)
    assert next_after(core, "loud-0") == "quiet-0"
    assert next_after(core, "quiet-0") == "quiet-1"


def test_nobody_saves_up_more_than_the_credit() -> None:
    core = flooded(quantum_ns=CREDIT_NS // 4)
    core.arrive("quiet", tenant=QUIET)
    group = core.base.state.groups[ModelId("m")]
    behind = group.floors[1] - group.virtual[1][QUIET]
    assert 0 < behind <= SCALE * group.costs.tokens_in(CREDIT_NS)


def test_tenants_go_by_how_many_quanta_they_are_ahead() -> None:
    """Neither of two is within a quantum of the least, and one is nearer to it."""
    core = flooded(quantum_ns=SECOND_NS // 10)
    state = core.base.state
    core.arrive("other", tenant=OTHER)
    virtual = state.groups[ModelId("m")].virtual[1]
    least = virtual[OTHER]
    virtual[QUIET] = (least + virtual[LOUD]) // 2
    core.arrive("quiet", tenant=QUIET)
    turns = [state.turns[TurnId(name)] for name in ("other", "quiet", "loud-1")]
    ranks = [tenant_rank(state, turn, least) for turn in turns]
    assert ranks[0] == 0 < ranks[1] < ranks[2]
