"""Times of slices on the command line."""

from __future__ import annotations

import pytest

from bedplate.cli.slice import time_ns
from bedplate.core.units import SECOND_NS
from bedplate.errors import ConfigError

NOW = 1_000 * SECOND_NS


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("90s", 1_090),
        ("8h", 1_000 + 8 * 3_600),
        ("1970-01-01T01:00Z", 3_600),
        ("1970-01-01T09:00:00+08:00", 3_600),
    ],
)
def test_a_time_is_from_now_or_of_the_calendar(text: str, at_s: int) -> None:
    assert time_ns(text, NOW) == at_s * SECOND_NS


@pytest.mark.parametrize("text", ["", "8", "8y", "tomorrow", "2026-12-01T18:00", "2026-13-01T1Z"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="write for example"):
        time_ns(text, NOW)
