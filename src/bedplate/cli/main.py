"""The `bedplate` command.

Each command is one file beside this one, named in `COMMANDS` and imported only when it runs, so
that `bedplate --help` stays fast. A command file `cli/NAME.py` has

- a docstring whose first line is the help text in the list of commands, and
- either `app`, a `typer.Typer`: with one `@app.command()` and no callback it is a plain command
  (`bedplate NAME`), else a group (`bedplate NAME SUB`; a group of one needs an `@app.callback()`);
- or `register(root, name)`, which adds the command to the root application itself.

Every command takes `--json` (`options.JsonOption`) and then prints exactly one JSON document on
stdout (`output.print_json`). Commands raise `BedplateError` and let it pass: here it becomes one
message on stderr and exit status 2 where the user can mend it (configuration, arguments, a journal
that is not there or in use), else 1; with `--json` also `{"error": {"code", "message"}}` on stdout.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from bedplate.errors import (
    BedplateError,
    ConfigError,
    JournalBusy,
    JournalMissing,
    RequestError,
)

COMMANDS = (
    "serve",
    "demo",
    "sessions",
    "key",
    "slice",
    "config",
    "bill",
    "audit",
    "replay",
    "estimate",
    "calibrate",
    "workload",
    "sim",
)
"""Every command, in the order of the help text."""

USER_ERROR = 2
FAILURE = 1
_USER_ERRORS = (ConfigError, RequestError, JournalMissing, JournalBusy)


class Command(TyperCommand):
    """A command whose help gives flags no type, and shows a required argument as it is typed."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the parameters; flags take no value, so they show none."""
        return _flags_without_type(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the parts of the usage line: `KEY_ID` where it is required, `[FILE]` if not."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


class Group(TyperGroup):
    """A group of commands, with help in the same form."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the parameters; flags take no value, so they show none."""
        return _flags_without_type(super().get_params(ctx))


def _flags_without_type(params: list[Any]) -> list[Any]:
    for param in params:
        if isinstance(param, TyperOption) and param.is_bool_flag:
            param.metavar = ""
    return params


def main() -> None:
    """Run the command line of this process; ends with SystemExit."""
    if not __debug__:
        sys.stderr.write(
            "bedplate: refuses to run with assertions off; start it without -O and PYTHONOPTIMIZE\n"
        )
        sys.exit(USER_ERROR)
    arguments = sys.argv[1:]
    try:
        application(arguments)(args=arguments or ["--help"], prog_name="bedplate")
    except BedplateError as error:
        sys.exit(report(error, as_json="--json" in arguments))


def application(arguments: Sequence[str]) -> typer.Typer:
    """Return the application: the command that the arguments name in full, the others as names."""
    root = typer.Typer(
        cls=Group, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True
    )
    root.callback()(_root)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name in COMMANDS:
        spec = find_spec(f"bedplate.cli.{name}")
        if spec is None or spec.origin is None:
            continue
        if name == wanted:
            _plug_in(root, name)
        else:
            root.command(name, help=_first_line(Path(spec.origin)))(_unloaded)
    return root


def report(error: BedplateError, *, as_json: bool) -> int:
    """Print an error and return the exit status."""
    from bedplate.cli.output import print_json, print_notice

    if as_json:
        print_json({"error": {"code": error.code, "message": error.message}})
    print_notice(f"bedplate: {error.message}")
    return USER_ERROR if isinstance(error, _USER_ERRORS) else FAILURE


def _plug_in(root: typer.Typer, name: str) -> None:
    module = import_module(f"bedplate.cli.{name}")
    if hasattr(module, "register"):
        module.register(root, name)
        return
    app: typer.Typer = module.app
    plain = len(app.registered_commands) == 1 and not app.registered_groups
    function = app.registered_commands[0].callback if plain else None
    if function is not None and app.registered_callback is None:
        root.command(name, cls=Command)(function)
    else:
        for command in app.registered_commands:
            command.cls = Command
        root.add_typer(app, cls=Group, name=name, help=_first_line(Path(str(module.__file__))))


def _first_line(path: Path) -> str:
    """Return the first line of a module's docstring without running the module."""
    docstring = ast.get_docstring(ast.parse(path.read_bytes()))
    assert docstring, f"{path} has no docstring"
    return docstring.splitlines()[0]


def _unloaded() -> None:
    raise AssertionError("a command that the arguments do not name is never called")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"bedplate {version('bedplate')}\n")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Serve agent sessions over pooled cards, and look into what was served."""


if __name__ == "__main__":
    main()
