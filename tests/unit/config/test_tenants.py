"""Reserves of tenants: their own, and no more than can be kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bedplate.errors import ConfigError
from tests.unit.config.test_load import load_text


def test_reserves_are_a_tenant_s_own(tmp_path: Path) -> None:
    keys = 'reserve_tokens = 64\nlend_tokens = 32\npool_reserve_bytes = "1MiB"\n'
    policy = load_text(tmp_path, f'[[tenant]]\nid = "a"\n{keys}').policy()
    one = policy.tenants[0]
    assert (one.reserve_tokens, one.lend_tokens, one.pool_reserve_bytes) == (64, 32, 1 << 20)
    assert policy.default_tenant.reserve_tokens == 0
    with pytest.raises(ConfigError, match="reserve_tokens"):
        load_text(tmp_path, "[defaults]\nreserve_tokens = 64\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "day_micro_max = 10\nmonth_micro_max = 1\n",
            'tenant "a": day_micro_max 10 is above month_micro_max 1',
        ),
        (
            "[defaults]\nday_micro_max = 3\nmonth_micro_max = 2\n",
            "defaults: day_micro_max 3 is above month_micro_max 2",
        ),
        ("lend_tokens = 65\n", "lend_tokens 65 is above reserve_tokens 64"),
        ("card_tokens_max = 63\n", "reserve_tokens 64 is above card_tokens_max 63"),
        (
            'pool_bytes_max = "1MiB"\npool_reserve_bytes = "2MiB"\n',
            "pool_reserve_bytes 2097152 is above pool_bytes_max 1048576",
        ),
        ('[[tenant]]\nid = "b"\nreserve_tokens = 2000000\n', "more than the"),
        ('[[tenant]]\nid = "b"\npool_reserve_bytes = "900TiB"\n', "more than pool.size_bytes"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_text(tmp_path, f'[[tenant]]\nid = "a"\nreserve_tokens = 64\n{text}')
