"""Say what is wrong with a configuration: file, whole key path, nearest valid key."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from bedplate.config.fields import PATTERN_TEXT
from bedplate.config.tree import Config, Section

COMMAND_LINE = "command line"


class Sources(NamedTuple):
    """Where values came from: the file, and the key paths that the command line has set."""

    file: str
    options: frozenset[str] = frozenset()

    def of(self, path: str) -> str:
        """Return what to blame for the value at a key path."""
        return COMMAND_LINE if path in self.options else self.file


class Key(NamedTuple):
    """One key of the tree.

    `path` has a dot between parts and, for engines, their kind: `engine.llamacpp.slots`.
    """

    path: str
    field: FieldInfo
    section: type[Section]


def keys(section: type[Section] = Config, prefix: str = "") -> Iterator[Key]:
    """Yield every key that can hold a value, in the order of the tree."""
    for name, field in section.model_fields.items():
        path = prefix + (field.alias or name)
        inner = list(sections_of(field.annotation))
        for part in inner:
            kind = _kind(part) if len(inner) > 1 else None
            yield from keys(part, f"{path}.{kind}." if kind else f"{path}.")
        if not inner:
            yield Key(path, field, section)


def sections_of(annotation: Any) -> Iterator[type[Section]]:
    """Yield the sections that a field of this type holds: of a tuple, union or plain section."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from sections_of(get_args(annotation)[0])
    elif get_origin(annotation) in (tuple, Union, types.UnionType):
        for part in get_args(annotation):
            yield from sections_of(part)


def explain(error: ValidationError, sources: Sources, root: type[Section] = Config) -> str:
    """Return one line for each fault of a tree, the file or the command line first."""
    lines = []
    for detail in error.errors(include_url=False):
        shown = _shown(_without_kind(detail["loc"], root))
        lines.append(f"{sources.of(shown)}: {_line(detail, shown, root)}")
    return "\n".join(lines)


def _line(detail: Mapping[str, Any], shown: str, root: type[Section]) -> str:
    if detail["type"] == "extra_forbidden":
        return f'unknown key "{shown}"; the nearest is "{_nearest(detail["loc"], root)}"'
    message = detail["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if detail["type"] == "missing":
        message = "is missing"
    elif detail["type"] == "tuple_type" and isinstance(detail["input"], dict):
        message = f"there may be several: write [[{shown}]], with two brackets"
    elif detail["type"] in ("union_tag_not_found", "union_tag_invalid"):
        shown += ".kind"
        *others, last = [f'"{kind}"' for kind in _kinds(root)[detail["loc"][0]]]
        message = f"must be {', '.join(others)} or {last}"
    elif detail["type"] == "string_pattern_mismatch":
        message = f"must be {PATTERN_TEXT[detail['ctx']['pattern']]}, not {detail['input']!r}"
    elif isinstance(detail["input"], str | int | float) and not message.startswith('"'):
        message += f", not {detail['input']!r}"
    return f"{shown}: {message}" if shown else message


def _kinds(root: type[Section]) -> dict[int | str, list[str]]:
    """Return the kinds of each key of the tree's top that holds one of several sections."""
    found: dict[int | str, list[str]] = {}
    for name, field in root.model_fields.items():
        kinds = [kind for part in sections_of(field.annotation) if (kind := _kind(part))]
        if len(kinds) > 1:
            found[field.alias or name] = kinds
    return found


def _without_kind(location: tuple[int | str, ...], root: type[Section]) -> tuple[int | str, ...]:
    """Drop the kind of an engine and the like, which pydantic puts after the index."""
    if len(location) > 2 and location[0] in _kinds(root):
        return (*location[:2], *location[3:])
    return location


def _shown(location: tuple[int | str, ...]) -> str:
    shown = ""
    for part in location:
        shown += f"[{part}]" if isinstance(part, int) else f".{part}" if shown else part
    return shown


def _nearest(location: tuple[int | str, ...], root: type[Section]) -> str:
    """Return the key that was most likely meant: beside the unknown one, else anywhere."""
    parts = [part for part in location if isinstance(part, str)]
    parent, name = ".".join(parts[:-1]), parts[-1]
    paths = [key.path for key in keys(root)]
    depth = len(parts)
    beside = {
        path.split(".")[depth - 1]: ".".join(path.split(".")[:depth])
        for path in paths
        if not parent or path.startswith(f"{parent}.")
    }
    close = difflib.get_close_matches(name, beside, n=1, cutoff=0.6)
    if close:
        return _plain(beside[close[0]], root)
    anywhere = [path for path in paths if path.rsplit(".", 1)[-1] == name]
    if anywhere:
        return _plain(anywhere[0], root)
    return _plain(beside[difflib.get_close_matches(name, beside, n=1, cutoff=0.0)[0]], root)


def _plain(path: str, root: type[Section]) -> str:
    """Return a key path as it stands in a file: without the kind."""
    top, _, rest = path.partition(".")
    kind, _, key = rest.partition(".")
    return f"{top}.{key}" if key and kind in _kinds(root).get(top, ()) else path


def _kind(section: type[Section]) -> str | None:
    field = section.model_fields.get("kind")
    return None if field is None else str(get_args(field.annotation)[0])
