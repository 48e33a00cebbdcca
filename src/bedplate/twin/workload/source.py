"""What the readers share: formats, lines and values that are checked, and errors that say where.

A reader never guesses: a value that is missing, negative, too large or no number ends the reading
with an `InvalidRequest` that names file and line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from bedplate.core.units import SECOND_NS
from bedplate.errors import InvalidRequest
from bedplate.twin.workload.form import Session, Spawn, Workload

LINE_BYTES_MAX = 64 << 20
"""Longest line of a file of lines."""
DOCUMENT_BYTES_MAX = 1 << 30
"""Longest file that is read as one document."""
ROWS_MAX = 10_000_000
"""Rows of one source; a longer one is read in part, with a limit."""
TOKENS_MAX = 1_000_000_000
"""Largest number of tokens that is believed."""
TIME_MAX_S = 1e9
"""Longest time that is believed: some thirty years."""

T = TypeVar("T")
Family = list[Session]
"""One root session and what it spawns; `Spawn.session` counts within the family."""


class Options(NamedTuple):
    """What a reader may be told: the seed of what it draws, and how many root sessions to read."""

    seed: int
    limit: int | None


class Format(NamedTuple):
    """One kind of source.

    `matches` decides on a file's first characters. `read` gets files of this format, in order of
    their names. `starts` is False where the source does not say when sessions begin, and all of
    them stand at 0 until a rate is chosen.
    """

    name: str
    about: str
    matches: Callable[[str], bool]
    read: Callable[[Sequence[Path], Options], Workload]
    starts: bool


def bad(path: Path, line: int, what: str) -> InvalidRequest:
    """Return the error for a line that cannot be used; line 0 means the file as a whole."""
    where = f"{path}, line {line}" if line else str(path)
    return InvalidRequest(f"{where}: {what}")


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) of a file, empty lines left out.

    Raises:
        InvalidRequest: the file cannot be read, or a line is longer than 64 MiB.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(data) > LINE_BYTES_MAX:
                    raise bad(path, number, f"the line is longer than {LINE_BYTES_MAX >> 20} MiB")
                if number > ROWS_MAX:
                    raise bad(path, number, f"more than {ROWS_MAX:,} lines; split the file")
                if not data.isspace():
                    yield number, data
    except OSError as error:
        raise bad(path, 0, f"cannot be read: {error.strerror}") from error


def decode_lines(path: Path, decoder: msgspec.json.Decoder[T]) -> Iterator[tuple[int, T]]:
    """Yield (line number, decoded line) of a file of JSON lines.

    Raises:
        InvalidRequest: as `lines`, or a line is not what the decoder expects.
    """
    for number, data in lines(path):
        try:
            yield number, decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise bad(path, number, f"{error}; expected one whole JSON object a line") from error


def decode_document(path: Path, decoder: msgspec.json.Decoder[T]) -> T:
    """Return a file that is one JSON document, decoded.

    Raises:
        InvalidRequest: it cannot be read, is over 1 GiB, or is not what the decoder expects.
    """
    try:
        size = path.stat().st_size
        if size > DOCUMENT_BYTES_MAX:
            raise bad(path, 0, f"{size:,} bytes are more than {DOCUMENT_BYTES_MAX >> 20} MiB")
        return decoder.decode(path.read_bytes())
    except OSError as error:
        raise bad(path, 0, f"cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise bad(path, 0, str(error)) from error


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of a CSV file, its header too, empty lines left out.

    Raises:
        InvalidRequest: it cannot be read, is not UTF-8, or has too many rows.
    """
    reader = None
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for row in reader:
                if reader.line_num > ROWS_MAX:
                    raise bad(path, reader.line_num, f"more than {ROWS_MAX:,} rows; split the file")
                if row:
                    yield reader.line_num, row
    except OSError as error:
        raise bad(path, 0, f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise bad(path, 0 if reader is None else reader.line_num + 1, str(error)) from error


def tokens_of(text: str, path: Path, line: int, field: str) -> int:
    """Return a number of tokens.

    Raises:
        InvalidRequest: it is no whole number, negative, or above 10^9.
    """
    try:
        value = int(_plain(text))
    except ValueError as error:
        raise bad(path, line, f"{field} is {text!r}, not a whole number of tokens") from error
    if not 0 <= value <= TOKENS_MAX:
        raise bad(path, line, f"{field} is {value}; tokens lie between 0 and {TOKENS_MAX:,}")
    return value


def seconds_ns(value: float | str, path: Path, line: int, field: str) -> int:
    """Return seconds as nanoseconds.

    Raises:
        InvalidRequest: no number, not finite, negative, or above 10^9 seconds.
    """
    try:
        seconds = float(_plain(value) if isinstance(value, str) else value)
    except ValueError as error:
        raise bad(path, line, f"{field} is {value!r}, not a number of seconds") from error
    if not math.isfinite(seconds) or not 0 <= seconds <= TIME_MAX_S:
        raise bad(path, line, f"{field} is {seconds} s; it lies between 0 and {TIME_MAX_S:.0e}")
    return round(seconds * SECOND_NS)


def _plain(text: str) -> str:
    """Return the text of a number as files have it; Python reads `1_0` and other digits too.

    Raises:
        ValueError: it is not.
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def assemble(name: str, source: str, families: Iterable[Family]) -> Workload:
    """Return families as one workload: sorted by their roots' starts, the first one at 0.

    Families that start together keep their order.

    Raises:
        InvalidRequest: the last one begins more than 10^9 seconds after the first.
    """
    ordered = sorted((family for family in families if family), key=lambda one: one[0].start_ns)
    first_ns = ordered[0][0].start_ns if ordered else 0
    span_s = (ordered[-1][0].start_ns - first_ns) / SECOND_NS if ordered else 0.0
    if span_s > TIME_MAX_S:
        raise InvalidRequest(
            f"workload {name}: session {ordered[-1][0].key} begins {span_s:g} s after the first; "
            f"at most {TIME_MAX_S:g} s are believed"
        )
    sessions: list[Session] = []
    for family in ordered:
        base = len(sessions)
        for session in family:
            spawn = session.spawn
            if spawn is None:
                sessions.append(session._replace(start_ns=session.start_ns - first_ns))
            else:
                moved = Spawn(spawn.session + base, spawn.turn, spawn.joins)
                sessions.append(session._replace(spawn=moved))
    return Workload(name, source, tuple(sessions))


def families_of(sessions: Sequence[Session]) -> list[Family]:
    """Return one family for each root, in the order of the roots; undone by `assemble`.

    `Spawn.session` counts within all sessions before, within the family after.
    """
    families: dict[int, Family] = {}
    home: list[tuple[int, int]] = []
    for index, session in enumerate(sessions):
        spawn = session.spawn
        if spawn is None:
            home.append((index, 0))
            families[index] = [session]
        else:
            root, parent = home[spawn.session]
            family = families[root]
            home.append((root, len(family)))
            family.append(session._replace(spawn=Spawn(parent, spawn.turn, spawn.joins)))
    return list(families.values())
