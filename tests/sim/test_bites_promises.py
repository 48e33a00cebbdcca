"""The checks of quotas, waits, failures, homes and retention bite as well; see `test_bites`."""

from __future__ import annotations

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import (
    CardId,
    EntryId,
    SlotId,
    TenantId,
    TurnId,
)
from bedplate.core.units import SECOND_NS
from tests.sim.checkers import CheckFailed
from tests.sim.checks_breakers import Breakers
from tests.sim.steps import (
    FEW_TOKENS,
    KEPT,
    LITTLE_A_DAY,
    LITTLE_ON_CARDS,
    MORE,
    MUCH_KEPT,
    ONE,
    ONE_A_MINUTE,
    POLICY,
    SHORT_SESSIONS,
    TICK,
    UP,
    Step,
    also,
    arrives,
    card,
    drops,
    ends,
    play,
    runs,
    settles,
    stores,
)

SILENT = ev.DispatchFailed(TurnId("a"), 1, "engine_timeout", False, 0)
OPENED = act.Alarm("breaker", "c", 1)
FAILED = settles("a", status="error", out_tokens=0, exact=False)

NEWER: list[Step] = [
    *KEPT,
    (card("d", can_cut=False), []),
    (MORE, [runs("b", expect_cached_tokens=25)]),
    (
        ends("b", prompt_tokens=30, cached_tokens=25, kv_tokens=35),
        [
            settles(
                "b", prompt_tokens=30, cached_tokens=25, tool_ns=3 * SECOND_NS, slot_ns=SECOND_NS
            ),
            stores(2),
        ],
    ),
    (ev.KvStored(CardId("c"), SlotId(0), EntryId(2), 35, 35_000), [drops()]),
    (ev.KvDropped(CardId("c"), SlotId(0)), []),
]
"""The branch has 35 tokens in the pool as entry 2 only; entry 1 stays, as for a fork."""


def more(turn: str, prompt: int, reuse: int) -> ev.TurnArrived:
    return arrives(turn, prompt_tokens=prompt, reuse_tokens=reuse)


YIELD = act.YieldTurn(TurnId("a"), 1)
PATIENT_A: list[Step] = [*UP, (arrives("a", lane=2, resumable=True), [runs("a")])]
"""A batch turn runs."""
ASKED: list[Step] = [*PATIENT_A, (arrives("b", "r"), [])]
"""And an interactive one waits."""
WRONG: dict[str, tuple[str, list[Step]]] = {
    "yields: asked of an interactive turn": (
        "yields",
        also([*UP, (arrives("a", resumable=True), [runs("a")])], YIELD),
    ),
    "yields: for nobody": ("yields", also(PATIENT_A, YIELD)),
    "yields: asked again": ("yields", also(also(ASKED, YIELD), YIELD)),
    "yields: asked of a turn that waits": (
        "yields",
        also([*UP, (arrives("a", lane=2, resumable=True), [])], YIELD),
    ),
    "yields: asked of a turn that cannot go on": (
        "yields",
        also(
            [
                *UP,
                (arrives("a", lane=2), [runs("a")]),
                (ev.TurnStarted(TurnId("a"), 1, 20, 0), []),
                (arrives("b", "r"), []),
            ],
            YIELD,
        ),
    ),
    "yields: asked where the KV does not stay": (
        "yields",
        also(
            [
                UP[0],
                (card(kv="hints"), []),
                (arrives("a", lane=2, resumable=True), [runs("a")]),
                (arrives("b", "r"), []),
            ],
            YIELD,
        ),
    ),
    "yields: one that gave way is at its end": (
        "yields",
        [
            *also(ASKED, YIELD),
            (ends("a", status="yielded"), [settles("a", lane=2, status="yielded")]),
        ],
    ),
    "home: computed again on another card": (
        "home",
        [*UP, (card("d"), []), *ONE[2:], (MORE, [runs("b", card=CardId("d"))])],
    ),
    "home: computed again though the pool has it": (
        "home",
        [*KEPT, (card("d"), []), (MORE, [runs("b", card=CardId("d"))])],
    ),
    "home: computed again though the pool has it newer than a fork needs": (
        "home",
        [*NEWER, (more("c", 45, 35), [runs("c", card=CardId("d"))])],
    ),
    "retention: held before expired": (
        "retention",
        [
            *KEPT,
            *[TICK] * 32,
            (arrives("b", "r"), [runs("b", "r", 1)]),
            (ends("b"), [settles("b", "r")]),
            (TICK[0], [drops(1)]),
        ],
    ),
    "retention: dirty before clean": (
        "retention",
        [
            *KEPT,
            (arrives("b", "r"), [runs("b", "r", 1)]),
            (ends("b"), [settles("b", "r")]),
            *[TICK] * 32,
            (TICK[0], [drops(1)]),
        ],
    ),
    "rates: quota that nobody set": (
        "rates",
        [*UP, (arrives("a"), [act.Refuse(TurnId("a"), "quota_exceeded", "", 0)])],
    ),
    "rates: quota of a tenant never seen": (
        "rates",
        [
            (
                ev.PolicyChanged(
                    POLICY._replace(
                        default_tenant=POLICY.default_tenant._replace(requests_per_minute=3)
                    )
                ),
                [],
            ),
            UP[1],
            (arrives("a"), [act.Refuse(TurnId("a"), "quota_exceeded", "", 0)]),
        ],
    ),
    "rates: more requests than a minute's": (
        "rates",
        [
            (ev.PolicyChanged(POLICY._replace(default_tenant=ONE_A_MINUTE)), []),
            *ONE[1:],
            *[TICK] * 56,
            (MORE, []),
        ],
    ),
    "rates: refused though a request is left again": (
        "rates",
        [
            (ev.PolicyChanged(POLICY._replace(default_tenant=ONE_A_MINUTE)), []),
            *ONE[1:],
            *[TICK] * 60,
            (MORE, [act.Refuse(TurnId("b"), "quota_exceeded", "", 0)]),
        ],
    ),
    "rates: more tokens than a minute's": (
        "rates",
        [
            (ev.PolicyChanged(POLICY._replace(default_tenant=FEW_TOKENS)), []),
            UP[1],
            (arrives("a"), [runs("a")]),
            (arrives("b", "r"), []),
        ],
    ),
    "rates: refused though tokens came back": (
        "rates",
        [
            (ev.PolicyChanged(POLICY._replace(default_tenant=FEW_TOKENS)), []),
            UP[1],
            (arrives("a"), [runs("a")]),
            (ends("a", prompt_tokens=1), [settles("a", prompt_tokens=1)]),
            (arrives("b", "r"), [act.Refuse(TurnId("b"), "quota_exceeded", "", 0)]),
        ],
    ),
    "on-cards: more than the tenant's limit beside what it keeps": (
        "on-cards",
        [
            (ev.PolicyChanged(POLICY._replace(default_tenant=LITTLE_ON_CARDS)), []),
            *ONE[1:],
            (arrives("b", "r"), [runs("b", "r", 1)]),
        ],
    ),
    "kept: a turn of another tenant begins in what is kept": (
        "kept",
        [
            (ev.PolicyChanged(POLICY._replace(tenants=(MUCH_KEPT,))), []),
            *(ONE[1], *[TICK] * 6),
            (arrives("a", tenant=TenantId("u"), prompt_tokens=60), [runs("a")]),
        ],
    ),
    "floor: idle KV within a reserve goes for a tenant that has none": (
        "floor",
        [
            (ev.PolicyChanged(POLICY._replace(tenants=(MUCH_KEPT,))), []),
            *(ONE[1], *[TICK] * 6, *ONE[2:]),
            (arrives("b", "r", tenant=TenantId("u")), [drops()]),
        ],
    ),
    "breakers: two try at once": (
        "breakers",
        [
            *UP,
            (arrives("a"), [runs("a")]),
            (SILENT, [OPENED, act.FailTurn(TurnId("a"), "engine_timeout", ""), FAILED]),
            *[TICK] * 6,
            (arrives("b", "r"), [runs("b", "r", 1)]),
            (arrives("c", "q"), [runs("c", "q", 2)]),
        ],
    ),
    "breakers: it opens and nobody is told": (
        "breakers",
        [
            *UP,
            (arrives("a"), [runs("a")]),
            (SILENT, [act.FailTurn(TurnId("a"), "engine_timeout", ""), FAILED]),
        ],
    ),
    "resends: beyond the pool's budget": (
        "resends",
        [
            (ev.PolicyChanged(POLICY._replace(retry_permille=0, retry_tokens=19)), []),
            UP[1],
            (arrives("a"), [runs("a")]),
            (SILENT._replace(code="engine_lost", retryable=True), [drops()]),
        ],
    ),
    "resends: none though the budget has room": (
        "resends",
        [
            *UP,
            (arrives("a"), [runs("a")]),
            (
                SILENT._replace(code="engine_lost", retryable=True),
                [act.FailTurn(TurnId("a"), "retry_budget_spent", ""), FAILED],
            ),
        ],
    ),
    "budgets: more than the session may use": (
        "budgets",
        [
            (ev.PolicyChanged(POLICY._replace(default_tenant=SHORT_SESSIONS)), []),
            *ONE[1:],
            (MORE, []),
        ],
    ),
    "budgets: more than is left beside an open turn": (
        "budgets",
        [
            (ev.PolicyChanged(POLICY._replace(default_tenant=SHORT_SESSIONS)), []),
            UP[1],
            (arrives("a"), [runs("a")]),
            (arrives("b", branch=1, prompt_tokens=30), []),
        ],
    ),
    "budgets: refused though enough is left": (
        "budgets",
        [*UP, (arrives("a"), [act.Refuse(TurnId("a"), "budget_exceeded", "", 0)])],
    ),
    "budgets: refused though a new day began": (
        "budgets",
        [
            (ev.PolicyChanged(POLICY._replace(default_tenant=LITTLE_A_DAY)), []),
            (ev.CalendarDay("UTC", 10**12, 10**12 + 5 * SECOND_NS, 0, 10**15), []),
            *ONE[1:],
            *[TICK] * 3,
            (MORE, [act.Refuse(TurnId("b"), "budget_exceeded", "", 0)]),
        ],
    ),
    "bounds: waits for longer than its lane allows": (
        "bounds",
        [UP[0], (arrives("a"), []), *[TICK] * 64],
    ),
    "bounds: runs past its deadline": (
        "bounds",
        [*UP, (arrives("a"), [runs("a")]), *[TICK] * 90],
    ),
    "failures: reason that is none": (
        "failures",
        [
            *UP,
            (arrives("a"), [runs("a")]),
            (
                ev.DispatchFailed(TurnId("a"), 1, "engine_error", False, 0),
                [
                    act.FailTurn(TurnId("a"), "engine_timeout", ""),
                    settles("a", status="error", prompt_tokens=0, out_tokens=0),
                ],
            ),
        ],
    ),
    "failures: tries are left": (
        "failures",
        [
            *UP,
            (arrives("a"), [runs("a")]),
            (
                ev.DispatchFailed(TurnId("a"), 1, "engine_lost", True, 0),
                [
                    act.FailTurn(TurnId("a"), "engine_lost", ""),
                    settles("a", status="error", prompt_tokens=0, out_tokens=0),
                ],
            ),
        ],
    ),
    "failures: tries are left after a card's loss": (
        "failures",
        [
            *UP,
            (card("d"), []),
            (arrives("a"), [runs("a")]),
            (
                ev.CardDown(CardId("c"), "x"),
                [
                    act.FailTurn(TurnId("a"), "engine_lost", ""),
                    settles("a", status="error", prompt_tokens=0, out_tokens=0),
                ],
            ),
        ],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_check_bites(case: str) -> None:
    name, steps = WRONG[case]
    with pytest.raises(CheckFailed) as caught:
        play(steps)
    assert caught.value.name == name, caught.value


def test_a_turn_that_begins_on_a_card_that_is_left_alone_is_caught() -> None:
    steps: list[Step] = [
        *UP,
        (arrives("a"), [runs("a")]),
        (SILENT, [OPENED, act.FailTurn(TurnId("a"), "engine_timeout", ""), FAILED]),
        (arrives("b", "r"), [runs("b", "r", 1)]),
    ]
    with pytest.raises(CheckFailed, match="the breaker is open") as caught:
        play(steps, every_ns=SECOND_NS // 10, kinds=[Breakers])
    assert caught.value.name == "breakers"


def test_a_copy_that_only_forks_keep_is_not_the_branchs_own() -> None:
    """All 35 tokens are asked again, the last must be computed, and this card cannot cut."""
    play([*NEWER, (more("c", 35, 35), [runs("c", card=CardId("d"))])])
