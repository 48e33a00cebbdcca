"""What commands print: tables and text for people, one JSON document for programs.

Results go to stdout, everything else (progress, warnings, errors) to stderr, so that `--json`
output can always be piped.
"""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from bedplate.config.load import config_file

USUAL_FILE = "bedplate.toml"
"""How configuration files are called in the documents; none is read without being named."""
_PIPE_WIDTH = 10_000
"""Width where stdout is no terminal: nothing is wrapped or cut, so that tools can read it."""


def program() -> str:
    """Return how to call this program from where it was called: a name, or a path to it."""
    script = Path(sys.executable).with_name("bedplate")
    found = shutil.which("bedplate")
    if found is not None and Path(found).absolute() == script.absolute():
        return "bedplate"
    if not script.is_file():
        return f"{_short(Path(sys.executable))} -m bedplate.cli.main"
    return _short(script)


def options_again(file: Path | None, data_dir: Path | None) -> str:
    """Return the options that a command was given, for a command that its user shall type next."""
    given = (("--config", file), ("--data-dir", data_dir))
    return "".join(f" {name} {shlex.quote(str(path))}" for name, path in given if path is not None)


def source_of(file: Path | None) -> str:
    """Say what configuration a command reads, and what lies there unread."""
    path = config_file(file)
    if path is not None:
        return f"configuration {path}"
    unread = Path(USUAL_FILE)
    if unread.is_file():
        return f"no configuration file, so the defaults; {unread} is read with --config {unread}"
    return "no configuration file, so the defaults"


def _short(path: Path) -> str:
    here = Path.cwd()
    if path.parent == here:
        return f"./{path.name}"
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: `1 card`, `2 cards`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def written(what: str, path: Path, *, replaced: bool) -> str:
    """Return the words for a file that was written, over one that was there or not."""
    return f"{what} written to {path}" + (", over the file that was there" if replaced else "")


def print_json(document: object) -> None:
    """Print one JSON document, indented, with its keys in the order given."""
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")


def print_text(text: str) -> None:
    """Print lines for people on stdout, as they are."""
    sys.stdout.write(text + "\n")


def print_notice(text: str) -> None:
    """Print a line that is no result: a warning, a hint, an error."""
    sys.stderr.write(text + "\n")


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    numbers: Sequence[str] = (),
) -> None:
    """Print a table; numbers are aligned right and never cut, texts are folded where it is narrow.

    Args:
        columns: Titles.
        rows: Cells of each row, as many as there are columns.
        title: A line above.
        numbers: Titles of the columns that hold numbers as texts. Those whose cells are all
            numbers are found without it.
    """
    if title:
        print_text(title)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, column in enumerate(columns):
        counts = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        right = counts or column in numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=right)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=_PIPE_WIDTH)
    else:
        # Rich cuts off digits where a terminal is too narrow for them; the terminal breaks the line
        # instead, and all of them are there.
        unbound = console.options.update(max_width=_PIPE_WIDTH)
        least = Measurement.get(console, unbound, table).minimum
        console = Console(file=sys.stdout, width=max(console.width, least))
    console.print(table, crop=False)


def amount(micro: int) -> str:
    """Return micro-currency as currency units, exactly: all six digits of a millionth."""
    return f"{micro // 1_000_000}.{micro % 1_000_000:06d}"


def digits(value: float) -> str:
    """Return a number with three digits that count, at most five of them behind the point.

    From 100 on it is a whole number: 0.0268, 1.70, 12.7, 1,085.
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value):
        return f"{int(value):,}"
    places = min(5, max(0, 2 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{places}f}"


def print_wrapped(text: str, *, hang: int, columns: int = 80) -> None:
    """Print one paragraph in lines of at most `columns`, all but the first moved in by `hang`."""
    print_text(
        textwrap.fill(
            text,
            columns,
            subsequent_indent=" " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while the body runs; yield a function that takes what is done so far.

    Args:
        label: What is going on, in the present ("Verifying records").
        total: Where the bar is full; None shows a bar without an end.

    It disappears at the end, and is not shown at all where stderr is no terminal.
    """
    console = Console(stderr=True)
    ends = (MofNCompleteColumn(), TimeRemainingColumn()) if total is not None else ()
    columns = (TextColumn("{task.description}"), BarColumn(), *ends, TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
