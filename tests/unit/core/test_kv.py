"""KV on cards and in the pool: order in a slot, stickiness, moves, retention, forks, caps."""

from __future__ import annotations

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import BranchId, CardId, EntryId, TenantId
from bedplate.core.limits import RELEASE_SCAN_MAX
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import FREE, Steps, slot


def more(core: Steps, turn: str, session: str, **changes: object) -> None:
    """The next turn of a session: all 30 computed tokens, and 20 new ones."""
    core.arrive(turn, session, **{"prompt_tokens": 50, "reuse_tokens": 30, **changes})


def test_next_turn_runs_in_its_warm_slot() -> None:
    core = Steps()
    core.card()
    core.keep("a", "s")
    more(core, "b", "s")
    order = core.one(act.Dispatch)
    assert (order.slot, order.expect_cached_tokens, order.loaded) == (0, 30, False)


def test_next_turn_that_waits_goes_before_the_store() -> None:
    core = Steps()
    core.card()
    core.arrive("a", "s")
    more(core, "b", "s")
    core.end("a")
    assert core.said(act.StoreKv) == []
    assert core.one(act.Dispatch).turn == "b"


def test_next_turn_waits_for_a_store_under_way() -> None:
    core = Steps()
    core.card()
    core.arrive("a", "s")
    core.end("a")
    order = core.one(act.StoreKv)
    more(core, "b", "s")
    assert core.last == ()
    core.stored(order)
    assert core.one(act.Dispatch).expect_cached_tokens == 30


def test_cut_branch_expects_no_more_than_it_shares() -> None:
    for can_cut, expected in ((True, 12), (False, 0)):
        core = Steps()
        core.card(can_cut=can_cut)
        core.keep("a", "s")
        more(core, "b", "s", reuse_tokens=12)
        assert core.one(act.Dispatch).expect_cached_tokens == expected


def test_one_prompt_token_is_always_computed() -> None:
    core = Steps()
    core.card()
    core.keep("a", "s")
    core.arrive("b", "s", prompt_tokens=30, reuse_tokens=30)
    assert core.one(act.Dispatch).expect_cached_tokens == 29


def test_drop_then_dropped_then_load_then_loaded_then_dispatch() -> None:
    core = Steps()
    core.card(slots=1, running_max=1)
    entry = core.keep("a", "s")
    core.arrive("b", "other")
    drop = core.one(act.DropKv)
    assert core.said(act.Dispatch) == []
    core.dropped(drop)
    assert core.one(act.Dispatch).turn == "b"
    core.end("b")
    core.stored(core.one(act.StoreKv))
    more(core, "c", "s")
    drop = core.one(act.DropKv)
    assert core.said(act.LoadKv) == []
    core.dropped(drop)
    load = core.one(act.LoadKv)
    assert (load.session, load.entry) == ("s", entry)
    assert core.said(act.Dispatch) == []
    core.loaded(load)
    order = core.one(act.Dispatch)
    assert (order.turn, order.expect_cached_tokens, order.loaded) == ("c", 30, True)


def test_busy_home_with_a_clean_copy_moves_the_session() -> None:
    core = Steps()
    core.card("c0", slots=2, running_max=1)
    core.card("c1", slots=2, running_max=1)
    core.keep("a", "s")
    core.arrive("b", "u1")
    assert core.one(act.Dispatch).card == "c1", "c0 holds s, so c1 is less loaded"
    core.arrive("c", "u2")
    assert core.one(act.Dispatch).card == "c0"
    core.end("b", kv_tokens=0)
    core.dropped(core.one(act.DropKv))
    more(core, "d", "s")
    load = core.one(act.LoadKv)
    assert (load.card, load.session) == ("c1", "s")
    left = core.one(act.DropKv)
    assert (left.card, left.slot) == ("c0", 0), "the copy at home is given up"
    core.loaded(load)
    order = core.one(act.Dispatch)
    assert (order.card, order.expect_cached_tokens, order.loaded) == ("c1", 30, True)


def test_busy_home_with_the_only_copy_is_waited_for() -> None:
    core = Steps(pool_bytes_max=0)
    core.card("c0", slots=2, running_max=1)
    core.card("c1", slots=2, running_max=1)
    core.arrive("a", "s")
    core.end("a")
    core.arrive("b", "u1")
    core.arrive("c", "u2")
    core.end("b", kv_tokens=0)
    core.dropped(core.one(act.DropKv))
    more(core, "d", "s")
    assert core.said(act.Dispatch) == [], "c1 is free, but would compute everything again"
    core.end("c", kv_tokens=0)
    order = core.one(act.Dispatch)
    assert (order.turn, order.card, order.expect_cached_tokens) == ("d", "c0", 30)


def test_failed_load_is_a_prefill_not_an_error() -> None:
    core = Steps()
    core.card(slots=1, running_max=1)
    core.keep("a", "s")
    core.arrive("b", "other")
    core.dropped(core.one(act.DropKv))
    core.end("b", kv_tokens=0)
    core.dropped(core.one(act.DropKv))
    more(core, "c", "s")
    core.lost("load", core.one(act.LoadKv))
    order = core.one(act.Dispatch)
    assert (order.turn, order.expect_cached_tokens, order.loaded) == ("c", 0, False)


def test_failed_store_keeps_the_warm_slot() -> None:
    core = Steps()
    core.card()
    core.arrive("a", "s")
    core.end("a")
    core.lost("store", core.one(act.StoreKv))
    more(core, "b", "s")
    assert core.one(act.Dispatch).expect_cached_tokens == 30


def test_no_pool_means_no_stores() -> None:
    core = Steps(pool_bytes_max=0)
    core.card()
    core.arrive("a", "s")
    core.end("a")
    assert core.said(act.StoreKv) == []


def test_cards_without_moves_get_none() -> None:
    for kv in ("hints", "none"):
        core = Steps()
        core.card(kv=kv)
        core.arrive("a", "s")
        core.end("a")
        more(core, "b", "s")
        core.end("b")
        core.close("s")
        assert not core.said(act.StoreKv) + core.said(act.DropKv)
        assert core.one(act.SessionEnded).session == "s"


def test_newer_copy_replaces_the_older() -> None:
    core = Steps()
    core.card()
    entry = core.keep("a", "s")
    more(core, "b", "s")
    core.end("b", kv_tokens=60)
    store = core.one(act.StoreKv)
    assert core.said(act.DropEntry) == [], "the older copy serves until the newer is there"
    core.stored(store, tokens=60)
    assert core.one(act.DropEntry).entry == entry


def test_forks_share_an_entry_and_the_last_one_lets_it_go() -> None:
    core = Steps()
    core.card("c0", slots=4, running_max=3, kv_tokens=1000, context_tokens=1000)
    entry = core.keep("a", "s")
    core.card("c1", slots=4, running_max=4)
    loads = []
    for branch in (1, 2):
        more(core, f"f{branch}", "s", branch=BranchId(branch), fork_of=0)
        loads += core.said(act.LoadKv)
    assert [load.entry for load in loads] == [entry, entry]
    assert {load.branch for load in loads} == {1, 2}
    more(core, "b", "s")
    core.end("b", kv_tokens=60)
    core.stored(core.one(act.StoreKv), tokens=60)
    assert core.said(act.DropEntry) == [], "two loads read it"
    core.loaded(loads[0])
    assert core.said(act.DropEntry) == []
    core.loaded(loads[1])
    assert core.one(act.DropEntry).entry == entry


def test_expired_goes_before_held_clean_before_dirty_batch_before_interactive() -> None:
    core = Steps()
    core.card(slots=4, running_max=4)
    core.keep("batch", "batch", lane=2)
    core.keep("inter", "inter", lane=0)
    core.arrive("dirty", "dirty", lane=2)
    core.end("dirty")
    core.lost("store", core.one(act.StoreKv))
    core.now += 31 * SECOND_NS
    core.keep("held", "held", lane=2)
    taken = []
    for need in (120, 150, 180, 190):
        core.arrive(f"big{need}", prompt_tokens=need - 10)
        taken += [drop.slot for drop in core.said(act.DropKv)]
        for drop in core.said(act.DropKv):
            core.dropped(drop)
        core.end(f"big{need}", kv_tokens=0)
        for drop in core.said(act.DropKv):
            core.dropped(drop)
    assert taken[0] == slot(0), "batch, expired, clean"
    assert taken[1] == slot(1), "interactive, expired, clean"
    assert taken[2] == slot(2), "expired, dirty"
    assert taken[3:] == [slot(3)] or taken[3:] == [slot(0)], "held"


def test_full_pool_deletes_idle_entries_first() -> None:
    core = Steps(pool_bytes_max=70_000)
    core.card(slots=4, running_max=4)
    first = core.keep("a", "s1")
    core.keep("b", "s2")
    core.arrive("c", "s3")
    core.end("c")
    assert core.said(act.StoreKv) == []
    assert core.one(act.DropEntry).entry == first
    core.tell(ev.EntryDropped(first))
    assert core.one(act.StoreKv).session == "s3"


def test_tenant_over_its_pool_quota_makes_room_from_its_own() -> None:
    """F20: never another tenant's."""
    few = FREE._replace(tenant=TenantId("few"), pool_bytes_max=40_000)
    core = Steps(tenants=(few,))
    core.card(slots=4, running_max=4)
    other = core.keep("x", "sx")
    mine = core.keep("a", "s1", tenant=TenantId("few"))
    core.arrive("b", "s2", tenant=TenantId("few"))
    core.end("b")
    assert [drop.entry for drop in core.said(act.DropEntry)] == [mine]
    assert other != mine


def test_tenant_over_its_pool_quota_finds_its_own_behind_many_of_others() -> None:
    few = FREE._replace(tenant=TenantId("few"), pool_bytes_max=40_000)
    core = Steps(tenants=(few,))
    core.card(slots=RELEASE_SCAN_MAX + 4, running_max=4, kv_tokens=4_000)
    for number in range(RELEASE_SCAN_MAX):
        core.keep(f"x{number}")
    mine = core.keep("a", "s1", tenant=TenantId("few"))
    core.arrive("b", "s2", tenant=TenantId("few"))
    core.end("b")
    assert core.one(act.DropEntry).entry == mine


def test_drain_stores_then_drops_and_moves_nothing_in() -> None:
    core = Steps()
    core.card("c0")
    core.arrive("a", "s")
    core.arrive("b", "u")
    core.end("b")
    core.lost("store", core.one(act.StoreKv))
    core.drain("c0")
    store = core.one(act.StoreKv)
    assert store.session == "u"
    assert core.said(act.CancelTurn) == []
    core.stored(store)
    core.dropped(core.one(act.DropKv))
    core.arrive("c", "v")
    assert core.said(act.Dispatch) == []
    core.end("a")
    core.stored(core.one(act.StoreKv))
    core.dropped(core.one(act.DropKv))
    core.drain("c0", on=False)
    assert core.one(act.Dispatch).turn == "c"


def test_stale_answers_change_nothing() -> None:
    core = Steps()
    core.card()
    core.keep("a", "s")
    nowhere = (CardId("nowhere"), slot(0))
    for event in (
        ev.KvDropped(CardId("c0"), slot(1)),
        ev.KvDropped(*nowhere),
        ev.KvLoaded(CardId("c0"), slot(0), EntryId(1), 5),
        ev.KvStored(CardId("c0"), slot(0), EntryId(99), 5, 5),
        ev.KvFailed("load", *nowhere, EntryId(1), "pool_error"),
        ev.EntryDropped(EntryId(99)),
    ):
        assert core.tell(event) == (), event
    more(core, "b", "s")
    assert core.one(act.Dispatch).expect_cached_tokens == 30


def test_a_turn_that_fits_computes_where_an_entry_longer_than_itself_does_not_fit() -> None:
    core = Steps()
    core.card()
    core.arrive("a", "s", prompt_tokens=110)
    core.end("a", prompt_tokens=110, kv_tokens=120)
    core.stored(core.one(act.StoreKv), tokens=120)
    core.down()
    core.card()
    core.arrive("fills", prompt_tokens=100)
    core.arrive("b", "s", prompt_tokens=40, reuse_tokens=30)
    assert core.said(act.LoadKv) == []
    assert core.one(act.Dispatch).turn == "b"


def test_a_fork_loads_an_entry_longer_than_itself_and_it_is_cut_back() -> None:
    core = Steps()
    core.card(slots=3, running_max=3)
    core.keep("a", "s")  # 30 tokens, of which the fork keeps 20
    core.arrive(
        "f", "s", branch=BranchId(1), fork_of=0, prompt_tokens=21, reuse_tokens=20, limit_tokens=1
    )
    load = core.one(act.LoadKv)
    core.loaded(load)
    order = core.one(act.Dispatch)
    assert (order.expect_cached_tokens, order.loaded) == (20, True)


def test_a_fork_waits_for_its_parents_copy_that_is_being_written() -> None:
    core = Steps()
    core.card(slots=3, running_max=3)
    core.arrive("a", "s")
    core.end("a")
    store = core.one(act.StoreKv)
    fork = {"branch": BranchId(1), "fork_of": 0, "prompt_tokens": 25, "reuse_tokens": 20}
    core.arrive("f", "s", **fork)
    assert core.said(act.Dispatch) == []
    core.stored(store)
    assert core.one(act.LoadKv).entry == store.entry


def test_a_fork_goes_on_when_its_parents_copy_could_not_be_written() -> None:
    core = Steps()
    core.card(slots=3, running_max=3)
    core.arrive("a", "s")
    core.end("a")
    store = core.one(act.StoreKv)
    fork = {"branch": BranchId(1), "fork_of": 0, "prompt_tokens": 25, "reuse_tokens": 20}
    core.arrive("f", "s", **fork)
    core.lost("store", store)
    assert core.one(act.Dispatch).expect_cached_tokens == 0


def test_branches_that_an_agent_left_behind_hold_no_reservation() -> None:
    core = Steps(pool_bytes_max=0)
    core.card(slots=4, running_max=1)
    for number in range(8):  # each edits its history: a new branch, the one before is left
        fork = {"branch": BranchId(number), "fork_of": number - 1}
        core.arrive(f"t{number}", "s", **fork)
        for drop in core.said(act.DropKv):
            core.dropped(drop)
        core.end(f"t{number}")
    (group,) = core.base.state.groups.values()
    assert group.admitted_tokens == 30
