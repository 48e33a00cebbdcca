"""Each check bites: a wrong sequence of actions, written by hand, makes it fail by its name.

Length: mostly one table, with a wrong sequence for each check.
"""

from __future__ import annotations

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import (
    CardId,
    EntryId,
    ModelId,
    SessionId,
    SlotId,
    TenantId,
    TurnId,
)
from bedplate.core.units import SECOND_NS
from tests.sim.checkers import CheckFailed
from tests.sim.checks_order import Order
from tests.sim.steps import (
    CUT,
    KEPT,
    LANE,
    MORE,
    NO,
    ONE,
    PATIENT,
    POLICY,
    ROOMY,
    STORING,
    TICK,
    UP,
    Step,
    also,
    arrives,
    card,
    drops,
    ends,
    loads,
    play,
    runs,
    settles,
    stores,
)

U = TenantId("u")
HALF = LANE._replace(admit_permille=500)
TWO_OF_TWO: list[Step] = [
    (ev.PolicyChanged(POLICY._replace(sessions_max=2)), []),
    (card(), []),
    (arrives("a"), [runs("a")]),
    (arrives("y", "r", tenant=U), [runs("y", "r", 1)]),
]
"""Two tenants have one session each, which is as many as may be; both run a turn."""
END_A = settles("a", slot_ns=2 * SECOND_NS)
END_Y: Step = (
    ends("y"),
    [settles("y", "r", tenant=U, slot_ns=3 * SECOND_NS)],
)
NO_PLACE = [act.Refuse(TurnId("z"), "capacity", "", 0)]
FULL: Step = (arrives("z", "q", tenant=TenantId("v")), NO_PLACE)
ONE_BUSY_WITH_TWO: list[Step] = [
    (ev.PolicyChanged(POLICY._replace(sessions_max=3)), []),
    (card(), []),
    (arrives("a"), [runs("a")]),
    (arrives("x", "s2"), [runs("x", "s2", 1)]),
    (ends("a"), [END_A, stores()]),
    (MORE, []),
    (arrives("y", "r", tenant=U), [runs("y", "r", 2)]),
    (ends("y"), [settles("y", "r", tenant=U)]),
    FULL,
]
"""One tenant has two sessions with turns, of which one is being stored; another's only is idle."""
OUT_AND_UP: list[Step] = [
    (ev.PolicyChanged(POLICY._replace(lanes=(HALF, HALF, HALF))), []),
    (card(), []),
    (card("d"), []),
    (ev.CardDraining(CardId("d"), on=True), []),
    (card("d"), []),
]
"""A card of two was taken out and came up again; sessions may use half of all room."""


def cut_back(kv_tokens: int) -> list[Step]:
    """A card on which a turn runs that needs 17 tokens, in a slot of which it left 25."""
    return [
        (ev.PolicyChanged(POLICY._replace(lanes=(ROOMY, ROOMY, ROOMY))), []),
        (card(kv_tokens=kv_tokens), []),
        *ONE[2:],
        (arrives("b", prompt_tokens=12, reuse_tokens=10), [runs("b", expect_cached_tokens=10)]),
    ]


WRONG: dict[str, tuple[str, list[Step]]] = {
    "room: running turns": (
        "card-room",
        [
            (UP[0]),
            (card(kv_tokens=40), []),
            (arrives("a"), [runs("a")]),
            (arrives("b", "r"), [runs("b", "r", 1)]),
        ],
    ),
    "room: what a turn does not reuse of its slot": (
        "card-room",
        [*cut_back(55), (arrives("c", "r", prompt_tokens=30), [runs("c", "r", 1)])],
    ),
    "room: idle copy beside": (
        "card-room",
        [
            (UP[0]),
            (card(kv_tokens=40), []),
            *ONE[2:],
            (arrives("b", "r"), [runs("b", "r", 1)]),
        ],
    ),
    "room: drop not acknowledged": (
        "card-room",
        [
            (UP[0]),
            (card(kv_tokens=40), []),
            *ONE[2:],
            (arrives("b", "r"), [drops(), runs("b", "r", 1)]),
        ],
    ),
    "room: load longer than the turn": (
        "card-room",
        [
            (UP[0]),
            (card(kv_tokens=45), []),
            *KEPT[2:],
            (arrives("b", "r"), [drops()]),
            (ev.KvDropped(CardId("c"), SlotId(0)), [runs("b", "r"), loads()]),
        ],
    ),
    "slot: two turns": (
        "slot-order",
        [*UP, (arrives("a"), [runs("a")]), (arrives("b", "r"), [runs("b", "r")])],
    ),
    "slot: foreign KV in it": ("slot-order", [*ONE, (arrives("b", "r"), [runs("b", "r")])]),
    "slot: load into a full one": ("slot-order", also(KEPT, loads(slot=0))),
    "slot: dispatch during a load": ("slot-order", [*KEPT, (MORE, [loads(), runs("b", slot=1)])]),
    "slot: dispatch during a store": ("slot-order", [*ONE, (MORE, [stores(), runs("b")])]),
    "slot: dispatch before dropped": (
        "slot-order",
        [*ONE, (arrives("b", "r"), [drops(), runs("b", "r")])],
    ),
    "slot: drop under a turn": ("slot-order", [*UP, (arrives("a"), [runs("a"), drops()])]),
    "slot: store of nothing": ("slot-order", also(UP, stores())),
    "slot: store under a wrong name": ("slot-order", also(ONE, stores(session="r"))),
    "slot: remains of a failed turn": (
        "slot-order",
        [
            *UP,
            (arrives("a"), [runs("a")]),
            (ev.DispatchFailed(TurnId("a"), 1, "engine_error", True, 0), [runs("a", attempt=2)]),
        ],
    ),
    "slot: card is down": (
        "slot-order",
        [*UP, (ev.CardDown(CardId("c"), "x"), []), (arrives("a"), [runs("a")])],
    ),
    "slot: card is draining": (
        "slot-order",
        [*UP, (ev.CardDraining(CardId("c"), True), []), (arrives("a"), [runs("a")])],
    ),
    "slot: no such slot": ("slot-order", [*UP, (arrives("a"), [runs("a", slot=3)])]),
    "slot: move on a card without moves": (
        "slot-order",
        also([UP[0], (card(kv="hints"), [])], drops()),
    ),
    "prefix: cold slot": ("prefix", [*UP, (arrives("a"), [runs("a", expect_cached_tokens=1)])]),
    "prefix: beyond the cut": ("prefix", [*ONE, (CUT, [runs("b", expect_cached_tokens=25)])]),
    "prefix: cut where none is possible": (
        "prefix",
        [UP[0], (card(can_cut=False), []), *ONE[2:], (CUT, [runs("b", expect_cached_tokens=10)])],
    ),
    "prefix: not loaded": (
        "prefix",
        [*ONE, (MORE, [runs("b", expect_cached_tokens=25, loaded=True)])],
    ),
    "thrift: warm slot taken for cold": ("thrift", [*ONE, (MORE, [runs("b")])]),
    "tenants: entry of another session": (
        "tenants",
        [*KEPT, (arrives("b", "r"), [loads(session="r")])],
    ),
    "tenants: entry that is being deleted": (
        "tenants",
        [*KEPT, (MORE, [act.DropEntry(EntryId(1)), loads()])],
    ),
    "tenants: entry that is not there yet": ("tenants", [*ONE, (MORE, [stores(), loads()])]),
    "tenants: card of another model": (
        "tenants",
        [UP[0], (card(model=ModelId("other")), []), (arrives("a"), [runs("a")])],
    ),
    "pool: over its cap": (
        "pool-cap",
        [
            (ev.PolicyChanged(POLICY._replace(pool_bytes_max=24_000)), []),
            *ONE[1:],
            (TICK[0], [stores()]),
        ],
    ),
    "pool: over the tenant's cap": (
        "pool-cap",
        [
            *UP,
            (arrives("a", tenant=TenantId("few"), limit_tokens=25), [runs("a", limit_tokens=25)]),
            (
                ends("a", out_tokens=25, kv_tokens=45),
                [settles("a", tenant=TenantId("few"), out_tokens=25), stores(tenant="few")],
            ),
        ],
    ),
    "pool: entry id used twice": ("pool-cap", [*KEPT, (MORE, [stores(entry=1)])]),
    "pool: deleted during its load": (
        "pool-cap",
        [*KEPT, (MORE, [loads(), act.DropEntry(EntryId(1))])],
    ),
    "pool: deleted twice": (
        "pool-cap",
        also(KEPT, act.DropEntry(EntryId(1)), act.DropEntry(EntryId(1))),
    ),
    "end: told twice": ("one-end", [UP[0], (arrives("a"), [NO, NO])]),
    "end: unknown code": ("one-end", [*UP, (arrives("a"), [act.Refuse(TurnId("a"), "no", "", 0)])]),
    "end: settled twice": ("one-end", also(ONE, settles("a"))),
    "end: not settled": ("one-end", [*ONE[:-1], (ends("a"), [])]),
    "end: dispatched after it": (
        "one-end",
        [*UP, (arrives("a"), [act.FailTurn(TurnId("a"), "engine_lost", ""), runs("a")])],
    ),
    "end: dispatched after a cancel": (
        "one-end",
        [*UP, (arrives("a"), []), (ev.TurnCancelled(TurnId("a"), "client_cancelled"), [runs("a")])],
    ),
    "end: dispatched after the session closed": (
        "one-end",
        [*UP, (arrives("a"), []), (ev.SessionClosed(SessionId("s"), "client"), [runs("a")])],
    ),
    "end: refused with tokens out": (
        "one-end",
        [
            *UP,
            (arrives("a"), [runs("a")]),
            (
                ev.DispatchFailed(TurnId("a"), 1, "engine_error", True, 3),
                [act.Refuse(TurnId("a"), "lane_full", "", 0)],
            ),
        ],
    ),
    "end: failed after a good end": (
        "one-end",
        [*ONE[:-1], (ends("a"), [act.FailTurn(TurnId("a"), "engine_lost", "")])],
    ),
    "end: cancelled what does not run": (
        "one-end",
        [*UP, (arrives("a"), [act.CancelTurn(TurnId("a"), 1)])],
    ),
    "attempts: skips one": ("attempts", [*UP, (arrives("a"), [runs("a", attempt=2)])]),
    "attempts: repeats what was delivered": (
        "attempts",
        [
            *UP,
            (arrives("a", resumable=True), [runs("a")]),
            (
                ev.DispatchFailed(TurnId("a"), 1, "engine_error", True, 3),
                [runs("a", slot=1, attempt=2)],
            ),
        ],
    ),
    "attempts: resumes what cannot be": (
        "attempts",
        [
            *UP,
            (arrives("a"), [runs("a")]),
            (
                ev.DispatchFailed(TurnId("a"), 1, "engine_error", True, 3),
                [runs("a", slot=1, attempt=2, resume_tokens=3)],
            ),
        ],
    ),
    "limits: longer than the client's": (
        "limits",
        [*UP, (arrives("a"), [runs("a", limit_tokens=6)])],
    ),
    "limits: longer than the card's context": (
        "limits",
        [*UP, (arrives("a", prompt_tokens=99), [runs("a")])],
    ),
    "limits: more than the card runs": (
        "limits",
        [
            *UP,
            (arrives("a", "s"), [runs("a")]),
            (arrives("b", "r"), [runs("b", "r", 1)]),
            (arrives("d", "q"), [runs("d", "q", 2)]),
        ],
    ),
    "limits: more than the tenant runs": (
        "limits",
        [
            *UP,
            (arrives("a", "s", tenant=TenantId("few")), [runs("a")]),
            (
                ev.PolicyChanged(
                    POLICY._replace(tenants=(POLICY.tenants[0]._replace(inflight_max=0),))
                ),
                [],
            ),
            *[TICK] * 61,
            (arrives("b", "r", tenant=TenantId("few")), [runs("b", "r", 1)]),
        ],
    ),
    "limits: more than the tenant may have": (
        "limits",
        [
            *UP,
            (arrives("a", "s", tenant=TenantId("few")), []),
            (arrives("b", "r", tenant=TenantId("few")), []),
        ],
    ),
    "limits: session longer than the tenant's": (
        "limits",
        [*UP, (arrives("a", tenant=TenantId("few"), prompt_tokens=60), [])],
    ),
    "limits: queue too long": ("limits", [UP[0], *[(arrives(n, n), []) for n in "abd"]]),
    "limits: queue too long beside turns that wait for a drop": (
        "limits",
        [*also(ONE, drops()), *[(arrives(n, n), []) for n in "bcdef"]],
    ),
    "limits: two turns of a branch": (
        "limits",
        [*UP, (arrives("a"), [runs("a")]), (arrives("b"), [runs("b", slot=1)])],
    ),
    "limits: accepted while stalled": (
        "limits",
        [*UP, (ev.JournalStalled(True), []), (arrives("a"), [])],
    ),
    "limits: accepted after shutdown": (
        "limits",
        [*UP, (ev.ShutdownRequested(), []), (arrives("a"), [])],
    ),
    "refusals: room in the queue": (
        "refusals",
        [*UP, (arrives("a"), [act.Refuse(TurnId("a"), "lane_full", "", 0)])],
    ),
    "refusals: its own lane lets it wait for longer": (
        "refusals",
        [
            (ev.PolicyChanged(POLICY._replace(lanes=(LANE, PATIENT, LANE))), []),
            (arrives("a", lane=1), []),
            *[TICK] * 70,
            (TICK[0], [act.Refuse(TurnId("a"), "lane_full", "", 0)]),
        ],
    ),
    "refusals: session that is open": (
        "refusals",
        [*ONE, (MORE, [act.Refuse(TurnId("b"), "session_not_found", "", 0)])],
    ),
    "refusals: session that is open and being stored": (
        "refusals",
        [*STORING, (MORE, [act.Refuse(TurnId("b"), "session_not_found", "", 0)])],
    ),
    "refusals: session nobody knows": (
        "refusals",
        [*UP, (arrives("a"), [act.Refuse(TurnId("a"), "session_not_found", "", 0)])],
    ),
    "sessions: evicted and nobody needed its place": (
        "sessions",
        also(ONE, act.SessionEnded(SessionId("s"), "evicted")),
    ),
    "refusals: no room for a session that is open": (
        "refusals",
        [
            (ev.PolicyChanged(POLICY._replace(sessions_max=1)), []),
            *ONE[1:],
            (MORE, [act.Refuse(TurnId("b"), "capacity", "", 0)]),
        ],
    ),
    "refusals: one of two tenants with the most sessions has an idle one": (
        "refusals",
        [*TWO_OF_TWO, (ends("a"), [END_A]), FULL],
    ),
    "refusals: one has an idle session, one is stored and idle or on its way out": (
        "refusals",
        [*TWO_OF_TWO, (ends("a"), [END_A, stores()]), TICK, END_Y, FULL],
    ),
    "refusals: its sessions with turns count though they are being stored": (
        "refusals",
        [*TWO_OF_TWO, (ends("a"), [END_A, stores()]), (MORE, []), END_Y, FULL],
    ),
    "refusals: a card is up": (
        "refusals",
        [*UP, (arrives("a"), [act.Refuse(TurnId("a"), "no_engine", "", 0)])],
    ),
    "refusals: it would fit": (
        "refusals",
        [*UP, (arrives("a"), [act.Refuse(TurnId("a"), "context_length_exceeded", "", 0)])],
    ),
    "refusals: before its time": (
        "refusals",
        [*UP, (arrives("a"), []), (TICK[0], [act.Refuse(TurnId("a"), "lane_full", "", 0)])],
    ),
    "metering: tool gap": (
        "metering",
        [
            *ONE,
            (MORE, [runs("b", expect_cached_tokens=25)]),
            (ends("b", prompt_tokens=30), [settles("b", prompt_tokens=30)]),
        ],
    ),
    "metering: tokens": ("metering", [*ONE[:-1], (ends("a"), [settles("a", out_tokens=4)])]),
    "metering: cached": ("metering", [*ONE[:-1], (ends("a"), [settles("a", cached_tokens=1)])]),
    "metering: tenant": (
        "metering",
        [*ONE[:-1], (ends("a"), [settles("a", tenant=TenantId("u"))])],
    ),
    "metering: time": ("metering", [*ONE[:-1], (ends("a"), [settles("a", slot_ns=7)])]),
    "metering: status": ("metering", [*ONE[:-1], (ends("a"), [settles("a", status="length")])]),
    "sessions: ended with a turn": (
        "sessions",
        [*UP, (arrives("a"), []), (TICK[0], [act.SessionEnded(SessionId("s"), "expired")])],
    ),
    "sessions: closed, and goes on": (
        "sessions",
        [*ONE, (ev.SessionClosed(SessionId("s"), "client"), [])],
    ),
    "sessions: silent for too long, and goes on": ("sessions", [*ONE, *[TICK] * 301]),
    "limits: accepted after its session closed": (
        "limits",
        [*STORING, (ev.SessionClosed(SessionId("s"), "client"), []), (MORE, [])],
    ),
    "sessions: ended twice": (
        "sessions",
        also(
            ONE,
            act.SessionEnded(SessionId("s"), "expired"),
            act.SessionEnded(SessionId("s"), "expired"),
        ),
    ),
    "work: idle card": ("work", [*UP, *[TICK] * 20, (arrives("a"), []), *[TICK] * 12]),
    "work: idle card beside a large turn of another tenant": (
        "work",
        [
            (ev.PolicyChanged(POLICY._replace(lanes=(ROOMY, ROOMY, ROOMY))), []),
            (card(kv_tokens=180), []),
            *[TICK] * 20,
            (arrives("b", "b", tenant=TenantId("u"), prompt_tokens=95), [runs("b", "b")]),
            (arrives("big", "big", tenant=TenantId("v"), prompt_tokens=95), []),
            (arrives("a"), []),
        ],
    ),
    "work: idle card beside a turn that left part of its slot": (
        "work",
        [*cut_back(60), *[TICK] * 20, (arrives("c", "r", prompt_tokens=30), [])],
    ),
    "work: idle card beside one that was brought back": (
        "work",
        [
            *OUT_AND_UP,
            (ev.CardDraining(CardId("d"), on=False), []),
            *[TICK] * 20,
            (arrives("b", "r", prompt_tokens=95), []),
        ],
    ),
    "slots: a card that was taken out and came up again": (
        "slot-order",
        [*OUT_AND_UP, (arrives("b", "r"), [runs("b", "r", card=CardId("d"))])],
    ),
    "order: lower lane first": (
        "order",
        [
            *UP,
            (card("d"), []),
            (arrives("z", "z"), [runs("z", "z", card=CardId("d"))]),
            (ends("z"), [settles("z", "z", card="d")]),
            *[TICK] * 20,
            (TICK[0], [act.DropKv(CardId("d"), SlotId(0))]),
            (arrives("a", "s", lane=0), []),
            TICK,
            (arrives("b", "r", lane=1), [runs("b", "r")]),
        ],
    ),
}

UNFINISHED: dict[str, tuple[str, list[Step]]] = {
    "turn hangs": ("one-end", [*UP, (arrives("a"), [])]),
    "turn never left its card": ("one-end", [*UP, (arrives("a"), [runs("a")])]),
    "session never ends": ("sessions", ONE),
    "slot of an ended session": (
        "nothing-left",
        also(ONE, act.SessionEnded(SessionId("s"), "expired")),
    ),
    "entry of an ended session": (
        "nothing-left",
        [
            *KEPT,
            (TICK[0], [drops(), act.SessionEnded(SessionId("s"), "expired")]),
            (ev.KvDropped(CardId("c"), SlotId(0)), []),
        ],
    ),
    "move that hangs": ("nothing-left", also(ONE, drops())),
}


@pytest.mark.parametrize("case", WRONG)
def test_check_bites(case: str) -> None:
    name, steps = WRONG[case]
    with pytest.raises(CheckFailed) as caught:
        play(steps)
    assert caught.value.name == name, caught.value


@pytest.mark.parametrize("case", UNFINISHED)
def test_check_bites_at_the_end(case: str) -> None:
    name, steps = UNFINISHED[case]
    with pytest.raises(CheckFailed) as caught:
        play(steps, finish=True)
    assert caught.value.name == name, caught.value


def test_right_sequences_pass() -> None:
    play(ONE)
    play(KEPT)
    play([*ONE, (MORE, [runs("b", expect_cached_tokens=25)])])
    play([*ONE, (CUT, [runs("b", expect_cached_tokens=10)])])
    dropped: Step = (ev.KvDropped(CardId("c"), SlotId(0)), [loads()])
    loaded: Step = (
        ev.KvLoaded(CardId("c"), SlotId(1), EntryId(1), 25),
        [runs("b", slot=1, expect_cached_tokens=25, loaded=True)],
    )
    play([*KEPT, (MORE, [drops()]), dropped, loaded])
    gone_again: Step = (MORE, [act.Refuse(TurnId("b"), "session_not_found", "", 0)])
    play([*STORING, *[TICK] * 300, gone_again])  # silent for too long while its store hangs
    play([*STORING, (ev.SessionClosed(SessionId("s"), "client"), []), gone_again])
    ended = act.SessionEnded(SessionId("s"), "expired")
    gone: Step = (TICK[0], [drops(), act.DropEntry(EntryId(1)), ended])
    emptied: Step = (ev.KvDropped(CardId("c"), SlotId(0)), [])
    deleted: Step = (ev.EntryDropped(EntryId(1)), [])
    play([*KEPT, gone, emptied, deleted], finish=True)


def test_seeds_that_the_checks_misjudged_pass() -> None:
    play([*TWO_OF_TWO, FULL])  # nobody has an idle session
    play(
        [*TWO_OF_TWO, (ends("a"), [END_A]), (arrives("z", "q"), NO_PLACE)]
    )  # the caller has the most itself
    play([*TWO_OF_TWO, (ends("a"), [END_A, stores()]), FULL])  # it may be on its way out
    play(ONE_BUSY_WITH_TWO)  # the one with an idle session has not the most
    play([*also(ONE, drops()), *[(arrives(n, n), []) for n in "bcde"]])  # two wait for the drop
    play([*cut_back(55), *[TICK] * 20, (arrives("c", "r", prompt_tokens=30), [])])
    fails = ev.KvFailed("drop", CardId("c"), SlotId(0), EntryId(-1), "engine_error")
    broken: list[Step] = [*also([*OUT_AND_UP[:2], *ONE[2:]], drops())]
    broken += [(fails, [drops()]), (fails, [drops()]), (fails, []), *[TICK] * 20]
    play([*broken, (arrives("b", "r", prompt_tokens=60), [])])  # what it held is no room
    play([*OUT_AND_UP, *[TICK] * 20, (arrives("b", "r", prompt_tokens=95), [])])


def test_tenant_that_is_passed_over_and_over_is_caught() -> None:
    steps: list[Step] = [*UP, *[TICK] * 20, (arrives("u", "u", tenant=TenantId("u")), [])]
    for number in range(400):
        name = f"a{number}"
        steps += [TICK, (arrives(name, name), [runs(name, name)])]
        steps += [(ends(name), [settles(name, name), drops()])]
        steps += [
            (ev.KvDropped(CardId("c"), SlotId(0)), [act.SessionEnded(SessionId(name), "closed")])
        ]
    with pytest.raises(CheckFailed, match="overtaken by more") as caught:
        play(steps, kinds=[Order])
    assert caught.value.name == "order"


def test_time_that_falls_is_caught() -> None:
    with pytest.raises(CheckFailed, match="time"):
        play(ONE, every_ns=-1)


def test_turn_that_takes_too_long_is_caught() -> None:
    late = settles("a", queue_ns=0, slot_ns=3600 * SECOND_NS)
    with pytest.raises(CheckFailed, match="deadlines"):
        play([*ONE[:-1], (ends("a"), [late])], every_ns=3600 * SECOND_NS)
