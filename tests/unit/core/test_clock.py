"""Timers, water levels, and that equal inputs give equal digests."""

from __future__ import annotations

import json

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.base import Base
from bedplate.core.ids import CardId, SessionId, TurnId
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.units import MINUTE_NS, SECOND_NS
from tests.unit.core.steps import POLICY, Steps


def test_first_event_is_the_policy_and_time_never_falls() -> None:
    with pytest.raises(AssertionError):
        Base().handle(1, ev.TimerFired())
    core = Steps()
    with pytest.raises(AssertionError, match="time fell"):
        core.base.handle(core.now - 1, ev.TimerFired())


def test_timer_is_armed_for_the_earliest_deadline_and_again_after_it_fired() -> None:
    core = Steps()
    core.card(slots=1, running_max=1)
    core.arrive("a", limit_tokens=100)
    core.arrive("b")
    assert min(timer.at_ns for timer in core.said(act.SetTimer)) <= core.now + 60 * SECOND_NS
    core.timer(60 * SECOND_NS)
    assert core.one(act.Refuse).turn == "b"
    armed = core.one(act.SetTimer).at_ns
    assert core.now < armed <= core.now + 130 * SECOND_NS, "the running turn has a deadline"


def test_turns_that_ended_wake_nobody() -> None:
    """What ended in time needs no timer, however many sessions stay open."""
    core = Steps(sessions_max=1_000)
    core.card(kv="none", kv_tokens=1 << 20)
    fired = 0
    for number in range(500):
        core.arrive(f"t{number}")
        core.end(f"t{number}")
        if 0 < core.base.state.armed_ns <= core.now:
            core.timer(0)
            fired += 1
    assert 0 < fired < 50, "500 turns in 500 seconds, each with two deadlines"


def test_timer_too_early_is_armed_again() -> None:
    """A lost timer would hang a turn for ever (INV-09)."""
    core = Steps()
    core.card()
    core.arrive("a")
    core.timer(SECOND_NS)
    assert core.one(act.SetTimer).at_ns > core.now


def test_card_alarm_rises_at_its_levels_and_falls_with_hysteresis() -> None:
    core = Steps()
    core.card(slots=4, running_max=4)
    levels: list[int] = []

    def note() -> None:
        levels.extend(a.level for a in core.said(act.Alarm) if a.kind == "card_kv")

    core.arrive("a", prompt_tokens=80, limit_tokens=10)
    note()
    assert levels == []
    core.arrive("b", prompt_tokens=10, limit_tokens=10)
    note()
    assert levels == [1], "11 of 20 blocks, level at 50 %"
    core.end("b", kv_tokens=0)
    note()
    core.dropped(core.one(act.DropKv))
    assert levels == [1], "9 of 20 is 45 %: not yet left"
    core.arrive("c", prompt_tokens=90, limit_tokens=10)
    note()
    assert levels == [1, 2], "19 of 20 is over 90 %"
    core.end("c", kv_tokens=0)
    note()
    assert levels == [1, 2, 1], "45 % again: the lower level is kept"
    core.end("a", kv_tokens=0)
    note()
    assert levels == [1, 2, 1, 0]


def test_pool_alarm() -> None:
    core = Steps(pool_bytes_max=50_000)
    core.card()
    core.arrive("a", "s")
    core.end("a")
    assert [(a.kind, a.level) for a in core.said(act.Alarm) if a.kind == "pool"] == [("pool", 1)]


def story(core: Steps) -> None:
    core.card()
    core.keep("a", "s")
    core.arrive("b", "s", prompt_tokens=50, reuse_tokens=30)
    core.arrive("c", "t")
    core.end("b")


def test_equal_events_give_equal_digests_and_others_do_not() -> None:
    first, second = Steps(), Steps()
    story(first)
    story(second)
    assert first.base.digest == second.base.digest
    assert first.base.seq == second.base.seq
    second.now += 1
    first.cancel("c")
    second.cancel("c")
    assert first.base.digest != second.base.digest


def test_snapshot_restores_digest_and_future() -> None:
    core = Steps()
    story(core)
    saved = json.loads(json.dumps(snapshot(core.base)))
    twin = restore(saved)
    assert (twin.digest, twin.seq) == (core.base.digest, core.base.seq)
    for event in (
        ev.TurnEnded(TurnId("c"), 1, "stop", 20, 0, 10, 30, "", True),
        ev.CardDraining(CardId("c0"), True),
        ev.TimerFired(),
        ev.SessionClosed(SessionId("s"), "client"),
        ev.PolicyChanged(POLICY._replace(pool_bytes_max=1000)),
    ):
        core.tell(event, after_ns=MINUTE_NS)
        assert twin.handle(core.now, event) == core.last
        assert twin.digest == core.base.digest


def test_snapshot_of_another_core_version_is_refused() -> None:
    core = Steps()
    saved = snapshot(core.base)
    saved["core_version"] = "another"
    with pytest.raises(ValueError, match="core version"):
        restore(saved)
