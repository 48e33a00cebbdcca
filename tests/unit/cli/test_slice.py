"""Slices on the command line: times, what is refused before the service is asked, the table."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from bedplate.cli.slice import _row, app, time_ns
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--until", "8h"), "give either --cards or --kv-tokens"),
        (("--until", "8h", "--cards", "1", "--kv-tokens", "9"), "give either --cards or"),
        (("--until", "8h", "--kv-tokens", "9", "--lane", "batch"), "--lane goes with --cards"),
        (("--until", "1h", "--from", "2h", "--cards", "1"), "and after --from 2h"),
        (("--until", "2020-01-01T00:00Z", "--cards", "1"), "must be after now"),
        (("--until", "yesterday", "--cards", "1"), "write for example 8h, or 2026-12-01T18:00Z"),
    ],
)
def test_what_cannot_be_is_said_in_the_words_of_the_command(
    options: tuple[str, ...], words: str
) -> None:
    done = CliRunner().invoke(app, ["add", "s", "--tenant", "t", "--model", "m", *options])
    assert isinstance(done.exception, ConfigError)
    assert words in done.exception.message


def test_a_slice_that_has_no_cards_yet_shows_how_many_it_gets() -> None:
    part = {
        "id": "s", "tenant": "t", "model": "m", "cards": 1, "cards_held": [], "kv_tokens": 0,
        "lane": None, "from_ns": 0, "until_ns": SECOND_NS,
    }  # fmt: skip
    assert _row(part)[3] == 1
    assert _row({**part, "cards_held": ["c-0"]})[3] == "1: c-0"
