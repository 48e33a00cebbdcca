"""Read a workload from whatever holds one; the format is recognised by content."""

from __future__ import annotations

from pathlib import Path

from bedplate.errors import InvalidRequest
from bedplate.journal.storage import DATABASE_FILE
from bedplate.twin.workload import (
    azure,
    burstgpt,
    claude_code,
    generate,
    lmcache,
    mooncake,
    native,
    recorded,
    servegen,
    tau_bench,
)
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.source import Format, Options, bad
from bedplate.twin.workload.transform import restart, scale_rate, take

FORMATS: tuple[Format, ...] = (
    native.FORMAT,
    recorded.FORMAT,
    generate.FORMAT,
    azure.FORMAT,
    mooncake.FORMAT,
    claude_code.FORMAT,
    lmcache.FORMAT,
    servegen.FORMAT,
    tau_bench.FORMAT,
    burstgpt.FORMAT,
)
"""Every format, in the order in which they are tried."""
STARTS_PER_S = 0.1
"""Sessions begun in a second where neither the source nor the caller says."""
_HEAD_BYTES = 65536
_SHOWN_MAX = 12
"""Most names of a folder that an error lists."""


def read_workload(
    source: str | Path,
    *,
    format: str | None = None,  # noqa: A002
    seed: int = 1,
    limit: int | None = None,
    starts_per_s: float | None = None,
    rate_scale: float = 1.0,
) -> Workload:
    """Read a workload.

    Args:
        source: A file, or a folder of files of one format (a journal is a folder).
        format: Name of a format; None recognises it by content.
        seed: Seed of everything that is drawn: starts, gaps and sizes that the source leaves open.
        limit: Read this many root sessions, the earliest ones, with what they spawn.
        starts_per_s: Draw the starts anew, as a Poisson process of so many root sessions a second.
            Where the source says nothing of starts and this is None: 0.1.
        rate_scale: Then let sessions begin so many times as fast; gaps inside sessions stay.

    Returns:
        A workload as `form` describes it, the first session at 0. The same arguments give the same
        workload in any process.

    Raises:
        InvalidRequest: the source cannot be read, no format fits, or a value cannot be used; the
            message names file and line.
        ConfigError: a mix file has a field that is unknown, missing or out of range.
    """
    path = Path(source)
    if limit is not None and limit < 1:
        raise InvalidRequest(f"the limit is {limit}; read at least one session")
    paths = _files(path)
    found = _named(format) if format is not None else _recognised(path, paths)
    workload = found.read(paths, Options(seed, limit))
    if not workload.sessions:
        raise bad(path, 0, f"holds no session ({found.name})")
    if found is not native.FORMAT:  # which has looked at each line
        try:
            native.check(workload)
        except InvalidRequest as error:
            raise bad(path, 0, error.message) from error
    if limit is not None:
        workload = take(workload, limit)
    if starts_per_s is None and not found.starts:
        starts_per_s = STARTS_PER_S
    if starts_per_s is not None:
        workload = restart(workload, starts_per_s, seed=seed)
    return workload if rate_scale == 1.0 else scale_rate(workload, rate_scale)


def _files(path: Path) -> list[Path]:
    """Return the file, or what is in the folder, by name; hidden files are left out.

    Of a journal's folder, or a data folder with one, only the database counts.
    """
    try:
        if not path.is_dir():
            with path.open("rb"):
                return [path]
        for database in (path / DATABASE_FILE, path / "journal" / DATABASE_FILE):
            if database.is_file():
                return [database]
        files = sorted(
            entry for entry in path.iterdir() if entry.is_file() and entry.name[0] != "."
        )
    except OSError as error:
        raise bad(path, 0, f"cannot be read: {error.strerror}") from error
    if not files:
        raise bad(path, 0, f"is a folder without files{_holds(path)}")
    return files


def _named(name: str) -> Format:
    for known in FORMATS:
        if known.name == name:
            return known
    raise InvalidRequest(
        f"no workload format {name!r}; there are {', '.join(known.name for known in FORMATS)}"
    )


def _recognised(path: Path, paths: list[Path]) -> Format:
    """Return the format that all files have."""
    first = paths[0]
    for known in FORMATS:
        if known.matches(_head(first)):
            for other in paths[1:]:
                if not known.matches(_head(other)):
                    raise bad(other, 0, f"is not of the format {known.name} as {first.name} is")
            return known
    formats = "\n".join(f"  {known.name}: {known.about}" for known in FORMATS)
    if path.is_dir():
        what = f"{first.name} in this folder is of no known workload format{_holds(path)}"
    else:
        what = "is of no known workload format"
    raise bad(path, 0, f"{what}. The formats are:\n{formats}")


def _holds(folder: Path) -> str:
    """Return what a folder has, in words, for whoever meant one of those."""
    found = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
    return f"; the folder has {', '.join(found[:_SHOWN_MAX])}{more}; name one of them"


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise bad(path, 0, f"cannot be read: {error.strerror}") from error
