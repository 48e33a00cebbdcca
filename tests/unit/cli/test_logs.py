"""The log is bounded: in lines of one kind, in the length of one, and in what can pass for one."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import orjson
import pytest

from bedplate.cli import log_bound
from bedplate.cli.log_bound import LINES_MAX, WINDOW_SECONDS, BoundedHandler
from bedplate.cli.logs import MESSAGE_CHARS_MAX, JsonFormatter, TextFormatter, set_up_logs, told_in
from bedplate.config.tree import LogConfig


class Bounded:
    """A logger of its own behind a bound, with a clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0
        self.written = io.StringIO()
        self.handler = BoundedHandler(logging.StreamHandler(self.written), clock=lambda: self.now)
        self.log = logging.Logger("tests.bounded", logging.INFO)
        self.log.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        return self.written.getvalue().splitlines()

    def flood(self, count: int) -> None:
        for number in range(count):
            self.log.warning("garbage %d", number)


@pytest.fixture
def bounded() -> Iterator[Bounded]:
    made = Bounded()
    yield made
    made.handler.close()


def test_a_flood_costs_a_bounded_number_of_lines_and_one_that_counts_the_rest(
    bounded: Bounded,
) -> None:
    bounded.flood(5000)
    assert len(bounded.lines) == LINES_MAX
    bounded.now += WINDOW_SECONDS
    bounded.log.warning("another kind")
    assert bounded.lines[LINES_MAX:] == [
        f"{5000 - LINES_MAX} more in the last 10 s, the last of them: garbage 4999",
        "another kind",
    ]


def test_a_flood_that_goes_on_costs_one_line_a_window(bounded: Bounded) -> None:
    for _ in range(6):
        bounded.flood(1000)
        bounded.now += WINDOW_SECONDS
    bounded.log.warning("the end")
    assert len(bounded.lines) == LINES_MAX + 6 + 1
    assert bounded.lines[-2].startswith("1000 more in the last 10 s")


def test_after_a_calm_window_lines_pass_again(bounded: Bounded) -> None:
    bounded.flood(1000)
    bounded.now += WINDOW_SECONDS
    bounded.flood(1)
    bounded.now += WINDOW_SECONDS
    bounded.flood(1)
    assert bounded.lines[LINES_MAX:] == [
        "900 more in the last 10 s, the last of them: garbage 999",
        "1 more in the last 10 s, the last of them: garbage 0",
        "garbage 0",
    ]


def test_a_flood_of_one_kind_hides_no_line_of_another(bounded: Bounded) -> None:
    bounded.flood(1000)
    bounded.log.error("the disk is full")
    assert bounded.lines[-1] == "the disk is full"


def test_what_was_held_back_is_told_though_nothing_else_is_logged(
    bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last flood of a night must not wait for the morning's first line."""
    monkeypatch.setattr(log_bound, "WINDOW_SECONDS", 0.02)
    bounded.flood(LINES_MAX + 7)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(5)
    assert bounded.lines[LINES_MAX].startswith("7 more in the last ")


def test_what_was_held_back_is_told_at_the_end(bounded: Bounded) -> None:
    bounded.flood(LINES_MAX + 3)
    bounded.now += 4
    bounded.handler.close()
    told = f"3 more in the last 4 s, the last of them: garbage {LINES_MAX + 2}"
    assert bounded.lines[LINES_MAX:] == [told]


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The process' root logger, put back as it was."""
    found = logging.getLogger()
    own = logging.getLogger("bedplate")
    handlers, level, own_level = found.handlers[:], found.level, own.level
    yield found
    for handler in found.handlers:
        if handler not in handlers:
            handler.close()
    found.handlers[:] = handlers
    found.setLevel(level)
    own.setLevel(own_level)


@pytest.mark.parametrize("name", ["bedplate.gateway", "uvicorn.error", "asyncio"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_the_service_log_is_bounded_whoever_logs(
    tmp_path: Path, root: logging.Logger, name: str, form: Literal["text", "json"]
) -> None:
    file = tmp_path / "log"
    set_up_logs(LogConfig(format=form), file)
    for _ in range(LINES_MAX + 50):
        logging.getLogger(name).warning("Invalid HTTP request received.")
    assert file.read_text().count("Invalid HTTP request") == LINES_MAX


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("bedplate", logging.WARNING, __file__, 1, message, args, None)


def test_what_a_line_quotes_begins_no_line_of_its_own_and_moves_no_cursor() -> None:
    text = TextFormatter().format(record("path=%s", "/x\n2026 ERROR forged\r\x1b[2J\u2028end"))
    first, second = text.split("\n")
    assert first.endswith("path=/x")
    assert second == "    2026 ERROR forged\\x0d\\x1b[2J\\u2028end"


def test_a_line_has_a_bounded_length() -> None:
    long = record("%s", "x" * (1 << 20))
    assert len(TextFormatter().format(long)) < MESSAGE_CHARS_MAX + 100
    assert len(orjson.loads(JsonFormatter().format(long))["message"]) < MESSAGE_CHARS_MAX + 100


def test_the_errors_of_a_log_are_counted(tmp_path: Path) -> None:
    """By the lines that the formatter itself writes, whatever a message quotes."""
    log = tmp_path / "bedplate.log"
    assert told_in(log) == ""
    formatter = TextFormatter()
    made = [
        formatter.format(logging.LogRecord("bedplate.x", level, "", 0, "an ERROR", None, None))
        for level in (logging.WARNING, logging.ERROR)
    ]
    log.write_text("\n".join(made), encoding="utf-8")
    assert told_in(log) == f"1 error in the 2 lines of {log}"
