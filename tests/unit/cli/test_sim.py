from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli import main
from bedplate.cli.main import application
from bedplate.errors import BedplateError, InvalidRequest
from bedplate.perf.profile_file import dump
from bedplate.twin.scenario import built_in_scenarios
from tests.unit.twin_report.files import SCENARIO, card_profile, write_scenario
from tests.unit.twin_report.recorded import record


def invoke(*arguments: str) -> Result:
    words = ["sim", *arguments]
    return CliRunner().invoke(application(words), words)


def document(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output + repr(result.exception)
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    return str(write_scenario(tmp_path))


def test_a_report_as_json(scenario: str) -> None:
    found = document(scenario)
    assert (found["name"], found["workload"], found["seed"]) == ("small", "load", 1)
    assert [lane["lane"] for lane in found["lanes"]] == ["interactive", "batch"]
    assert found["overall"]["turns_done"] == 4
    assert found["statuses"] == {"stop": 3, "tool_calls": 1}
    assert found["counters"]["accepted"] == 4
    assert found["bottleneck"]["binds"] in ("compute", "tools")
    interactive = found["lanes"][0]
    # 300 tokens in steps of 128, 128 and 44, alone on its card: 30 ms and 300 ms.
    assert interactive["times"]["ttft"]["most"] == pytest.approx(0.33)
    assert interactive["goodput"]["share"] == 1.0


def test_a_report_for_people(scenario: str) -> None:
    result = invoke(scenario)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "small: load on 2 cards, seed 1"
    assert any(line.split()[:5] == ["batch", "2", "2", "2", "2"] for line in lines)
    for said in ("KV on cards", "pool", "hits", "moves", "binds first", "core events", "TTFT, %"):
        assert any(line.startswith(said) for line in lines), said


def test_the_same_seed_gives_the_same_digest_in_another_process(scenario: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bedplate.cli.main", "sim", scenario, "--seed", "3", "--json"],
        env={**os.environ, "PYTHONHASHSEED": "17"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["digest"] == document(scenario, "--seed", "3")["digest"]


def test_speed_says_nothing_else(scenario: str) -> None:
    result = invoke(scenario, "--speed")
    first, second, third = result.stdout.splitlines()
    assert first.startswith("simulated 4 requests in ")
    assert second.startswith("core events ")
    assert third.startswith("digest ")
    found = document(scenario, "--speed")
    assert set(found) == {"name", "workload", "seed", "digest", "duration_s", "speed", "set"}
    assert found["speed"]["requests"] == 4


def test_a_picture(scenario: str, tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    result = invoke(scenario, "--plot", str(path), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["name"] == "small"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in result.stderr


def test_a_trace_in_place_of_the_scenarios_workload(scenario: str, tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
        encoding="utf-8",
    )
    found = document(scenario, "--trace", str(trace))
    assert (found["workload"], found["overall"]["turns"]) == ("azure", 1)


def test_a_picture_that_was_there_is_replaced_and_that_is_said(
    scenario: str, tmp_path: Path
) -> None:
    path = tmp_path / "curves.png"
    path.write_bytes(b"old")
    result = invoke(scenario, "--plot", str(path), "--json")
    assert result.stderr.endswith(f"curves written to {path}, over the file that was there\n")


def test_keys_in_place_of_the_scenarios(scenario: str) -> None:
    asked = ["--set", "cards[0].count=3", "--set", 'name="more"']
    found = document(scenario, *asked)
    assert (found["name"], len(found["cards"])) == ("more", 3)
    assert found["set"] == ["cards[0].count=3", 'name="more"']
    assert document(scenario)["set"] == []
    lines = invoke(scenario, *asked).stdout.splitlines()
    assert lines[:3] == [
        "more: load on 3 cards, seed 1",
        "with cards[0].count=3",
        'with name="more"',
    ]


def test_cards_that_keep_their_own_cache_move_nothing(tmp_path: Path) -> None:
    """What the documents say of endpoints: a pool in front of them does nothing."""
    text = SCENARIO.replace("count = 2", "count = 1")
    scenario = str(write_scenario(tmp_path, text))
    stored = document(scenario)
    dump(replace(card_profile(), kv="hints"), tmp_path / "card.toml")
    found = document(scenario)
    assert stored["moves"]["stores"] > 0
    assert found["moves"] == {"stores": 0, "loads": 0, "moved_bytes": 0}
    assert found["pool"]["peak"] == 0.0
    assert found["overall"]["tokens"]["cached"] > 0


def test_several_seeds(tmp_path: Path) -> None:
    text = SCENARIO.replace('file = "load.jsonl"', "sessions_max = 6\ntoken_factor = 0.01")
    text += "[workload.mix]\nshares = { customer_service = 1 }\nsessions_per_hour = 600\n"
    scenario = str(write_scenario(tmp_path, text))
    found = document(scenario, "--seeds", "3", "--seed", "4")
    assert found["seeds"] == [run["seed"] for run in found["runs"]] == [4, 5, 6]
    assert found["runs"][1]["digest"] == document(scenario, "--seed", "5")["digest"]
    sessions = [run["overall"]["times"]["session"]["p95"] for run in found["runs"]]
    (measure,) = [each for each in found["measures"] if each["measure"] == "session p95"]
    assert len(set(sessions)) == 3
    assert measure == {
        "lane": "interactive",
        "measure": "session p95",
        "n": 3,
        "median": sorted(sessions)[1],
        "least": min(sessions),
        "most": max(sessions),
        "spread": pytest.approx((max(sessions) - min(sessions)) / sorted(sessions)[1]),
    }
    assert sum(found["binds"].values()) == 3
    lines = invoke(scenario, "--seeds", "2").stdout.splitlines()
    assert lines[0] == "small: mix on 2 cards, 2 seeds, 1 to 2"
    assert any(line.split()[:4] == ["interactive", "TTFT", "p95,", "s"] for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_report_fits_80_columns(scenario: str) -> None:
    for name in (scenario, "embedded"):
        lines = invoke(name).stdout.splitlines()
        assert max(map(len, lines)) <= 80, max(lines, key=len)
        assert not any("…" in line for line in lines)


def test_help_names_the_built_in_scenarios_and_where_the_keys_are() -> None:
    said = " ".join(invoke("--help").stdout.replace("│", " ").split())
    assert f"built in: {', '.join(built_in_scenarios())}." in said
    assert "docs/reference/scenario.md" in said


def test_a_profile_is_refined_by_a_journal(tmp_path: Path) -> None:
    record(tmp_path / "journal")
    dump(card_profile(), tmp_path / "card.toml")
    out = tmp_path / "refined.toml"
    arguments = ["--against", str(tmp_path / "journal"), "--refine", str(out)]
    result = invoke(*arguments)
    assert result.exit_code != 0
    found = document(*arguments, "--profile", str(tmp_path / "card.toml"))
    assert max(abs(line["error"]) for line in found["lines"]) < 0.02
    assert "launch_ns" in out.read_text()
    assert found["profile_file"] == str(out)
    again = invoke(*arguments, "--profile", str(tmp_path / "card.toml"))
    assert re.match(r"prompt times × 1\.?\d*, decode times × \d", again.stderr)
    assert f"profile written to {out}, over the file that was there" in again.stderr


def test_against_a_journal(tmp_path: Path) -> None:
    record(tmp_path / "data" / "journal")
    dump(card_profile(), tmp_path / "card.toml")
    arguments = ["--against", str(tmp_path / "data"), "--profile", str(tmp_path / "card.toml")]
    found = document(*arguments)
    assert (found["sessions"], found["turns"]) == (12, 36)
    assert max(abs(line["error"]) for line in found["lines"]) < 0.001
    result = invoke(*arguments)
    assert "12 sessions, 36 turns" in result.stdout
    said = " ".join(result.stdout.split())
    assert f"twin: profile card (measured; {tmp_path / 'card.toml'})" in said
    assert any(
        line.split()[:4] == ["all", "session", "mean,", "s"] for line in result.stdout.splitlines()
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Built-in scenarios: "),
        (["none.toml"], "cannot be read"),
        (["no-such-scenario"], "no built-in scenario; there are box-of-8, embedded, super"),
        (["embeded"], 'no built-in scenario; the nearest is "embedded" of box-of-8'),
        (["{scenario}", "--seeds", "2", "--plot", "x.png"], "--plot does not go together with"),
        (["--against", "x", "--seeds", "2"], "--seeds does not go together with --against"),
        (["--against", "x", "--set", "a=1"], "--set does not go together with --against"),
        (["{scenario}", "--set", "cards[0].cout=1"], 'unknown key "cards[0].cout"; the nearest'),
        (["{scenario}", "--trace", "none.csv"], "cannot be read"),
        (["{scenario}", "--plot", "curves.jpg"], "PNG"),
        (["{scenario}", "--plot", "none/curves.png"], "cannot write"),
        (["{scenario}", "--profile", "x"], "--profile does not go together with SCENARIO"),
        (["{scenario}", "--against", "x"], "SCENARIO does not go together with --against"),
        (["--against", "x", "--plot", "x.png"], "--plot does not go together"),
        (["--against", "x", "--speed"], "--speed does not go together"),
        (["--against", "none"], "has no journal"),
    ],
)
def test_what_cannot_be_is_said_with_status_2(
    scenario: str, arguments: list[str], said: str
) -> None:
    result = invoke(*(word.format(scenario=scenario) for word in arguments))
    error = result.exception
    assert isinstance(error, BedplateError), result.output
    assert said in error.message
    assert main.report(error, as_json=False) == 2


def test_zero_cards_broken_toml_and_a_card_that_cannot_run(tmp_path: Path) -> None:
    for text, said in (
        (SCENARIO.replace("count = 2", "count = 0"), "cards[0].count"),
        ("[[cards]\n", "is not TOML"),
        (SCENARIO.replace("[workload]", "[[cards]]\nname = 'y'\nprofile = 'o.toml'\n[workload]"),
         "one model a run"),
    ):  # fmt: skip
        dump(card_profile("other"), tmp_path / "o.toml")
        result = invoke(str(write_scenario(tmp_path, text)))
        assert isinstance(result.exception, BedplateError), result.output
        assert said in result.exception.message
        assert main.report(result.exception, as_json=False) == 2


def test_a_negative_seed_is_refused(scenario: str) -> None:
    assert invoke(scenario, "--seed", "-1").exit_code == 2


def test_an_unreadable_trace_names_its_line(scenario: str, tmp_path: Path) -> None:
    trace = tmp_path / "bad.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,1\n", encoding="utf-8")
    error = invoke(scenario, "--trace", str(trace)).exception
    assert isinstance(error, InvalidRequest)
    assert "line 2" in error.message
