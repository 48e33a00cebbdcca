"""One encoding of events and actions: plain JSON values, for journal, snapshot and digest.

`body_of` gives field names (what the journal stores); `event_from` is its inverse and refuses
anything that is not exactly an event of today's form. Booleans become 0 and 1, as the journal's
canonical form holds integers and strings only. `digest_bytes` gives the compact positional form.
"""

from __future__ import annotations

import json
import types
import typing
from typing import Any, NewType

from bedplate.core import events as _events
from bedplate.core.actions import Action
from bedplate.core.events import Event

EVENT_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in typing.get_args(_events.Event)}
"""Event classes by the name that the journal stores as `kind`."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, check_circular=False).encode


def body_of(value: Any) -> dict[str, Any]:
    """Return an event's or action's fields as JSON values, nested tuples as objects or lists."""
    return {name: _plain(item) for name, item in zip(value._fields, value, strict=True)}


def event_from(kind: str, body: dict[str, Any]) -> Event:
    """Rebuild an event from its kind and body.

    Raises:
        ValueError: unknown kind, a missing or extra field, or a value of the wrong type.
    """
    cls = EVENT_TYPES.get(kind)
    if cls is None:
        raise ValueError(f"unknown event kind {kind!r}")
    event: Event = _build(cls, body)
    return event


def digest_bytes(now_ns: int, event: Event, actions: tuple[Action, ...]) -> bytes:
    """Return the bytes that one step adds to the digest chain. Cost: a few microseconds."""
    text = _encode([now_ns, type(event).__name__, event, [[type(a).__name__, a] for a in actions]])
    return text.encode("ascii")


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return body_of(value)
        return [_plain(item) for item in value]
    return value


def _build(hint: Any, value: Any) -> Any:
    if isinstance(hint, NewType):
        hint = hint.__supertype__
    if hint is bool:
        if value not in (0, 1):
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
    if isinstance(hint, types.UnionType):
        raise ValueError(f"no encoding for {hint!r}")
    hints = typing.get_type_hints(hint)
    if not isinstance(value, dict) or value.keys() != hints.keys():
        raise ValueError(f"{hint.__name__} needs exactly the fields {sorted(hints)}")
    return hint(**{name: _build(item, value[name]) for name, item in hints.items()})
