"""What is learned of tools: histograms that fade, rates of return, bounded memory."""

from __future__ import annotations

import random

from bedplate.core.tools import (
    ENOUGH,
    LAST,
    NEVER_NS,
    RATE_BITS,
    SAMPLES_MAX,
    Gaps,
    Memory,
    bucket_of,
    edge_ns,
)
from bedplate.core.units import MINUTE_NS, SECOND_NS


def gaps(*seconds: float, times: int = 1) -> Gaps:
    found = Gaps()
    for _ in range(times):
        for second in seconds:
            found.add(round(second * SECOND_NS))
    return found


def seconds(rate: int) -> float:
    """The wait that a rate stands for."""
    return (1 << RATE_BITS) / rate / SECOND_NS


def test_edges_are_the_first_times_of_their_buckets() -> None:
    assert edge_ns(0) == 0
    for bucket in range(1, LAST + 1):
        assert bucket_of(edge_ns(bucket)) == bucket
        assert bucket_of(edge_ns(bucket) - 1) == bucket - 1
        assert edge_ns(bucket) > edge_ns(bucket - 1)
    assert bucket_of(NEVER_NS) == LAST


def test_rate_of_a_steady_tool_is_one_over_what_is_left() -> None:
    found = gaps(10.0, times=100)
    assert 9 < seconds(found.rate(0)) < 13
    assert 4 < seconds(found.rate(5 * SECOND_NS)) < 8
    assert seconds(found.rate(8 * SECOND_NS)) < 5


def test_who_is_late_is_not_expected_any_more() -> None:
    found = gaps(1.0, 2.0, 3.0, times=40)
    assert seconds(found.rate(MINUTE_NS)) > 10 * seconds(found.rate(0))


def test_a_short_and_a_long_kind_of_gap_are_told_apart_by_the_time_waited() -> None:
    """Half return within 2 s, half after 100 s: past 2 s the rate falls, though the mean does not
    change much: a rule by the mean would hold them all."""
    found = gaps(1.0, 100.0, times=60)
    assert seconds(found.rate(0)) < 4
    assert seconds(found.rate(4 * SECOND_NS)) > 60


def test_the_rate_is_the_best_that_any_giving_up_time_has() -> None:
    rng = random.Random(7)
    found = Gaps()
    for _ in range(200):
        found.add(round(rng.lognormvariate(0, 1.2) * 8 * SECOND_NS))
    counts = [4 * count + 1 for count in found.counts]
    for start in range(0, LAST, 7):
        best = 0
        for end in range(start + 1, LAST + 1):
            back = sum(counts[start:end])
            held = 0
            for bucket in range(start, end):
                width = edge_ns(bucket + 1) - edge_ns(bucket)
                out = sum(counts[bucket + 1 :])
                held += out * width + counts[bucket] * (width // 2)
            best = max(best, (back << RATE_BITS) // held)
        # The last bucket counts whole samples: those who never came back doubt nothing.
        assert abs(found.rate(edge_ns(start)) - best) <= best // 100 + 1


def test_room_is_held_while_the_rate_is_above_its_price() -> None:
    found = gaps(2.0, times=100)
    dear, cheap = found.rate(0) + 1, found.rate(MINUTE_NS)
    assert found.hold_ns(dear * 1000) == 0
    assert 2 * SECOND_NS <= found.hold_ns(cheap) <= 2 * MINUTE_NS
    assert found.hold_ns(0) >= found.hold_ns(cheap) >= found.hold_ns(dear)


def test_the_past_fades() -> None:
    found = gaps(100.0, times=SAMPLES_MAX)
    for _ in range(3 * SAMPLES_MAX):
        found.add(SECOND_NS)
    assert found.total <= SAMPLES_MAX
    assert seconds(found.rate(0)) < 3


def test_a_tenants_tools_are_bounded_and_the_unused_goes() -> None:
    memory = Memory(3)
    for _ in range(ENOUGH):
        for name in ("a", "b", "c"):
            memory.add(name, SECOND_NS)
    memory.add("d", SECOND_NS)
    assert list(memory.by_name) == ["b", "c", "d"]
    assert memory.believed("a") is None
    assert memory.believed("b") is memory.by_name["b"]


def test_few_samples_are_not_believed() -> None:
    memory = Memory(3)
    for _ in range(ENOUGH - 1):
        memory.add("a", SECOND_NS)
    assert memory.believed("a") is None
    memory.add("a", SECOND_NS)
    assert memory.believed("a") is not None
