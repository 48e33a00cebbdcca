from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli.workload import app
from bedplate.errors import BedplateError, ConfigError, InvalidRequest
from bedplate.twin.workload.read import read_workload
from tests.unit.twin_workload import samples
from tests.unit.twin_workload.samples import write


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def invoke_json(*arguments: object) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def refused(*arguments: object) -> BedplateError:
    result = invoke(*arguments)
    assert isinstance(result.exception, BedplateError), result.output
    return result.exception


def test_show_prints_what_a_trace_asks(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", samples.AZURE)
    text = invoke("show", path).stdout
    rows = {line.split("  ")[0].strip(): line.split() for line in text.splitlines() if line.strip()}
    assert rows["sessions"] == ["sessions", "3"]
    assert rows["prompt tokens"] == ["prompt", "tokens", "3", "550", "396", "879", "879", "879"]
    found = invoke_json("show", path)
    assert (found["sessions"], found["turns"], found["name"]) == (3, 3, "azure")
    assert found["prompt_tokens"] == {
        "n": 3,
        "mean": pytest.approx(549.667, abs=0.001),
        "p50": 396,
        "p90": 879,
        "p99": 879,
        "max": 879,
    }
    assert found["lanes"] == [{"name": "interactive", "sessions": 3, "turns": 3}]
    assert invoke_json("show", path, "--limit", 1)["sessions"] == 1
    assert invoke_json("show", path, "--rate-scale", 2)["span_s"] == found["span_s"] / 2


def test_show_names_the_formats_where_none_fits(tmp_path: Path) -> None:
    error = refused("show", write(tmp_path, "x.txt", "hello"))
    assert isinstance(error, InvalidRequest)
    assert "servegen" in error.message


def test_show_of_a_folder_without_a_trace_names_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "README.md", "Traces of last year.")
    (tmp_path / "dev").mkdir()
    write(tmp_path / "dev", "a.csv", samples.AZURE)
    error = refused("show", tmp_path)
    assert error.message.startswith(f"{tmp_path}: README.md in this folder is of no known")
    assert "the folder has README.md, dev/; name one of them" in error.message
    (tmp_path / "README.md").unlink()
    assert "without files; the folder has dev/; name" in refused("show", tmp_path).message
    assert invoke_json("show", tmp_path / "dev")["sessions"] == 3


def test_show_fits_80_columns_with_all_digits(tmp_path: Path) -> None:
    out = tmp_path / "w.jsonl"
    invoke("make", "--persona", "customer_service", "--persona", "loan_parser", "--out", out)
    lines = invoke("show", out).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert any(line.startswith("floor: how long") for line in lines)


def test_make_says_that_a_file_was_there(tmp_path: Path) -> None:
    out = tmp_path / "w.jsonl"
    asked = ["make", "--persona", "customer_service", "--out", out]
    assert "over the file" not in invoke(*asked).stdout
    assert invoke(*asked).stdout.endswith(f" written to {out}, over the file that was there\n")


def test_make_writes_personas(tmp_path: Path) -> None:
    out = tmp_path / "w.jsonl"
    made = invoke_json(
        "make", "--persona", "fraud_triage=3", "--persona", "customer_service", "--out", out
    )
    found = read_workload(out)
    assert (made["file"], made["sessions"]) == (str(out), len(found.sessions))
    kinds = [session.kind for session in found.sessions]
    assert kinds.count("fraud_triage") > kinds.count("customer_service") > 0
    assert 35 <= len(kinds) <= 90
    again = tmp_path / "again.jsonl"
    invoke("make", "--persona", "customer_service=1", "--persona", "fraud_triage=3", "--out", again)
    assert again.read_bytes() == out.read_bytes()


def test_make_knows_calendars(tmp_path: Path) -> None:
    out = tmp_path / "w.jsonl"
    asked = ["make", "--persona", "customer_service", "--out", out, "--sessions-per-hour", 100]
    first = invoke_json(*asked, "--start", "2026-12-01T10:00")
    usual = invoke_json(*asked, "--start", "2026-12-16T10:00")
    assert 4 < first["sessions"] / usual["sessions"] < 9


def test_make_changes_a_source(tmp_path: Path) -> None:
    path, out = write(tmp_path, "b.csv", samples.BURST_2), tmp_path / "w.jsonl"
    result = invoke(
        *["make", path, "--out", out, "--repeat", 9, "--starts-per-s", 2, "--rate-scale", 2],
        *["--token-scale", 2, "--context", 1000, "--gap-max", 50, "--seed", 4],
        *["--tenant", "a/batch", "--tenant", "/shared"],
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("9 sessions with 15 turns written to ")
    found = read_workload(out)
    assert [(session.tenant, session.lane) for session in found.sessions[:2]] == [
        ("a", 2),
        ("burstgpt", 1),
    ]
    turns = [turn for session in found.sessions for turn in session.turns]
    assert max(turn.gap_ns for turn in turns) == 50 * 10**9
    assert max(turn.new_tokens + turn.out_tokens for turn in turns) == 1000


def test_make_says_what_is_wrong(tmp_path: Path) -> None:
    out = tmp_path / "w.jsonl"
    trace = write(tmp_path, "a.csv", samples.AZURE)
    assert "one of both" in refused("make", "--out", out).message
    assert "one of both" in refused("make", trace, "--persona", "x", "--out", out).message
    unknown = refused("make", "--persona", "teller", "--out", out)
    assert isinstance(unknown, ConfigError)
    assert "wealth_adviser" in unknown.message
    assert "'much' is no number" in refused("make", "--persona", "a=much", "--out", out).message
    negative = refused("make", "--persona", "fraud_triage=-1", "--out", out)
    assert "insurance_claim" in negative.message
    when = refused("make", "--persona", "fraud_triage", "--start", "monday", "--out", out)
    assert "2026-12-01T08:00" in when.message
    assert (
        "none of interactive" in refused("make", trace, "--tenant", "a/fast", "--out", out).message
    )
    assert not out.exists()
