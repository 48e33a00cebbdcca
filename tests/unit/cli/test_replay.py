from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bedplate.cli.main import application
from bedplate.journal import Journal, Reader
from bedplate.replay import replay
from tests.unit.replay.test_replay import written


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(application(arguments), list(arguments))
    return result.exit_code, result.stdout


@pytest.fixture
def data(tmp_path: Path) -> Path:
    written(tmp_path / "journal")
    return tmp_path


def test_json_names_both_digests(data: Path) -> None:
    status, out = run("replay", "--data-dir", str(data), "--json")
    found = json.loads(out)
    assert status == 0
    assert found["same"] is True
    assert found["digest_live"] == found["digest_replay"]
    assert found["events"] == 32


def test_a_journal_without_a_snapshot_is_replayed_from_its_start_and_it_says_so(data: Path) -> None:
    arguments = ["replay", "--data-dir", str(data), "--from-snapshot", "--json"]
    result = CliRunner().invoke(application(arguments), arguments)
    assert json.loads(result.stdout)["start_seq"] == 0
    assert result.stderr == "There is no snapshot yet: replayed from the first record.\n"


def test_text_says_so_in_words(data: Path) -> None:
    status, out = run("replay", "--data-dir", str(data))
    assert status == 0
    assert out.splitlines()[-1] == "every decision came out the same"


def test_a_difference_ends_with_status_1(data: Path) -> None:
    with Journal.open(data / "journal", origin="test") as journal:
        last = list(journal.read(kinds=("usage",)))[-1]
        journal.append([last._replace(seq=journal.next_seq, time_ns=journal.last_time_ns)])
    status, out = run("replay", "--data-dir", str(data), "--json")
    assert status == 1
    assert json.loads(out)["same"] is False


def test_skip_writes_a_note_that_replay_honours(data: Path) -> None:
    with Reader(data / "journal") as reader:
        seq = next(reader.read(kinds=("TurnStarted",))).seq
    status, out = run("replay", "--data-dir", str(data), "--skip", str(seq), "--json")
    assert (status, json.loads(out)["skipped"]) == (0, seq)
    with Reader(data / "journal") as reader:
        assert replay(reader).skipped == (seq,)


@pytest.mark.parametrize("seq", ["0", "99999"])
def test_skip_takes_events_only(data: Path, seq: str) -> None:
    result = CliRunner().invoke(
        application(["replay"]), ["replay", "--data-dir", str(data), "--skip", seq]
    )
    assert result.exit_code != 0
    assert "is no event" in str(result.exception)
