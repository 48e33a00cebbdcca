from __future__ import annotations

import pytest

from bedplate.core.limits import LANE_NAMES, default_policy
from bedplate.core.units import MICROSECOND_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS, blocks_for


@pytest.mark.parametrize(
    ("tokens", "block", "blocks"),
    [(0, 32, 0), (1, 32, 1), (32, 32, 1), (33, 32, 2), (64, 32, 2), (7, 1, 7)],
)
def test_blocks_hold_the_tokens_and_no_block_more(tokens: int, block: int, blocks: int) -> None:
    assert blocks_for(tokens, block) == blocks


@pytest.mark.parametrize(("tokens", "block"), [(-1, 32), (1, 0)])
def test_impossible_sizes_are_bugs(tokens: int, block: int) -> None:
    with pytest.raises(AssertionError):
        blocks_for(tokens, block)


def test_units_are_nanoseconds() -> None:
    assert MICROSECOND_NS == 1_000
    assert MILLISECOND_NS == 10**6
    assert SECOND_NS == 10**9
    assert MINUTE_NS == 60 * 10**9


def test_default_policy_is_complete_and_ordered() -> None:
    policy = default_policy(pool_bytes_max=5)
    assert len(policy.lanes) == len(LANE_NAMES) == 3
    assert policy.pool_bytes_max == 5
    shares = [lane.admit_permille for lane in policy.lanes]
    assert shares == sorted(shares, reverse=True)
    assert list(policy.water_permille) == sorted(set(policy.water_permille))
    for lane in policy.lanes:
        assert 0 < lane.admit_permille <= 1000
        assert min(lane.queue_max, lane.wait_max_ns, lane.output_tokens, lane.idle_max_ns) > 0
        assert lane.lease_ns <= lane.idle_max_ns
