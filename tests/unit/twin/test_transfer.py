"""Moves share the pool's bandwidth; bytes are conserved whatever comes and goes."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedplate.core.ids import CardId, EntryId
from bedplate.perf.profile import MoveCost
from bedplate.twin.heap import CLIENT, Heap
from bedplate.twin.transfer import MOVE_NS, Move, TailSpec, Transfer
from tests.unit.twin.sites import MS

GB = 10**9
FREE = MoveCost(base_ns=0.0, byte_ns=0.0, stalls=False)


class Wires:
    """A transfer, its heap, and when each move ended."""

    def __init__(self, bytes_per_s: float = GB, *, base_ns: float = 0.0, seed: int = 1) -> None:
        self.heap = Heap(0)
        self.ended: dict[int, tuple[int, str]] = {}
        self.transfer = Transfer(
            self.heap,
            random.Random(seed),
            bytes_per_s=bytes_per_s,
            base_ns=base_ns,
            tail=None,
            done=self._done,
        )

    def _done(self, move: Move, failure: str) -> None:
        assert move.entry not in self.ended, "one answer a move"
        self.ended[move.entry] = (self.heap.now_ns, failure)

    def move(self, number: int, size: int, *, at_ms: float = 0, **more: object) -> Move:
        move = Move("store", EntryId(number), more.get("cost", FREE))  # type: ignore[arg-type]
        move.size_bytes = size
        move.card = CardId(str(more.get("card", "c0")))
        move.partition = str(more.get("partition", "p0"))
        self.heap.at(round(at_ms * MS), CLIENT, self.transfer.start, move)
        return move

    def at(self, at_ms: float, what: object, *args: object) -> None:
        self.heap.at(round(at_ms * MS), CLIENT, lambda _: what(*args), None)  # type: ignore[operator]

    def run(self) -> dict[int, float]:
        """Run to the end; return the milliseconds at which moves ended well."""
        while self.heap.entries:
            at_ns, _, _, fire, argument = heapq.heappop(self.heap.entries)
            self.heap.now_ns = at_ns
            fire(argument)
        assert self.transfer.active == 0
        return {n: at / MS for n, (at, failure) in self.ended.items() if not failure}


def test_one_alone_takes_latency_and_bytes_at_the_slower_of_card_and_pool() -> None:
    wires = Wires(base_ns=2 * MS)
    wires.move(1, 10 * 10**6)  # 10 ms at 1 GB/s
    assert wires.run() == {1: 12}
    slow = MoveCost(base_ns=3 * MS, byte_ns=4.0, stalls=False)
    wires = Wires(base_ns=2 * MS)
    wires.move(1, 10 * 10**6, cost=slow)
    assert wires.run() == {1: 45}


def test_two_share_evenly_and_the_longer_gets_all_in_the_end() -> None:
    wires = Wires()
    wires.move(1, 10 * 10**6)
    wires.move(2, 30 * 10**6)
    assert wires.run() == {1: 20, 2: 40}


def test_what_a_slow_card_leaves_is_shared_by_the_others() -> None:
    wires = Wires()
    quarter = MoveCost(base_ns=0.0, byte_ns=4.0, stalls=False)
    wires.move(1, 10 * 10**6, cost=quarter)
    wires.move(2, 30 * 10**6)
    assert wires.run() == {1: 40, 2: 40}


def test_a_slow_link_slows_its_own_partition_only() -> None:
    wires = Wires()
    wires.transfer.set_factor("p0", 5.0)
    wires.move(1, 10 * 10**6, partition="p0")
    wires.move(2, 10 * 10**6, partition="p1")
    # Half of 1 GB/s each until p1's is through, of which p0's gets a fifth; then a fifth of all.
    assert wires.run() == {1: 20 + 8 * 5, 2: 20}


def test_a_lost_link_fails_what_is_under_way_and_what_comes_until_it_is_back() -> None:
    wires = Wires()
    link = wires.transfer.link("p0")
    wires.move(1, 100 * 10**6, partition="p0")
    wires.move(2, 100 * 10**6, partition="p1")
    wires.at(10, setattr, link, "lost", True)
    wires.at(10, wires.transfer.fail, "p0")
    wires.move(3, 10**6, at_ms=20, partition="p0")
    wires.at(30, setattr, link, "lost", False)
    wires.move(4, 10**6, at_ms=300, partition="p0")
    assert wires.run() == {2: 105, 4: 301}
    assert wires.ended[1] == (10 * MS, "pool_error")
    assert wires.ended[3] == (20 * MS, "pool_error")


def test_a_move_of_over_a_minute_fails_and_makes_room() -> None:
    wires = Wires()
    wires.move(1, 90 * GB)
    wires.move(2, 35 * GB, at_ms=20_000)
    assert wires.run() == {2: 75_000}  # 20 GB of it in the 40 s that they share
    assert wires.ended[1] == (MOVE_NS, "engine_timeout")
    assert wires.transfer.timed_out == 1


def test_moves_of_a_dead_card_vanish_without_a_word() -> None:
    wires = Wires()
    wires.move(1, 10 * 10**6, card="c0")
    wires.move(2, 10 * 10**6, card="c1")
    wires.at(10, wires.transfer.abandon, CardId("c0"))
    assert wires.run() == {2: 15}
    assert 1 not in wires.ended


loads = st.lists(
    st.tuples(
        st.integers(1, 10**6),  # bytes
        st.integers(0, 2000).map(lambda n: n / 1000),  # ms
        st.sampled_from((0.0, 0.5, 1.0, 8.0)),  # ns a byte of the card
        st.sampled_from(("p0", "p1")),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(load=loads)
def test_shares_equal_a_naive_fluid_and_conserve_bytes(
    load: list[tuple[int, float, float, str]],
) -> None:
    wires = Wires()
    for number, (size, at_ms, byte_ns, partition) in enumerate(load):
        cost = MoveCost(0.0, byte_ns, stalls=False)
        wires.move(number, size, at_ms=at_ms, cost=cost, partition=partition)
    ended = wires.run()
    expected = _fluid([(size, at_ms * MS, byte_ns) for size, at_ms, byte_ns, _ in load])
    for number, at_ns in enumerate(expected):
        # Each end is seen at the next nanosecond, which shifts later ones by as much.
        assert ended[number] * MS == pytest.approx(at_ns, abs=2 * len(load) + 2)
    begun_ns = min(at_ms for _, at_ms, _, _ in load) * MS
    lasted_ns = max(ended.values()) * MS - begun_ns
    assert sum(size for size, *_ in load) <= lasted_ns + 1  # 1 byte a ns, at most


def _fluid(load: list[tuple[int, float, float]]) -> list[float]:
    """Share 1 byte/ns evenly below each card's own speed, from change to change."""
    left = {n: float(size) for n, (size, _, _) in enumerate(load)}
    ends = [0.0] * len(load)
    now = 0.0
    while left:
        here = [n for n in left if load[n][1] <= now]
        coming = [load[n][1] for n in left if load[n][1] > now]
        rates = _even(here, load)
        until = min([now + left[n] / rates[n] for n in here] + coming)
        for n in here:
            left[n] -= rates[n] * (until - now)
            if left[n] <= 1e-6:
                ends[n] = until
                del left[n]
        now = until
    return ends


def _even(here: list[int], load: list[tuple[int, float, float]]) -> dict[int, float]:
    """Raise all rates together until the pool is used up, leaving behind who is at its limit."""
    limits = {n: 1 / load[n][2] if load[n][2] else 1.0 for n in here}
    rates: dict[int, float] = {}
    room = 1.0
    for n in sorted(here, key=lambda n: limits[n]):
        rates[n] = min(limits[n], room / (len(here) - len(rates)))
        room -= rates[n]
    return rates


def test_the_tail_is_rare_long_and_bounded() -> None:
    tail = TailSpec(share=0.1, scale_ns=1000.0, max_ns=12_000.0)
    rng = random.Random(7)
    draws = [tail.draw_ns(rng) for _ in range(20_000)]
    hit = [ns for ns in draws if ns > 0]
    assert 0.09 < len(hit) / len(draws) < 0.11
    assert max(hit) == 12_000.0
    # Lomax with shape 2: half of them below (√2 − 1) × scale, a hundredth above 9 × scale.
    assert sorted(hit)[len(hit) // 2] == pytest.approx(414, rel=0.1)
    assert sum(ns > 9000 for ns in hit) / len(hit) == pytest.approx(0.01, abs=0.005)
