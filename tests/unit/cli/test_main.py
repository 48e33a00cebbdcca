from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bedplate.cli import main as cli
from bedplate.errors import (
    BedplateError,
    ConfigError,
    JournalBusy,
    JournalError,
    JournalMissing,
    UnknownModel,
)
from tools.repository import ROOT


def run(*arguments: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-m", "bedplate.cli.main", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def run_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int | str | None, str, str]:
    monkeypatch.setattr(sys, "argv", ["bedplate", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_help_lists_every_command_and_imports_none() -> None:
    program = (
        "import json, sys; from bedplate.cli import main as m; sys.argv = ['bedplate', '--help']\n"
        "try: m.main()\n"
        "finally:\n"
        "  names = [n for n in sys.modules if n.startswith('bedplate.')]\n"
        "  print(json.dumps(names), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    present = [n for n in cli.COMMANDS if (ROOT / f"src/bedplate/cli/{n}.py").is_file()]
    assert {"key", "config"} <= set(present)
    assert all(name in result.stdout for name in present)
    imported = json.loads(result.stderr)
    expected = ["bedplate.cli", "bedplate.cli.main", "bedplate.compiled", "bedplate.errors"]
    assert sorted(imported) == expected


def test_python_without_assertions_is_refused() -> None:
    result = run("config", "check", flags=("-O",))
    assert result.returncode == 2
    assert "refuses to run with assertions off" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("no port"), 2),
        (UnknownModel("no model m"), 2),
        (JournalError("no disk"), 1),
        (JournalMissing("no journal"), 2),
        (JournalBusy("in use"), 2),
        (BedplateError("odd"), 1),
    ],
)
def test_an_error_is_one_line_and_a_status(
    capsys: pytest.CaptureFixture[str], error: BedplateError, status: int
) -> None:
    assert cli.report(error, as_json=False) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"bedplate: {error.message}\n"
    assert cli.report(error, as_json=True) == status
    document = json.loads(capsys.readouterr().out)
    assert document == {"error": {"code": error.code, "message": error.message}}


def test_an_error_of_a_command_ends_the_process_with_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run_here(monkeypatch, capsys, "config", "check", "/none.toml")
    assert (status, out) == (2, "")
    assert err == "bedplate: /none.toml: cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    "command",
    [
        ["bill"],
        ["audit", "verify"],
        ["audit", "checkpoint"],
        ["audit", "proof", "0"],
        ["audit", "erase", "--session", "s"],
        ["replay"],
    ],
)
def test_a_missing_journal_is_for_the_user_to_mend(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: list[str],
) -> None:
    monkeypatch.delenv("BEDPLATE_CONFIG", raising=False)
    status, out, err = run_here(monkeypatch, capsys, *command, "--data-dir", str(tmp_path))
    assert (status, out) == (2, "")
    assert err.startswith(f"bedplate: there is no journal at {tmp_path}")
    assert all(word in err for word in ("bedplate serve", "--data-dir", "--config"))


def test_an_unknown_command_names_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run_here(monkeypatch, capsys, "explode")
    assert status == 2
    assert "explode" in err


def test_version() -> None:
    from importlib.metadata import version

    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"bedplate {version('bedplate')}\n")


def plugged(monkeypatch: pytest.MonkeyPatch, **members: object) -> typer.Typer:
    module = ModuleType("bedplate.cli.sample", '"""Does a sample."""')
    module.__file__ = cli.__file__
    for name, member in members.items():
        setattr(module, name, member)
    monkeypatch.setitem(sys.modules, "bedplate.cli.sample", module)
    root = typer.Typer(add_completion=False)
    root.callback()(lambda: None)
    cli._plug_in(root, "sample")
    return root


def sample_app(*names: str, callback: bool = False) -> typer.Typer:
    app = typer.Typer()
    for name in names:
        app.command(name)(lambda name=name: typer.echo(f"ran {name}"))
    if callback:
        app.callback()(lambda: None)
    return app


def test_a_file_with_one_command_is_that_command(monkeypatch: pytest.MonkeyPatch) -> None:
    root = plugged(monkeypatch, app=sample_app("only"))
    assert CliRunner().invoke(root, ["sample"]).output == "ran only\n"


def test_a_file_with_several_commands_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    root = plugged(monkeypatch, app=sample_app("one", "two"))
    assert CliRunner().invoke(root, ["sample", "two"]).output == "ran two\n"


def test_a_group_of_one_needs_a_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    root = plugged(monkeypatch, app=sample_app("verify", callback=True))
    assert CliRunner().invoke(root, ["sample", "verify"]).output == "ran verify\n"


def test_a_file_may_register_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(root: typer.Typer, name: str) -> None:
        root.command(name)(lambda: typer.echo("registered"))

    root = plugged(monkeypatch, register=register)
    assert CliRunner().invoke(root, ["sample"]).output == "registered\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_plugs_in_and_takes_json(name: str) -> None:
    assert Path(cli.__file__).with_name(f"{name}.py").is_file()
    group: Any = getattr(import_module(f"bedplate.cli.{name}"), "app", None)
    subs = [[c.name or str(c.callback.__name__)] for c in group.registered_commands if c.callback]
    if len(subs) == 1 and group.registered_callback is None:
        subs = [[]]
    for sub in subs:
        result = CliRunner().invoke(cli.application([name]), [name, *sub, "--help"])
        assert result.exit_code == 0, result.output
        assert "--json" in result.output, [name, *sub]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_gives_flags_no_type_and_arguments_no_braces(name: str) -> None:
    group: Any = import_module(f"bedplate.cli.{name}").app
    names = [[c.name or str(c.callback.__name__)] for c in group.registered_commands if c.callback]
    for sub in [[]] if len(names) == 1 else [[], *names]:
        helped = CliRunner().invoke(cli.application([name]), [name, *sub, "--help"]).output
        assert "<bool>" not in helped, sub
        assert not any(mark in helped for mark in ("{", "[[")), sub
