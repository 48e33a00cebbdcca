from __future__ import annotations

import asyncio
import re

import pytest

from bedplate import errors
from bedplate.core.actions import Alarm
from bedplate.core.ids import CardId, SlotId
from bedplate.runtime import clock as clocks
from bedplate.runtime.clock import Clock
from bedplate.runtime.outcome import alarm_words, error_of, status_of, tool_of
from bedplate.runtime.slots import SlotUse
from bedplate.runtime.stats import Histogram
from bedplate.runtime.timers import CoreTimer


class FakeTime:
    def __init__(self) -> None:
        self.wall = 1_000
        self.steady = 50

    def time_ns(self) -> int:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.steady


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(clocks, "time", fake)
    return fake


def test_clock_follows_monotonic_time_only(time: FakeTime) -> None:
    clock = Clock()
    assert clock.now_ns() == 1_000
    time.wall = 5
    time.steady += 7
    assert clock.now_ns() == 1_007


def test_clock_never_falls_even_if_monotonic_time_does(time: FakeTime) -> None:
    clock = Clock()
    time.steady += 100
    assert clock.now_ns() == 1_100
    time.steady -= 90
    assert clock.now_ns() == 1_100


def test_clock_goes_on_after_the_last_record(time: FakeTime) -> None:
    assert Clock(last_ns=9_000).now_ns() == 9_001
    assert Clock(last_ns=999).now_ns() == 1_000


async def test_timer_fires_once_and_never_early() -> None:
    class Slow:
        now = 0

        def now_ns(self) -> int:
            Slow.now += 500_000
            return Slow.now

    fired: list[int] = []
    timer = CoreTimer(Slow(), lambda: fired.append(Slow.now))  # type: ignore[arg-type]
    timer.set(2_000_000)
    timer.set(2_000_000)
    while not fired:  # noqa: ASYNC110 (a thread or the clock decides)
        await asyncio.sleep(0.0005)
    assert fired[0] >= 2_000_000
    assert timer.at_ns == 0


async def test_timer_that_is_cleared_does_not_fire() -> None:
    fired: list[int] = []
    timer = CoreTimer(Clock(), lambda: fired.append(1))
    timer.set(1)
    timer.clear()
    await asyncio.sleep(0.001)
    assert fired == []


async def test_a_slot_is_used_by_one_task_after_the_other() -> None:
    slots, order = SlotUse(), []
    card, slot = CardId("c"), SlotId(0)
    gate = asyncio.Event()

    async def use(name: str) -> None:
        await slots.turn_of(card, slot)
        order.append(name)
        await gate.wait()

    for name in "abc":
        slots.enter(card, slot, asyncio.ensure_future(use(name)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == ["a"]
    gate.set()
    for _ in range(30):
        await asyncio.sleep(0)
    assert order == ["a", "b", "c"]
    assert slots.busy == 0


async def test_a_slot_whose_user_does_not_leave_fails_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bedplate.runtime.slots.LATE_S", 0.01)
    slots = SlotUse()
    card, slot = CardId("c"), SlotId(0)
    stuck = asyncio.ensure_future(asyncio.Event().wait())
    slots.enter(card, slot, stuck)  # type: ignore[arg-type]

    async def use() -> None:
        await slots.turn_of(card, slot)

    task = asyncio.ensure_future(use())
    slots.enter(card, slot, task)
    with pytest.raises(errors.EngineTimeout):
        await task
    stuck.cancel()


@pytest.mark.parametrize(
    ("reason", "refused", "cls", "status"),
    [
        ("lane_full", True, errors.LaneFull, 429),
        ("draining", True, errors.Draining, 503),
        ("no_engine", True, errors.NoEngine, 503),
        ("context_length_exceeded", True, errors.ContextTooLong, 400),
        ("session_not_found", True, errors.UnknownSession, 404),
        ("invalid_request_error", True, errors.RequestError, 400),
        ("engine_lost", False, errors.EngineLost, 502),
        ("engine_timeout", False, errors.EngineTimeout, 504),
        ("journal_error", True, errors.JournalError, 503),
        ("some_new_limit", True, errors.CapacityError, 429),
        ("some_new_fault", False, errors.EngineError, 502),
    ],
)
def test_codes_of_the_core_become_errors(
    reason: str, refused: bool, cls: type[errors.BedplateError], status: int
) -> None:
    error = error_of(reason, "why", retry_after_ns=1_500_000_000, refused=refused)
    assert type(error) is cls
    assert (error.code, error.http_status, error.retry_after_s) == (reason, status, 1.5)
    assert ": why" in error.message


@pytest.mark.parametrize("reason", ["no_engine", "lane_full", "retry_budget_spent", "draining"])
def test_a_turn_that_fails_for_want_of_room_says_when_to_come_back(reason: str) -> None:
    assert error_of(reason, "", retry_after_ns=0, refused=False).retry_after_s == 5.0
    assert error_of(reason, "", retry_after_ns=10**9, refused=False).retry_after_s == 1.0
    assert error_of("engine_error", "", retry_after_ns=0, refused=False).retry_after_s is None
    assert error_of(reason, "", retry_after_ns=0, refused=True).retry_after_s is None


def test_a_prompt_too_long_names_field_and_remedy() -> None:
    error = error_of("context_length_exceeded", "it has 9", retry_after_ns=0, refused=True)
    assert error.param == "messages"
    assert error.message.startswith("the prompt is too long: it has 9; shorten it, or raise kv_")
    assert error_of("lane_full", "", retry_after_ns=0, refused=True).param is None


@pytest.mark.parametrize(
    ("why", "word"), [("admission", "all KV room is reserved"), ("home_busy", "that card is busy")]
)
def test_a_turn_that_waited_is_told_for_what(why: str, word: str) -> None:
    error = error_of("lane_full", f"waited 60 s ({why})", retry_after_ns=1, refused=True)
    assert isinstance(error, errors.LaneFull)
    assert error.message.startswith("the turn waited 60 s")
    assert word in error.message
    assert "queue" not in error.message
    full = error_of("lane_full", "64 turns wait", retry_after_ns=1, refused=True)
    assert full.message == "too much waits already; try again later: 64 turns wait"


@pytest.mark.parametrize(
    ("kind", "level", "word"),
    [
        ("budget_day", 1, "80 % of the money of its day is spent"),
        ("budget_month", 2, "all the money of its month is spent"),
        ("tenant_kv", 2, "level 2 of water_percent is reached"),
        ("pool", 0, "below all water levels"),
        ("breaker", 0, "it serves again"),
    ],
)
def test_an_alarm_says_what_it_means(kind: str, level: int, word: str) -> None:
    assert word in alarm_words(kind, level)


def test_every_alarm_of_the_core_has_words() -> None:
    """The kinds stand in the docstring of Alarm, which is where the core's reader looks."""
    kinds = re.findall(r"[a-z]+_[a-z_]+|pool|breaker", (Alarm.__doc__ or "").split("`kind`:")[1])
    found = {kind for kind in kinds if kind != "level"}
    assert {"card_down", "budget_day", "pool"} <= found
    assert {kind for kind in found if alarm_words(kind, 1) == "level 1"} == set()


def test_a_deadline_names_its_header() -> None:
    error = error_of("deadline_exceeded", "", retry_after_ns=0, refused=False)
    assert "X-Bedplate-Deadline-Seconds" in error.message


def test_ends_and_tools() -> None:
    assert [status_of(r) for r in ("stop", "length", "tool_calls", "content_filter")] == [
        "stop",
        "length",
        "tool_calls",
        "stop",
    ]
    calls = [{"function": {"name": "look"}}, {"function": {"name": "leap"}}]
    assert tool_of({"role": "assistant", "tool_calls": calls}) == "look"
    assert tool_of({"role": "assistant", "content": "x"}) == ""


def test_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.number, histogram.sum_ns) == (5, 62)
