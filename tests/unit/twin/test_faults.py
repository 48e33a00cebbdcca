"""Each fault changes what it should, and nothing elsewhere; afterwards everything drains."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from bedplate.core import invariants
from bedplate.core.actions import Action
from bedplate.core.base import Base
from bedplate.core.events import CardDown, Event
from bedplate.core.limits import default_policy
from bedplate.core.units import SECOND_NS
from bedplate.errors import ConfigError
from bedplate.perf.profile import MoveCost
from bedplate.twin.faults import (
    CardLost,
    CardSlow,
    Fault,
    GatewayRestarted,
    LinkLost,
    LinkSlow,
    PartitionLost,
    ToolSlow,
)
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import Site, TailSpec, simulate
from bedplate.twin.workload.form import Workload
from bedplate.twin.world import START_NS, Heard
from tests.unit.twin.sites import MS, POOL, agents, session, site, workload

SITE = site(4, partitions=2, pool=POOL, running_max=4)
LOAD = agents(24, turns=5, every_ms=300)
CALM = simulate(SITE, LOAD, seed=1)
MIDDLE_NS = CALM.duration_ns // 2


def run(
    *faults: Fault, where: Site = SITE, load: Workload = LOAD, heard: Heard | None = None
) -> Outcome:
    """Run with faults; every turn of the load must be answered in the end."""
    out = simulate(where, load, seed=1, faults=faults, heard=heard)
    _drained(out, load)
    return out


def _drained(out: Outcome, load: Workload) -> None:
    assert sum(s.turns_done for s in out.sessions) == sum(len(s.turns) for s in load.sessions)
    assert not any(s.failed for s in out.sessions)
    assert {row.status for row in out.turns} <= {"stop", "length", "tool_calls"}
    wanted = sum(turn.out_tokens for s in load.sessions for turn in s.turns)
    assert sum(row.out_tokens for row in out.turns) == wanted
    assert out.samples[-1].running == out.samples[-1].waiting == 0


def slowest(out: Outcome) -> int:
    return max(row.end_ns - row.arrival_ns for row in out.turns)


def test_a_lost_card_hands_its_turns_on_and_comes_back_to_work() -> None:
    there = [row for row in CALM.turns if row.card == "c1" and row.end_ns > MIDDLE_NS]
    at_ns = (there[0].first_ns + there[0].end_ns) // 2 - START_NS
    back_ns = at_ns + SECOND_NS
    out = run(CardLost(at_ns=at_ns, card="c1", back_ns=back_ns))
    assert out.counters["cards_lost"] == 1
    assert out.counters["failovers"] > 0, "it ran a turn then"
    assert out.cards[1].up_ns == out.duration_ns - SECOND_NS
    assert all(card.up_ns == out.duration_ns for card in out.cards if card.card != "c1")
    assert any(row.card == "c1" and row.arrival_ns > back_ns for row in out.turns)


def test_what_a_lost_card_delivered_is_not_delivered_again() -> None:
    plain = workload(session("a", (0, 100, 300)))
    where = site(2, running_max=1)
    calm = simulate(where, plain, seed=1).turns[0]
    [row] = run(CardLost(at_ns=calm.end_ns // 2, card="c0"), where=where, load=plain).turns
    assert row.first_ns == calm.first_ns
    assert row.card == "c1"
    # The second card computes prompt and what was delivered in one step, then goes on.
    assert 0 < row.end_ns - calm.end_ns < 60 * MS
    tools = workload(session("a", (0, 100, 300), (0, 10, 5), tool="grep"))
    begun_anew = simulate(
        where, tools, seed=1, faults=[CardLost(at_ns=calm.end_ns // 2, card="c0")]
    )
    assert begun_anew.turns[0].first_ns > calm.end_ns // 2, "a tool call cannot be resumed"


def test_a_card_that_hangs_is_noticed_later() -> None:
    at_once = run(CardLost(at_ns=MIDDLE_NS, card="c1"))
    silent = run(CardLost(at_ns=MIDDLE_NS, card="c1", silent_ns=5 * SECOND_NS))
    assert slowest(silent) >= 4 * SECOND_NS > slowest(at_once)


def test_a_card_that_is_back_before_anybody_noticed_has_lost_its_turns() -> None:
    load = workload(session("a", (0, 100, 300)))
    where = site(1)
    calm = simulate(where, load, seed=1).turns[0]
    at_ns = calm.end_ns // 2
    lost = CardLost(at_ns=at_ns, card="c0", back_ns=at_ns + SECOND_NS, silent_ns=5 * SECOND_NS)
    out = run(lost, where=where, load=load)
    assert out.counters["failovers"] == 1
    assert "cards_lost" not in out.counters
    assert SECOND_NS < out.turns[0].end_ns - calm.end_ns < SECOND_NS + 60 * MS


def test_news_of_a_loss_is_not_taken_for_that_of_a_later_one() -> None:
    load = workload(session("a", (0, 100, 300)))
    where = site(1)
    at_ns = simulate(where, load, seed=1).turns[0].end_ns // 2
    news: list[int] = []

    def listen(_: Base, now_ns: int, event: Event, __: tuple[Action, ...]) -> None:
        if isinstance(event, CardDown):
            news.append(now_ns - START_NS - at_ns)

    first = CardLost(at_ns=0, card="c0", back_ns=MS, silent_ns=at_ns + SECOND_NS)
    again = CardLost(
        at_ns=at_ns, card="c0", back_ns=at_ns + 20 * SECOND_NS, silent_ns=9 * SECOND_NS
    )
    run(first, again, where=where, load=load, heard=listen)
    assert news == [9 * SECOND_NS]


def test_a_fault_that_begins_as_another_ends_holds_wherever_it_stands_in_the_list() -> None:
    first = CardLost(at_ns=0, card="c1", back_ns=MS)
    then = CardLost(at_ns=MS, card="c1", back_ns=MIDDLE_NS)
    for faults in ((first, then), (then, first)):
        out = run(*faults)
        assert out.cards[1].up_ns == out.duration_ns - MIDDLE_NS


@pytest.mark.parametrize("kinds", ["cards", "card and partition"])
def test_a_thing_that_two_faults_hold_is_well_when_both_have_ended(kinds: str) -> None:
    """Lost for 2 s, and from the middle of that on for 3 s: 4 s in all."""
    first = CardLost(at_ns=MIDDLE_NS, card="c1", back_ns=MIDDLE_NS + 2 * SECOND_NS)
    at_ns, back_ns = MIDDLE_NS + SECOND_NS, MIDDLE_NS + 4 * SECOND_NS
    other: Fault = CardLost(at_ns=at_ns, card="c1", back_ns=back_ns)
    if kinds != "cards":
        other = PartitionLost(at_ns=at_ns, partition="p1", back_ns=back_ns)
    for faults in ((first, other), (other, first)):
        out = run(*faults)
        assert out.cards[1].up_ns == out.duration_ns - 4 * SECOND_NS
        assert out.counters["cards_lost"] == (1 if kinds == "cards" else 2)
    forever = run(first, CardLost(at_ns=at_ns, card="c1"))
    assert forever.cards[1].up_ns == MIDDLE_NS


def test_of_two_that_make_something_slow_the_later_one_holds_until_its_end() -> None:
    load = workload(session("a", *((1000, 10, 5) for _ in range(5)), tool="grep"))
    slow = ToolSlow(at_ns=0, tool="grep", factor=2.0, until_ns=7 * SECOND_NS)
    slower = ToolSlow(at_ns=1500 * MS, tool="grep", factor=3.0, until_ns=4 * SECOND_NS)
    for faults in ((slow, slower), (slower, slow)):
        rows = run(*faults, load=load).turns
        gaps = [later.arrival_ns - row.end_ns for row, later in pairwise(rows)]
        # Those that begin at about 0, 2, 5 and 7 s.
        assert gaps == [2000 * MS, 3000 * MS, 2000 * MS, 1000 * MS]


def test_a_gateway_that_two_restarts_hold_is_back_after_both() -> None:
    out = run(
        GatewayRestarted(at_ns=MIDDLE_NS, back_ns=MIDDLE_NS + 2 * SECOND_NS),
        GatewayRestarted(at_ns=MIDDLE_NS + SECOND_NS, back_ns=MIDDLE_NS + 4 * SECOND_NS),
    )
    assert not any(MIDDLE_NS < row.end_ns < MIDDLE_NS + 4 * SECOND_NS for row in out.turns)


@pytest.mark.parametrize("hangs", [True, False])
def test_a_turn_past_its_deadline_is_stopped_and_its_client_gives_up(hangs: bool) -> None:
    policy = default_policy()._replace(run_base_ns=2 * SECOND_NS, run_token_ns=1000)
    where = site(2, policy=policy)
    load = workload(session("a", (0, 100, 100), (0, 10, 5)), session("b", (0, 100, 100)))
    broken: Fault = CardSlow(at_ns=500 * MS, card="c0", factor=7.0)
    if hangs:
        broken = CardLost(at_ns=500 * MS, card="c0", silent_ns=60 * SECOND_NS)
    out = simulate(where, load, seed=1, faults=[broken])
    stopped, fine = out.turns
    assert (stopped.status, fine.status) == ("error", "stop")
    assert 0 < stopped.out_tokens < 100
    assert [s.failed for s in out.sessions] == [True, False]
    # A card that hangs does not answer a cancel; after 0.9 s it is taken as stopped.
    late_ns = stopped.end_ns - 2 * SECOND_NS
    assert 900 * MS <= late_ns < 902 * MS if hangs else 0 <= late_ns < 80 * MS


def test_a_lost_partition_takes_its_cards_only() -> None:
    out = run(PartitionLost(at_ns=MIDDLE_NS, partition="p1", back_ns=MIDDLE_NS + SECOND_NS))
    assert out.counters["cards_lost"] == 2
    down = [card.card for card in out.cards if card.up_ns < out.duration_ns]
    assert down == ["c1", "c3"]


def test_a_slow_card_is_slow_for_its_time_and_alone() -> None:
    # One turn a card, so that nobody's place changes.
    load = workload(*(session(f"s{i}", (0, 100, 200)) for i in range(4)))
    calm = {row.session: row for row in simulate(SITE, load, seed=1).turns}
    slow = CardSlow(at_ns=500 * MS, card="c2", factor=3.0, until_ns=1_000 * MS)
    rows = run(slow, load=load).turns
    for row in rows:
        late_ns = row.end_ns - calm[row.session].end_ns
        # In half a second a third of the steps is made; what is missing takes as long afterwards.
        want_ns = 500 * MS * 2 / 3 if row.card == "c2" else 0
        assert late_ns == pytest.approx(want_ns, abs=25 * MS if want_ns else 0)


def test_a_lost_link_fails_moves_of_its_partition_only() -> None:
    out = run(LinkLost(at_ns=MIDDLE_NS, partition="p0", until_ns=MIDDLE_NS + SECOND_NS))
    assert out.counters["kv_failed_store"] > 0
    assert "cards_lost" not in out.counters
    near = [row for row in out.turns if row.card in ("c1", "c3") and row.turn]
    assert near
    never = run(LinkLost(at_ns=0, partition="p0"))
    stores = {card.card: card.stores for card in never.cards}
    assert stores["c0"] == stores["c2"] == 0
    assert stores["c1"] > 0
    assert stores["c3"] > 0


def test_a_slow_link_makes_moves_longer_and_its_tail_some_very_long() -> None:
    heavy = TailSpec(share=0.5, scale_ns=float(SECOND_NS), max_ns=5.0 * SECOND_NS)
    load = agents(24, turns=5, gap_ms=0)
    calm = simulate(SITE, load, seed=1)
    slow = run(LinkSlow(at_ns=0, partition="p0", factor=500.0), load=load)
    tailed = run(LinkSlow(at_ns=0, partition="p0", factor=1.0, tail=heavy), load=load)
    waits = [max(row.queue_ns for row in out.turns) for out in (calm, slow, tailed)]
    assert waits[0] < waits[1]
    assert waits[0] < waits[2]


def test_slow_tools_stretch_the_gaps_that_begin_meanwhile() -> None:
    load = workload(session("a", (0, 10, 5), (1000, 10, 5), (1000, 10, 5), tool="grep"))
    slow = ToolSlow(at_ns=0, tool="grep", factor=3.0, until_ns=1500 * MS)
    rows = run(slow, load=load).turns
    gaps = [later.arrival_ns - row.end_ns for row, later in pairwise(rows)]
    assert gaps == [3000 * MS, 1000 * MS]
    other = run(ToolSlow(at_ns=0, tool="sed", factor=3.0), load=load)
    assert other.turns[1].arrival_ns - other.turns[0].end_ns == 1000 * MS
    every = run(ToolSlow(at_ns=0, factor=2.0), load=load)
    assert every.turns[1].arrival_ns - every.turns[0].end_ns == 2000 * MS


def test_a_restarted_gateway_loses_what_runs_and_is_asked_again() -> None:
    back_ns = MIDDLE_NS + 3 * SECOND_NS
    out = run(GatewayRestarted(at_ns=MIDDLE_NS, back_ns=back_ns))
    assert out.counters["turns_lost"] > 0
    assert out.counters["client_retries"] >= out.counters["turns_lost"]
    assert not any(MIDDLE_NS < row.end_ns < back_ns for row in out.turns)
    # Sessions find what the pool kept for them.
    after = [row for row in out.turns if row.arrival_ns > back_ns and row.turn]
    assert any(row.cached_tokens > 0 for row in after)
    assert all(card.up_ns == out.duration_ns for card in out.cards)


def test_a_card_that_returns_while_the_gateway_is_away_is_there_afterwards() -> None:
    second = MIDDLE_NS + SECOND_NS
    out = run(
        CardLost(at_ns=MIDDLE_NS - SECOND_NS, card="c0", back_ns=second),
        CardLost(at_ns=second, card="c1", silent_ns=100 * MS),
        GatewayRestarted(at_ns=MIDDLE_NS, back_ns=MIDDLE_NS + 3 * SECOND_NS),
    )
    late = {row.card for row in out.turns if row.arrival_ns > MIDDLE_NS + 3 * SECOND_NS}
    assert "c0" in late
    assert "c1" not in late


def _drawn(rng: random.Random) -> list[Fault]:
    found: list[Fault] = []
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(CALM.duration_ns)
        end = at + rng.randrange(1, 5 * SECOND_NS)
        card = f"c{rng.randrange(4)}"
        part = f"p{rng.randrange(2)}"
        tail = rng.choice((None, TailSpec(0.3, 2e8, 2e9)))
        silent = rng.choice((0, 700 * MS))
        kinds: tuple[Fault, ...] = (
            CardLost(at_ns=at, card=card, back_ns=end, silent_ns=silent),
            PartitionLost(at_ns=at, partition=part, back_ns=end),
            CardSlow(at_ns=at, card=card, factor=4.0, until_ns=end),
            LinkLost(at_ns=at, partition=part, until_ns=end),
            LinkSlow(at_ns=at, partition=part, factor=9.0, until_ns=end, tail=tail),
            ToolSlow(at_ns=at, factor=2.5, until_ns=end),
            GatewayRestarted(at_ns=at, back_ns=end),
        )
        found.append(rng.choice(kinds))
    return found


def every_hundredth_checked(
    base: Base, now_ns: int, event: Event, actions: tuple[Action, ...]
) -> None:
    """Check all invariants of the core after every hundredth event."""
    if base.seq % 100 == 0:
        invariants.check(base)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_breaks_it_drains_once_the_faults_are_over(seed: int) -> None:
    rng = random.Random(seed)
    stalls = rng.random() < 0.5
    cost = MoveCost(base_ns=2e6, byte_ns=1.0, stalls=stalls)
    kv = rng.choice(("full", "full", "hints"))
    where = site(
        4,
        partitions=2,
        pool=POOL,
        kv=kv,
        running_max=4,
        store=cost,
        load=cost,
        progress_tokens=rng.choice((0, 16)),
        kv_tokens=4_000,
        begin_ns=1e6,
        end_ns=5e5,
    )
    run(*_drawn(rng), where=where, heard=every_hundredth_checked)


def test_faults_that_make_no_sense_are_refused() -> None:
    for wrong, word in (
        (CardLost(at_ns=0, card="c9"), "no card c9"),
        (LinkLost(at_ns=0, partition="p9"), "partitions are p0, p1"),
        (CardSlow(at_ns=5, card="c0", factor=2.0, until_ns=1), "a nanosecond after"),
        (CardLost(at_ns=5, card="c0", back_ns=5), "a nanosecond after"),
        (ToolSlow(at_ns=0, factor=0.0), "factor"),
        (GatewayRestarted(at_ns=0, back_ns=-1), "come back"),
    ):
        with pytest.raises(ConfigError, match=word):
            simulate(SITE, LOAD, seed=1, faults=[wrong])
