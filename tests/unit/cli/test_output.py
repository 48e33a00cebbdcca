from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bedplate.cli.output import (
    print_json,
    print_notice,
    print_table,
    print_text,
    program,
    progress,
)


def test_results_go_to_stdout_and_notices_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("a result")
    print_notice("a notice")
    assert capsys.readouterr() == ("a result\n", "a notice\n")


def test_json_is_one_document_in_the_order_given(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": 1, "a": ["ü", None]})
    out = capsys.readouterr().out
    assert json.loads(out) == {"b": 1, "a": ["ü", None]}
    assert out.index('"b"') < out.index('"a"')


def test_a_table_in_a_pipe_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    print_table(["name", "count"], [[long, 5], ["[bold]y[/bold]", None]], title="Things")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Things"
    assert any(long in line for line in lines)
    assert any("[bold]y[/bold]" in line for line in lines)


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Verifying records", 10) as done:
        done(5)
    assert capsys.readouterr() == ("", "")


def test_the_program_is_named_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "v" / "bin"
    tools.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert program() == "v/bin/python -m bedplate.cli.main"
    script = tools / "bedplate"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert program() == "v/bin/bedplate"
    monkeypatch.chdir(tools)
    assert program() == "./bedplate"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert program() == str(script)
    monkeypatch.setenv("PATH", str(tools))
    assert program() == "bedplate"
