from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from bedplate.cli.output import (
    digits,
    print_json,
    print_notice,
    print_table,
    print_text,
    print_wrapped,
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


def test_numbers_are_never_cut_in_a_narrow_terminal() -> None:
    """In a terminal of 40 columns: texts are folded, of numbers each digit is there."""
    code = (
        "from bedplate.cli.output import print_table\n"
        "cells = ['a text of several words that has to be folded', *['1,234.5678'] * 4]\n"
        "print_table(['what', 'a', 'b', 'c', 'd'], [cells], numbers=['a', 'b', 'c', 'd'])\n"
    )
    text = in_terminal([sys.executable, "-c", code], columns=40)
    assert "…" not in text
    assert text.count("1,234.5678") == 4
    assert len(text.splitlines()) > 5


def in_terminal(command: list[str], *, columns: int) -> str:
    """Run a command in a terminal so wide; return what it shows."""
    main, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, columns))
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    done = subprocess.run(
        command, stdin=inner, stdout=inner, env={**env, "TERM": "xterm"}, check=True, timeout=60
    )
    assert done.returncode == 0
    os.close(inner)
    found = b""
    with contextlib.suppress(OSError):  # the end of a terminal that nobody writes to
        while chunk := os.read(main, 65_536):
            found += chunk
    os.close(main)
    return found.decode()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (6.0, "6"),
        (0.026844, "0.0268"),
        (1.704, "1.70"),
        (12.73, "12.7"),
        (344.4, "344"),
        (1_085.4, "1,085"),
        (-0.5, "-0.500"),
        (0.0000123, "0.00001"),
        (float("inf"), "inf"),
    ],
)
def test_three_digits_that_count(value: float, shown: str) -> None:
    assert digits(value) == shown


def test_a_paragraph_is_wrapped_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_wrapped("pool  " + "words " * 10 + "x" * 30, hang=6, columns=30)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("pool  words")
    assert all(line.startswith(" " * 6 + line.strip()[:1]) for line in lines[1:])
    assert lines[-1] == " " * 6 + "x" * 30


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
