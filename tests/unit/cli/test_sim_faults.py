"""What a report says of faults, of what had no effect, and of how far off its times are."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from bedplate.cli.main import application
from tests.unit.twin_report.files import SCENARIO, write_scenario


def said(folder: Path, *more: str) -> str:
    words = ["sim", str(write_scenario(folder, SCENARIO + "\n".join(("", *more))))]
    result = CliRunner().invoke(application(words), words)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    return " ".join(result.stdout.split())


def test_a_fault_is_reported_with_what_it_cut(tmp_path: Path) -> None:
    text = said(
        tmp_path,
        "[[fault]]\nkind = 'partition_lost'\nat_seconds = 0.2\npartition = ''",
        "[[fault]]\nkind = 'tool_slow'\nat_seconds = 900\ntool = 'lok'\nfactor = 2.0",
    )
    assert "fault partition_lost at 0.2 s, for good: 1 turn cut, " in text
    assert "fault tool_slow lok at 900 s: the run was over before, nothing came of it" in text
    assert 'note fault[1] slows down the tool "lok", which the load does not have' in text
    assert "binds first cards: " in text
    # Of the four turns three are asked, and of the three sessions none ends.
    assert "turns ended with: 3 refused; 1 never asked, their session was given up" in text


def test_without_faults_there_is_no_word_of_them(tmp_path: Path) -> None:
    text = said(tmp_path)
    for word in ("fault", "note", "never asked", "given up"):
        assert word not in text
    assert "times card, 2 cards: measured; no error is known" in text
    assert "load by hand" in text


def test_sessions_that_ended_stand_beside_their_times(tmp_path: Path) -> None:
    """The gateway is away as the last session begins, for longer than its client is patient."""
    text = said(
        tmp_path,
        "[clients]\ntries = 2",
        "[[fault]]\nkind = 'gateway_restarted'\nat_seconds = 3.5\ndown_seconds = 9",
    )
    assert "session, s, of 50%" in text
    assert "session, s, of 67%" in text
