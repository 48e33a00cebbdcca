"""The reference of `bedplate sim --json` has each key of real documents, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bedplate.perf.profile_file import dump
from tests.unit.cli.test_sim import document
from tests.unit.twin_report.files import card_profile
from tests.unit.twin_report.recorded import record
from tools.repository import ROOT

PAGE = ROOT / "docs" / "reference" / "simulation.md"
OPEN = ("statuses", "failures", "counters", "binds")
"""Keys whose value has names that depend on the run."""
FAULTS = (
    'fault = [{ kind = "card_lost", at_seconds = 1000, until_seconds = 1060, card = "embedded-0" },'
    ' { kind = "gateway_restarted", at_seconds = 2000, down_seconds = 50 },'
    ' { kind = "tool_slow", at_seconds = 1, factor = 2, tool = "none" }]'
)


def documented(title: str) -> set[str]:
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, title
    return set(re.findall(r"^\| `([^`]+)` \|", match[1], re.MULTILINE))


def paths(value: Any, stop: tuple[str, ...], prefix: str = "") -> Iterator[str]:
    """Yield the path of each value that holds no other, or whose path is in `stop`."""
    if prefix in stop or value in (None, [], {}) or not isinstance(value, dict | list):
        yield prefix
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, stop, f"{prefix}[]")
    else:
        for name, item in value.items():
            shown = "*" if prefix in OPEN else name
            yield from paths(item, stop, f"{prefix}.{shown}" if prefix else shown)


def test_one_run() -> None:
    shapes = ("lanes[]", "overall", "kv_used", "kv_running", "pool", "set")
    found = document("embedded", "--set", FAULTS)
    assert set(paths(found, shapes)) == documented("One run")
    assert set(document("embedded", "--speed")) == {
        *("name", "workload", "seed", "digest", "duration_s", "speed", "set")
    }
    spreads = ("times.ttft", "times.tpot", "times.queue", "times.turn", "times.session")
    for lane in (found["overall"], *found["lanes"]):
        assert set(paths(lane, spreads)) == documented("A lane")
        assert set(lane["times"]["ttft"]) == documented("A spread")
    for name in ("kv_used", "kv_running", "pool"):
        assert set(found[name]) == documented("An occupancy")


def test_several_seeds() -> None:
    found = document("embedded", "--seeds", "2", "--set", "workload.sessions_max=5")
    assert set(paths(found, ("runs[]", "set"))) == documented("Several seeds")
    one = document("embedded", "--set", "workload.sessions_max=5")
    assert set(found["runs"][0]) == set(one) - {"set"}


def test_against_a_recorded_run(tmp_path: Path) -> None:
    record(tmp_path / "journal")
    dump(card_profile(), tmp_path / "card.toml")
    found = document(
        "--against", str(tmp_path / "journal"), "--profile", str(tmp_path / "card.toml")
    )
    keys = {"notes[]" if path == "notes" else path for path in paths(found, ())}
    assert keys == documented("Against a recorded run")
