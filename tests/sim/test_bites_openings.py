"""Checks of shared openings bite: a wrong sequence of actions, written by hand, makes them fail."""

from __future__ import annotations

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import BranchId, CardId, EntryId, ModelId, SessionId, SlotId, TenantId
from bedplate.core.units import SECOND_NS
from tests.sim.checkers import CheckFailed
from tests.sim.steps import POLICY, UP, Step, also, arrives, card, loads, play, runs, settles

U = TenantId("u")


def opens(turn: str, session: str, **changes: object) -> ev.TurnArrived:
    """A call that begins with ten tokens that its tenant's others begin with."""
    return arrives(turn, session, **{"prefix": "o", "prefix_tokens": 10, **changes})


def copies(turn: str, session: str, slot: int, **changes: object) -> act.Dispatch:
    """A run that copies them."""
    given = {"prefix_entry": EntryId(1), "prefix_tokens": 10, **changes}
    return runs(turn, session, slot, **given)


FIRST: list[Step] = [*UP, (opens("a", "s"), [runs("a")])]
COPYING: list[Step] = [*FIRST, (opens("b", "r"), [copies("b", "r", 1)])]
COPIED: list[Step] = [
    *COPYING,
    (ev.KvStored(CardId("c"), SlotId(1), EntryId(1), 10, 10_000), []),
]
OTHER: list[Step] = [*COPIED, (card("d"), [])]
"""Another card is up, for those that load it."""
RENT = settles(
    "a", prompt_tokens=0, out_tokens=0, slot_ns=0, card="", attempts=0, status="closed",
)._replace(turn="", session=SessionId(""), branch=BranchId(0))  # type: ignore[arg-type]  # fmt: skip


def fetch(session: str) -> act.LoadKv:
    """Load it for a session."""
    return loads(session=session, slot=0)._replace(card=CardId("d"))


WRONG: dict[str, tuple[str, list[Step]]] = {
    "copied for the first": ("openings", [*UP, (opens("a", "s"), [copies("a", "s", 0)])]),
    "copied for the first of a tenant": (
        "openings",
        [*FIRST, (opens("b", "r", tenant=U), [copies("b", "r", 1)])],
    ),
    "copied in part": (
        "openings",
        [*FIRST, (opens("b", "r"), [copies("b", "r", 1, prefix_tokens=9)])],
    ),
    "nothing after it": (
        "openings",
        [*FIRST, (opens("b", "r", prompt_tokens=10), [copies("b", "r", 1)])],
    ),
    "copied twice": (
        "openings",
        [*OTHER, (opens("e", "q"), [copies("e", "q", 0, card="d", prefix_entry=EntryId(2))])],
    ),
    "loaded for another tenant": ("tenants", [*OTHER, (opens("e", "q", tenant=U), [fetch("q")])]),
    "loaded for another model": (
        "tenants",
        [
            *COPIED,
            (card("d", model=ModelId("n")), []),
            (opens("e", "q", model=ModelId("n")), [fetch("q")]),
        ],
    ),
    "loaded before it is there": (
        "tenants",
        [*COPYING, (card("d"), []), (opens("e", "q"), [fetch("q")])],
    ),
    "over the pool's cap": (
        "pool-cap",
        [(ev.PolicyChanged(POLICY._replace(pool_bytes_max=9_000)), []), *COPYING[1:]],
    ),
    "more rent than it took": (
        "sessions",
        also(COPIED, RENT._replace(kv_pool_token_ns=1000 * SECOND_NS)),
    ),
    "rent of another tenant": (
        "sessions",
        also(COPIED, RENT._replace(kv_pool_token_ns=1, tenant=U)),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_check_bites(case: str) -> None:
    name, steps = WRONG[case]
    with pytest.raises(CheckFailed) as caught:
        play(steps)
    assert caught.value.name == name, caught.value


def test_an_opening_that_is_left_is_caught() -> None:
    with pytest.raises(CheckFailed, match="entry 1"):
        play([*COPIED, (ev.CardDown(CardId("c"), "test"), [])], finish=True)


def test_right_sequences_pass() -> None:
    loaded: Step = (
        ev.KvLoaded(CardId("d"), SlotId(0), EntryId(1), 10),
        [runs("e", "q", 0, card="d", expect_cached_tokens=10, loaded=True)],
    )
    play([*OTHER, (opens("e", "q"), [fetch("q")]), loaded])
    play(also(COPIED, RENT._replace(kv_pool_token_ns=10)))
