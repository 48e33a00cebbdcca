from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bedplate.core.codec import body_of
from bedplate.core.events import CardDraining, CardUp
from bedplate.core.ids import CardId, ModelId
from bedplate.errors import ConfigError, InvalidRequest, JournalError
from bedplate.journal import Journal, Record
from bedplate.perf.profile_file import dump
from bedplate.twin.against import compare, compare_outcomes, recorded_site
from bedplate.twin.against_journal import live_outcome, read_recording
from bedplate.twin.faults import NEVER, CardLost
from bedplate.twin.workload.read import read_workload
from tests.unit.twin_report.files import card_profile
from tests.unit.twin_report.recorded import BEGAN_NS, SECOND, record, site, workload


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "card.toml"
    dump(card_profile(), path)
    return str(path)


def test_a_run_of_the_twin_agrees_with_the_twin(tmp_path: Path, profile: str) -> None:
    found = compare(record(tmp_path / "j"), profile=profile)
    assert (found.sessions, found.turns) == (12, 36)
    assert {line.lane for line in found.lines} == {"interactive", "shared", "all"}
    measures = [line.measure for line in found.lines if line.lane == "all"]
    assert measures == [
        "session mean", "session p50", "session p95", "TTFT mean", "TTFT p50", "TTFT p95",
        "turn mean", "turn p95", "queue mean", "hit share",
    ]  # fmt: skip
    for line in found.lines:
        assert line.live > 0
        assert line.error == pytest.approx(0.0, abs=1e-3), line
        assert line.n_live == line.n_twin
    assert found.notes == ()


def test_the_live_side_is_what_the_journal_says(tmp_path: Path) -> None:
    folder = record(tmp_path / "j")
    read = read_recording(folder)
    load = read_workload(folder, format="journal")
    live = live_outcome(read, load, "live")
    assert read.begin_ns == BEGAN_NS + SECOND
    assert len(live.sessions) == 12
    assert [row.status for row in live.turns[:3]] == ["tool_calls", "tool_calls", "stop"]
    first = live.turns[0]
    # 300 tokens in steps of 128, 128 and 44: 30 ms of steps and 300 ms of tokens.
    assert (first.arrival_ns, first.first_ns) == (0, 330_000_000)
    assert (first.prompt_tokens, first.cached_tokens, first.out_tokens) == (300, 0, 20)
    assert first.card.startswith("c-")
    assert [line.error for line in compare_outcomes(live, live, load) if line.error] == []


def test_the_site_is_the_recorded_one_with_the_times_of_the_profile(
    tmp_path: Path, profile: str
) -> None:
    small = site()
    cards = tuple(
        replace(card, partition="p", profile=replace(card.profile, slots=3, running_max=1))
        for card in small.cards
    )
    folder = record(tmp_path / "j", on=replace(small, cards=cards))
    made = recorded_site(read_recording(folder), profile, name="x")
    assert [card.id for card in made.cards] == ["c-0", "c-1"]
    assert made.cards[0].partition == "p"
    assert (made.cards[0].profile.slots, made.cards[0].profile.running_max) == (3, 1)
    assert made.cards[0].profile.step == card_profile().step
    assert (made.policy, made.pool.size_bytes) == (small.policy, 1 << 30)
    assert made.progress_tokens == 16


def test_a_card_that_was_lost_is_lost_again(tmp_path: Path, profile: str) -> None:
    fault = CardLost(at_ns=3 * SECOND, card="c-1", back_ns=6 * SECOND)
    folder = record(tmp_path / "j", faults=[fault])
    assert list(read_recording(folder).faults()) == [fault]
    for line in compare(folder, profile=profile).lines:
        assert line.error == pytest.approx(0.0, abs=0.02), line


def test_a_card_that_never_came_back_and_one_that_came_late(tmp_path: Path) -> None:
    faults = [
        CardLost(at_ns=0, card="c-0", back_ns=2 * SECOND),
        CardLost(at_ns=3 * SECOND, card="c-1"),
    ]
    read = read_recording(record(tmp_path / "j", faults=faults))
    assert list(read.faults()) == faults
    first, second = read.faults()
    assert isinstance(second, CardLost)
    assert second.back_ns == NEVER
    del read.states["c-0"][:2]  # as if it had come up for the first time when it came back
    assert next(read.faults()) == first


def test_a_drain_is_named_for_the_twin_does_not_play_it(tmp_path: Path, profile: str) -> None:
    folder = record(tmp_path / "j")
    drain = CardDraining(CardId("c-1"), True)
    with Journal.open(folder, origin="test") as journal:
        body = {"card": drain.card, "on": 1}
        note = Record(journal.next_seq, journal.last_time_ns, "CardDraining", "", "", body)
        journal.append([note])
    (said,) = compare(folder, profile=profile).notes
    assert "c-1 was drained" in said


def test_the_document_is_json(tmp_path: Path, profile: str) -> None:
    found = compare(record(tmp_path / "j"), profile=profile)
    document = json.loads(json.dumps(found.document()))
    assert document["profile"] == "card"
    assert document["lines"][0]["measure"] == "session mean"
    assert len(document["digest"]) == 64


def test_a_slower_profile_shows(tmp_path: Path) -> None:
    """With steps twice as long each turn without a queue takes twice as long."""
    path = tmp_path / "slow.toml"
    step = replace(card_profile().step, launch_ns=20e6, prompt_ns=2e6)  # type: ignore[type-var]
    dump(replace(card_profile(), step=step), path)
    found = compare(record(tmp_path / "j"), profile=str(path))
    errors = {line.measure: line.error for line in found.lines if line.lane == "all"}
    assert errors["turn mean"] is not None
    assert errors["turn mean"] > 0.9


def test_without_a_profile_for_the_model_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--profile"):
        compare(record(tmp_path / "j"))


def test_no_journal_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no journal"):
        compare(tmp_path / "none")
    with Journal.open(tmp_path / "j", origin="test") as journal:
        journal.append([Record(0, BEGAN_NS, "core_started", "", "", {})])
    with pytest.raises(InvalidRequest, match="no turn"):
        compare(tmp_path / "j")


@pytest.mark.parametrize(
    "wrong", [{"slots": 1 << 40}, {"slots": -1}, {"kv_tokens": -5}, {"running_max": 0}]
)
def test_a_card_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    up = CardUp(
        card=CardId("c-0"),
        model=ModelId("m"),
        partition="",
        kv="full",
        can_cut=True,
        slots=4,
        running_max=2,
        kv_tokens=1_000,
        context_tokens=1_000,
        kv_bytes_per_token=8,
    )
    for event, refused in ((up, False), (up._replace(**wrong), True)):
        folder = tmp_path / f"{refused}"
        with Journal.open(folder, origin="test") as journal:
            journal.append([Record(0, BEGAN_NS, "CardUp", "", "", body_of(event))])
        kind = JournalError if refused else InvalidRequest
        with pytest.raises(kind, match="record 0 cannot be" if refused else "no turn"):
            read_recording(folder)


def test_the_load_comes_out_as_it_went_in(tmp_path: Path) -> None:
    load = read_workload(record(tmp_path / "j"), format="journal")
    asked = {session.key: session for session in workload().sessions}
    assert {session.key for session in load.sessions} == set(asked)
    for session in load.sessions:
        assert session.start_ns == asked[session.key].start_ns
        assert [turn.gap_ns for turn in session.turns] == [0, SECOND, 2 * SECOND]
