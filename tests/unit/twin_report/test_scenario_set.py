from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from bedplate.errors import ConfigError
from bedplate.twin.scenario import load_scenario
from bedplate.twin.scenario_set import apply
from tests.unit.twin_report.files import write_scenario

RAW: dict[str, Any] = {
    "name": "x",
    "cards": [{"count": 2}, {"count": 3}],
    "pool": {"size_bytes": "1GiB"},
}


def changed(*changes: str) -> tuple[dict[str, Any], frozenset[str]]:
    raw = copy.deepcopy(RAW)
    return raw, apply(raw, changes)


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("cards[1].count=4", ("cards", 1, "count"), 4),
        (" cards[0].count = 4 ", ("cards", 0, "count"), 4),
        ('name="a=b"', ("name",), "a=b"),
        ("run.slo_factor=2.5", ("run", "slo_factor"), 2.5),
        ("workload.mix.flat=false", ("workload", "mix", "flat"), False),
        ("pool={size_bytes=5}", ("pool",), {"size_bytes": 5}),
        ("cards=[]", ("cards",), []),
        ('cards[2].profile="p"', ("cards", 2, "profile"), "p"),
        ('fault[0].kind="card_lost"', ("fault", 0, "kind"), "card_lost"),
    ],
)
def test_a_value_goes_where_its_key_says(
    change: str, path: tuple[str | int, ...], value: object
) -> None:
    at: Any = changed(change)[0]
    for part in path:
        at = at[part]
    assert at == value
    assert type(at) is type(value)


def test_later_changes_go_on_from_earlier_ones() -> None:
    raw, _ = changed('fault[0].kind="card_lost"', 'fault[0].card="a"', "fault[1].at_seconds=2")
    assert raw["fault"] == [{"kind": "card_lost", "card": "a"}, {"at_seconds": 2}]


def test_what_is_new_is_blamed_on_the_command_line() -> None:
    assert changed("pool={size_bytes=5}", "a.b[0].c=1")[1] == {
        *("pool", "pool.size_bytes"),
        *("a", "a.b", "a.b[0]", "a.b[0].c"),
    }
    assert changed("cards[0].count=1")[1] == {"cards[0].count"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("cards[0].count", "write KEY=VALUE"),
        ("=4", "write KEY=VALUE"),
        ("cards[x].count=4", "write KEY=VALUE"),
        ("a..b=4", "write KEY=VALUE"),
        ("name=foo", "--set 'name=\"foo\"'"),
        ("name=", "is no TOML value"),
        ("name=1\nx=2", "is no TOML value"),
        ("cards.count=4", "cards is a list of 2; say which: cards[0]"),
        ("name.x=4", "name is 'x', which has no keys"),
        ("pool[0].x=4", "pool is no list"),
        ("cards[3].count=4", "cards has 2, counted from 0; the next to add is cards[2]"),
    ],
)
def test_what_cannot_be_set_is_said(change: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(change)
    assert said in caught.value.message


def test_a_scenario_with_other_cards(tmp_path: Path) -> None:
    path = str(write_scenario(tmp_path))
    assert len(load_scenario(path).site.cards) == 2
    found = load_scenario(path, changes=["cards[0].count=5", 'pool.size_bytes="2GiB"'])
    assert (len(found.site.cards), found.site.pool.size_bytes) == (5, 2 << 30)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("cards[0].cout=4", 'command line: unknown key "cards[0].cout"; the nearest is'),
        ("crads[0].count=4", 'command line: unknown key "crads"; the nearest is "cards"'),
        ('cards[0].count="4"', "command line: cards[0].count: "),
        ("cards[0].count=0", "command line: cards[0].count: "),
        ("pool.size_byte=4", 'command line: unknown key "pool.size_byte"; the nearest is "pool.s'),
    ],
)
def test_a_key_that_is_not_there_names_the_nearest(tmp_path: Path, change: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scenario(str(write_scenario(tmp_path)), changes=[change])
    assert said in caught.value.message
