"""Steps of a core, written by hand: events with actions, and short ways to say them."""

from __future__ import annotations

from collections.abc import Sequence

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import (
    BranchId,
    CardId,
    EntryId,
    ModelId,
    SessionId,
    SlotId,
    TenantId,
    TurnId,
)
from bedplate.core.limits import LanePolicy, Policy, TenantPolicy
from bedplate.core.units import MINUTE_NS, SECOND_NS
from tests.sim.checkers import Check, Checkers

Step = tuple[ev.Event, Sequence[act.Action]]

LANE = LanePolicy(1000, 2, 60 * SECOND_NS, 10, 30 * SECOND_NS, 5 * MINUTE_NS)
ROOMY = LANE._replace(admit_permille=9000)
PATIENT = LANE._replace(wait_max_ns=600 * SECOND_NS)
ONE_A_MINUTE = TenantPolicy(TenantId(""), 0, 0, 1, 0, 0, 0)
FEW_TOKENS = TenantPolicy(TenantId(""), 0, 0, 0, 20, 0, 0)
SHORT_SESSIONS = TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0, session_total_tokens_max=55)
LITTLE_A_DAY = TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0, day_micro_max=200)
LITTLE_ON_CARDS = TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0, card_tokens_max=40)
MUCH_KEPT = TenantPolicy(TenantId("t"), 0, 0, 0, 0, 0, 0, reserve_tokens=150)
POLICY = Policy(
    block_tokens=1,
    lanes=(LANE, LANE, LANE),
    tenants=(TenantPolicy(TenantId("few"), 1, 1, 0, 0, 50, 40_000),),
    default_tenant=TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0),
    pool_bytes_max=100_000,
    water_permille=(),
    run_base_ns=60 * SECOND_NS,
    run_token_ns=SECOND_NS,
    fair_quantum_ns=0,
    sessions_max=10,
)


def card(name: str = "c", **changes: object) -> ev.CardUp:
    base = ev.CardUp(CardId(name), ModelId("m"), "p", "full", True, 3, 2, 200, 100, 1000)
    return base._replace(**changes)  # type: ignore[arg-type]


def arrives(turn: str, session: str = "s", **changes: object) -> ev.TurnArrived:
    base = ev.TurnArrived(
        TurnId(turn), SessionId(session), BranchId(0), -1, TenantId("t"), 0, ModelId("m"),
        20, 0, 5, False, True,
    )  # fmt: skip
    return base._replace(**changes)  # type: ignore[arg-type]


def runs(turn: str, session: str = "s", slot: int = 0, **changes: object) -> act.Dispatch:
    base = act.Dispatch(
        TurnId(turn), 1, SessionId(session), BranchId(0), CardId("c"), SlotId(slot), 0, False, 5, 0
    )
    return base._replace(**changes)  # type: ignore[arg-type]


def ends(turn: str, **changes: object) -> ev.TurnEnded:
    base = ev.TurnEnded(TurnId(turn), 1, "stop", 20, 0, 5, 25, "", True)
    return base._replace(**changes)  # type: ignore[arg-type]


def settles(turn: str, session: str = "s", **changes: object) -> act.Settled:
    base = act.Settled(
        TurnId(turn), SessionId(session), BranchId(0), TenantId("t"), 0, ModelId("m"), "c", "stop",
        20, 0, 5, 0, SECOND_NS, 0, 0, 0, 1, True,
    )  # fmt: skip
    return base._replace(**changes)  # type: ignore[arg-type]


def stores(entry: int = 1, slot: int = 0, session: str = "s", tenant: str = "t") -> act.StoreKv:
    return act.StoreKv(
        CardId("c"), SlotId(slot), TenantId(tenant), SessionId(session), BranchId(0), EntryId(entry)
    )


def stored(entry: int = 1, slot: int = 0) -> ev.KvStored:
    return ev.KvStored(CardId("c"), SlotId(slot), EntryId(entry), 25, 25_000)


def loads(entry: int = 1, slot: int = 1, session: str = "s") -> act.LoadKv:
    return act.LoadKv(CardId("c"), SlotId(slot), SessionId(session), BranchId(0), EntryId(entry))


def drops(slot: int = 0) -> act.DropKv:
    return act.DropKv(CardId("c"), SlotId(slot))


UP: list[Step] = [(ev.PolicyChanged(POLICY), []), (card(), [])]
ONE: list[Step] = [
    *UP,
    (arrives("a"), [runs("a")]),
    (ends("a"), [settles("a")]),
]
"""One turn ran on slot 0 and left 25 tokens of session s there."""
KEPT: list[Step] = [*ONE[:-1], (ends("a"), [settles("a"), stores()]), (stored(), [])]
"""And they are in the pool as entry 1."""
STORING: list[Step] = [*ONE[:-1], (ends("a"), [settles("a"), stores()])]
"""And they are on their way there."""
TICK: Step = (ev.ToolProgress(SessionId("nobody"), BranchId(0), 0), [])


def play(
    steps: Sequence[Step],
    *,
    finish: bool = False,
    every_ns: int = SECOND_NS,
    kinds: Sequence[type[Check]] | None = None,
) -> None:
    checkers = Checkers(kinds)
    now = 10**12
    for event, actions in steps:
        checkers.step(now, event, tuple(actions))
        now += every_ns
    if finish:
        checkers.finish()


def also(steps: list[Step], *actions: act.Action) -> list[Step]:
    """The steps, and one more whose event is nothing and which has these actions."""
    return [*steps, (TICK[0], list(actions))]


NO = act.Refuse(TurnId("a"), "no_engine", "", 0)

MORE = arrives("b", prompt_tokens=30, reuse_tokens=25)
"""The next turn of session s: 25 tokens computed before, 5 new."""
CUT = arrives("b", prompt_tokens=30, reuse_tokens=10)
