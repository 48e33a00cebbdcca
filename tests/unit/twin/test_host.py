"""Cards of one host share it: each goes slower while others compute, to the nanosecond."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from bedplate.core.actions import Dispatch
from bedplate.core.events import Event, TurnEnded
from bedplate.core.ids import BranchId, CardId, SessionId, SlotId, TurnId
from bedplate.perf.profile import LinearCost
from bedplate.twin.call import Call
from bedplate.twin.card import VirtualCard
from bedplate.twin.heap import CLIENT, FAULT, Heap
from bedplate.twin.run import simulate
from bedplate.twin.stepper import Host
from tests.unit.twin.sites import MS, agents, card_profile, site

STEP = LinearCost(
    launch_ns=10.0 * MS, weights_ns=0.0, prompt_ns=0.0, sequence_ns=0.0, pair_ns=0.0, context_ns=0.0
)
"""Every step takes 10 ms."""


class Cards:
    """Cards of one host, each of which runs one turn."""

    def __init__(self, count: int, contention: float) -> None:
        self.heap = Heap(0)
        self.ends: dict[str, int] = {}
        host = Host(contention)
        profile = card_profile(step=STEP)
        self.cards = [
            VirtualCard(
                f"c{at}",
                "p0",
                profile,
                memo={},
                heap=self.heap,
                tell=self._hear,
                start_move=lambda move: None,
                progress_tokens=0,
                host=host,
            )
            for at in range(count)
        ]
        for card in self.cards:
            card.start(heard=False)

    def _hear(self, event: Event) -> None:
        if isinstance(event, TurnEnded):
            self.ends[event.turn] = self.heap.now_ns

    def dispatch(self, at: int, at_ns: int, steps: int) -> None:
        """Let card `at` begin a turn of so many steps."""
        name = f"t{at}"
        call = Call(0, 0, SessionId(name), 0)
        call.turn = TurnId(name)
        call.prompt_tokens, call.out_tokens = 1, steps
        order = Dispatch(
            call.turn, 1, call.session, BranchId(0), CardId(f"c{at}"), SlotId(0), 0, False, steps, 0
        )
        self.heap.at(at_ns, CLIENT, lambda _: self.cards[at].dispatch(order, call), None)

    def run(self) -> dict[str, int]:
        while self.heap.entries:
            at_ns, _, _, fire, argument = heapq.heappop(self.heap.entries)
            self.heap.now_ns = at_ns
            fire(argument)
        return self.ends


def shared(jobs: Sequence[tuple[int, int]], contention: float) -> list[float]:
    """Return when jobs of (start, work) in ns end if all that run share their host."""
    left = [float(work) for _, work in jobs]
    ends = [0.0] * len(jobs)
    now = 0.0
    while any(left):
        active = [at for at, (start, _) in enumerate(jobs) if start <= now and left[at] > 0]
        pace = 1 + contention * max(0, len(active) - 1)
        nexts = [start - now for start, _ in jobs if start > now]
        nexts += [left[at] * pace for at in active]
        step = min(nexts)
        now += step
        for at in active:
            left[at] -= step / pace
            if left[at] < 1e-3:
                left[at], ends[at] = 0.0, now
    return ends


def test_two_cards_slow_each_other_down_while_both_compute() -> None:
    cards = Cards(2, 0.5)
    cards.dispatch(0, 0, 100)
    cards.dispatch(1, 500 * MS, 40)
    # From 500 ms on both take 1.5 times as long, until the second ends at 1,100.
    assert cards.run() == {"t0": 1_200 * MS, "t1": 1_100 * MS}
    assert [card.row().busy_ns for card in cards.cards] == [1_200 * MS, 600 * MS]


def test_a_card_that_is_lost_leaves_the_host_to_the_others() -> None:
    cards = Cards(2, 1.0)
    cards.dispatch(0, 0, 100)
    cards.dispatch(1, 0, 100)
    cards.heap.at(400 * MS, FAULT, lambda _: cards.cards[1].freeze(), None)
    # 200 ms of the first are done by then, at half the pace; the other 800 ms it is alone.
    assert cards.run() == {"t0": 1_200 * MS}


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 3_000 * MS), st.integers(1, 200)), min_size=1, max_size=5
    ),
    contention=st.sampled_from((0.0, 0.3, 0.62, 1.5)),
)
def test_any_turns_share_their_host(jobs: list[tuple[int, int]], contention: float) -> None:
    cards = Cards(len(jobs), contention)
    for at, (start_ns, steps) in enumerate(jobs):
        cards.dispatch(at, start_ns, steps)
    ends = cards.run()
    expected = shared([(start, 10 * MS * steps) for start, steps in jobs], contention)
    for at, end_ns in enumerate(expected):
        assert abs(ends[f"t{at}"] - end_ns) <= 2 * len(jobs) + 1


def test_only_cards_of_one_partition_share() -> None:
    def length(partitions: int, contention: float) -> int:
        where = site(2, partitions=partitions, running_max=1, contention=contention)
        return simulate(where, agents(6, gap_ms=0), seed=1).duration_ns

    alone_ns = length(1, 0.0)
    assert length(2, 0.8) == alone_ns
    assert length(1, 0.8) > 1.3 * alone_ns
