"""Clients, calendar, and what a scenario says of itself: notes and evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bedplate.perf.catalog import find_card
from bedplate.perf.fitted import errors
from bedplate.twin.retry import RETRIES, RetryRule
from tests.unit.twin_report.files import SCENARIO
from tests.unit.twin_report.test_scenario import SECOND, fails, read

MIX = SCENARIO.replace(
    'file = "load.jsonl"',
    "[workload.mix]\nshares = { customer_service = 1 }\nsessions_per_hour = 60\n"
    "start = 2026-09-01T09:00:00\nflat = false",
)


def test_how_clients_ask_again(tmp_path: Path) -> None:
    assert read(tmp_path).retry == RETRIES
    keys = ("[clients]", "tries = 3", "pause_seconds = 0.25", "pause_max_seconds = 10")
    assert read(tmp_path, *keys).retry == RetryRule(3, SECOND // 4, 10 * SECOND)
    message = fails(tmp_path, "[clients]", "pause_seconds = 9")
    assert "pause_max_seconds 8 is below pause_seconds 9" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("start", "2026-09-01T09:00:00"),
        ("month_start_factor", "2.0"),
        ("month_start_days", "1"),
        ("weekend_factor", "0.5"),
    ],
)
def test_a_key_of_the_calendar_is_refused_at_a_flat_rate(
    tmp_path: Path, key: str, value: str
) -> None:
    flat = MIX.replace("start = 2026-09-01T09:00:00\nflat = false", f"{key} = {value}")
    assert f"workload.mix: {key} has no effect at a flat rate" in fails(tmp_path, text=flat)


def test_the_first_days_of_a_month_are_named_with_their_factor(tmp_path: Path) -> None:
    busy = read(tmp_path, text=MIX).workload
    assert "6 times that on the first 2 working days of a month" in busy.source
    usual = read(tmp_path, "month_start_factor = 1", text=MIX).workload
    assert "times that" not in usual.source
    assert 3 < len(busy.sessions) / len(usual.sessions) < 12


def test_what_names_nothing_is_noted(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "[[policy.tenant]]\nid = 'tt'",
        "[[policy.tenant]]\nid = 'u'",
        "[[fault]]\nkind = 'tool_slow'\nat_seconds = 1\ntool = 'look'\nfactor = 4.0",
        "[[fault]]\nkind = 'tool_slow'\nat_seconds = 1\ntool = 'lok'\nfactor = 4.0",
        "[[fault]]\nkind = 'tool_slow'\nat_seconds = 1\nfactor = 4.0",
    )
    assert found.notes == (
        'fault[1] slows down the tool "lok", which the load does not have; did you mean "look"? '
        "It has look",
        '[[policy.tenant]] limits the tenant "tt", which the load does not have; did you mean '
        '"t"? It has t, u',
    )
    assert read(tmp_path).notes == ()


def test_a_link_that_breaks_without_a_pool_is_noted(tmp_path: Path) -> None:
    faults = (
        "[[fault]]\nkind = 'link_lost'\nat_seconds = 1",
        "[[fault]]\nkind = 'link_slow'\nat_seconds = 1\nfactor = 2",
    )
    none = SCENARIO.replace('size_bytes = "1GiB"', "size_bytes = 0")
    found = read(tmp_path, *faults, text=none).notes
    assert [note[:8] for note in found] == ["fault[0]", "fault[1]"]
    assert all("there is no pool" in note for note in found)
    assert read(tmp_path, *faults).notes == ()


def test_what_times_rest_on(tmp_path: Path) -> None:
    [measured] = read(tmp_path).evidence
    assert (measured.evidence, measured.cards, measured.errors) == ("measured", 2, ())
    assert measured.words() == "card, 2 cards: measured; no error is known"
    estimated = SCENARIO.replace(
        'profile = "card.toml"', 'model = "Qwen2.5-14B"\ncard = "H100 SXM"'
    ).replace("count = 2", 'count = 2\npartition = "a"')
    group = estimated[estimated.index("[[cards]]") : estimated.index("[pool]")]
    both = read(tmp_path, group.replace("box", "other"), text=estimated)
    [found] = both.evidence
    assert (found.evidence, found.cards) == ("fitted", 4)
    known = errors(find_card("H100 SXM"))
    assert {off.quantity: off.mean for off in found.errors} == {
        name.upper(): error.mean for name, error in known.items()
    }
    assert f"TPOT ±{known['tpot'].mean:.0%}" in found.words()
    assert "not measured" in found.words()
