"""One encoding of events and actions: plain JSON values, for journal, snapshot and digest.

`body_of` gives field names (what the journal stores); `event_from` is its inverse and refuses
anything that is not exactly an event of today's form. Booleans become 0 and 1, as the journal's
canonical form holds integers and strings only. `digest_bytes` gives the compact positional form.
"""

from __future__ import annotations

import typing
from typing import Any, NamedTuple, NewType, TypeVar

from bedplate.core import events as _events
from bedplate.core.actions import Action
from bedplate.core.events import Event

_Part = TypeVar("_Part")
EVENT_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in typing.get_args(_events.Event)}
"""Event classes by the name that the journal stores as `kind`."""


def body_of(value: Any) -> dict[str, Any]:
    """Return an event's or action's fields as JSON values, nested tuples as objects or lists.

    Cost: about a microsecond and a half.
    """
    shape = _shape(type(value))
    body = dict(zip(shape.names, value, strict=True))
    for name in shape.folded:
        body[name] = _plain(body[name])
    return body


def event_from(kind: str, body: dict[str, Any]) -> Event:
    """Rebuild an event from its kind and body.

    Raises:
        ValueError: unknown kind, a missing or extra field, or a value of the wrong type.
    """
    cls = EVENT_TYPES.get(kind)
    if cls is None:
        raise ValueError(f"unknown event kind {kind!r}")
    event: Event = _rebuild(cls, body)
    return event


def part_from(cls: type[_Part], body: Any) -> _Part:
    """Rebuild a value that stands inside an event, as `event_from` does a whole one.

    Raises:
        ValueError: a missing or extra field, or a value of the wrong type.
    """
    part: _Part = _rebuild(cls, body)
    return part


def digest_bytes(now_ns: int, event: Event, actions: tuple[Action, ...]) -> bytes:
    """Return the bytes that one step adds to the digest chain.

    The step as one flat list in Python's ASCII notation: every class has a fixed number of fields
    and every class name stands before its fields, so no two steps give the same bytes.

    Cost: a microsecond or two.
    """
    flat: list[Any] = [now_ns, type(event).__name__, *event]
    for action in actions:
        flat.append(type(action).__name__)
        flat.extend(action)
    return ascii(flat).encode("ascii")


class _Shape(NamedTuple):
    """How one class is written: its fields in order, and those that are no integer or string."""

    names: tuple[str, ...]
    plain: tuple[type, ...]
    hints: tuple[Any, ...]
    folded: tuple[str, ...]


_SHAPES: dict[type[Any], _Shape] = {}
"""Shapes of the classes met so far; they never change."""


def _shape(cls: type[Any]) -> _Shape:
    known = _SHAPES.get(cls)
    if known is not None:
        return known
    hints = {name: _bare(hint) for name, hint in typing.get_type_hints(cls).items()}
    plain = tuple(hint if hint in (int, str) else type(None) for hint in hints.values())
    folded = tuple(name for name, hint in hints.items() if hint not in (int, str))
    _SHAPES[cls] = _Shape(tuple(hints), plain, tuple(hints.values()), folded)
    return _SHAPES[cls]


def _bare(hint: Any) -> Any:
    return hint.__supertype__ if isinstance(hint, NewType) else hint


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return body_of(value)
        return [_plain(item) for item in value]
    return value


def _rebuild(cls: type[Any], body: Any) -> Any:
    shape = _shape(cls)
    if not isinstance(body, dict) or len(body) != len(shape.names):
        raise ValueError(f"{cls.__name__} needs exactly the fields {sorted(shape.names)}")
    values = []
    for name, plain, hint in zip(shape.names, shape.plain, shape.hints, strict=True):
        if name not in body:
            raise ValueError(f"{cls.__name__} needs the field {name!r}")
        value = body[name]
        values.append(value if type(value) is plain else _build(hint, value))
    return cls(*values)


def _build(hint: Any, value: Any) -> Any:
    """Return the value in the form of its hint; the common case was handled before."""
    hint = _bare(hint)
    if hint is bool:
        if type(value) is not int or value not in (0, 1):
            raise ValueError(f"expected 0 or 1, got {value!r}")
        return bool(value)
    if hint in (int, str):
        if type(value) is not hint:
            raise ValueError(f"expected {hint.__name__}, got {value!r}")
        return value
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {value!r}")
        (item_hint, _) = typing.get_args(hint)
        return tuple(_build(item_hint, item) for item in value)
    return _rebuild(hint, value)
