"""Change keys of a scenario from the command line: `cards[0].count=4`.

A key is written as errors write it, with the index of a list in brackets; what follows the first
`=` is a TOML value. The changed file is then checked as any other, so an unknown key names the
nearest one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bedplate.errors import ConfigError

_PART = re.compile(r"([A-Za-z0-9_-]+)((?:\[\d+\])*)")
_Table = dict[str, Any]


class Change(NamedTuple):
    """One value for one key. `path` holds names and indices."""

    text: str
    path: tuple[str | int, ...]
    value: object


def parse(text: str) -> Change:
    """Read `KEY=VALUE`.

    Raises:
        ConfigError: there is no key, or no TOML value.
    """
    key, equals, value = text.partition("=")
    path = tuple(_path(key.strip()))
    if not equals or not path:
        raise ConfigError(f"--set {text}: write KEY=VALUE, such as --set cards[0].count=4")
    try:
        found = tomllib.loads(f"value = {value.strip()}")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_no_value(text, key, value)) from error
    if set(found) != {"value"}:  # a line break, and more behind it
        raise ConfigError(_no_value(text, key, value))
    return Change(text, path, found["value"])


def _no_value(text: str, key: str, value: str) -> str:
    return (
        f"--set {text}: {value!r} is no TOML value; a text stands in quotes, which a shell "
        f"takes away: --set '{key}=\"{value.strip()}\"'"
    )


def apply(raw: _Table, changes: Sequence[str]) -> frozenset[str]:
    """Put changes into what a file holds; return the key paths that come from them.

    An index may be the next one of its list: that appends.

    Raises:
        ConfigError: a change cannot be read, or its key goes through something that is no table.
    """
    set_paths: set[str] = set()
    for change in map(parse, changes):
        set_paths.update(_put(raw, change))
        set_paths.update(_leaves(_shown(change.path), change.value))
    return frozenset(set_paths)


def _path(key: str) -> Iterator[str | int]:
    """Yield names and indices of a key; nothing of one that cannot be."""
    matches = [_PART.fullmatch(part) for part in key.split(".")]
    for match in matches if all(matches) else ():
        assert match is not None
        yield match[1]
        yield from (int(index) for index in re.findall(r"\d+", match[2]))


def _put(raw: _Table, change: Change) -> list[str]:
    """Put the value in; return the paths of the tables and lists that it needed and were new."""
    at: Any = raw
    fresh_paths = []
    for number, part in enumerate(change.path):
        where, last = change.path[:number], number == len(change.path) - 1
        if isinstance(part, str):
            if not isinstance(at, dict):
                raise ConfigError(f"--set {change.text}: {_no_table(_shown(where), at)}")
            fresh: object = [] if not last and isinstance(change.path[number + 1], int) else {}
            if part not in at:
                fresh_paths.append(_shown((*where, part)))
            if last:
                at[part] = change.value
            at = at.setdefault(part, fresh)
            continue
        if not isinstance(at, list):
            raise ConfigError(f"--set {change.text}: {_shown(where)} is no list")
        if part > len(at):
            raise ConfigError(
                f"--set {change.text}: {_shown(where)} has {len(at)}, counted from 0; the next to "
                f"add is {_shown((*where, len(at)))}"
            )
        if part == len(at):
            fresh_paths.append(_shown((*where, part)))
            at.append({})
        if last:
            at[part] = change.value
        at = at[part]
    return fresh_paths


def _no_table(where: str, found: object) -> str:
    if isinstance(found, list):
        return f"{where} is a list of {len(found)}; say which: {where}[0]"
    return f"{where} is {found!r}, which has no keys"


def _shown(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _leaves(path: str, value: object) -> Iterator[str]:
    """Yield a path, and those of everything in it."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}", inner)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _leaves(f"{path}[{at}]", inner)
