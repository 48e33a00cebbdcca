"""Save the whole core as JSON values and restore it: same digest, same future.

The records form a graph (a slot knows its branch, the branch its slot), so they are numbered as
they are met and refer to one another by number. The order of dicts is part of the state (rotation,
least recently stored first) and is kept.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from bedplate.core import CORE_VERSION
from bedplate.core.base import Base
from bedplate.core.limits import LanePolicy, Policy, TenantPolicy
from bedplate.core.state import State
from bedplate.core.states import Branch, Card, Entry, Group, Session, Slot, Tenant, Turn

INT_LIMIT = 1 << 63
"""Integers beyond 64 bits (a bucket of a large limit) are written as text."""
_RECORDS = {
    cls.__name__: cls for cls in (State, Tenant, Session, Branch, Turn, Slot, Card, Group, Entry)
}
_TUPLES = {cls.__name__: cls for cls in (Policy, LanePolicy, TenantPolicy)}


def snapshot(base: Base) -> dict[str, Any]:
    """Return the state as JSON values (objects, lists, strings, integers, booleans, null).

    Cost: O(state). Valid for `restore` of the same CORE_VERSION only.
    """
    state = base.state
    for within_step in (state.actions, state.touched, state.stirred, state.loose):
        assert not within_step, "a snapshot is taken between steps"
    writer = _Writer()
    writer.number(state)
    return {
        "core_version": CORE_VERSION,
        "seq": base.seq,
        "digest": base.digest.hex(),
        "records": writer.write_all(),
    }


def restore(saved: dict[str, Any]) -> Base:
    """Rebuild a core from `snapshot`'s value.

    Raises:
        ValueError: the snapshot is of another core, by version or by the fields of its records.
    """
    if saved.get("core_version") != CORE_VERSION:
        raise ValueError(
            f"snapshot of core version {saved.get('core_version')}, this is {CORE_VERSION}"
        )
    records = saved["records"]
    made: list[Any] = []
    for name, _ in records:
        cls = _RECORDS.get(name)
        if cls is None:
            raise ValueError(f"the snapshot holds a {name}, which this core does not have")
        made.append(cls.__new__(cls))
    for record, (name, fields) in zip(made, records, strict=True):
        if fields.keys() != set(_RECORDS[name].__slots__):
            raise ValueError(f"a {name} of the snapshot has other fields than this core's")
        for field, value in fields.items():
            setattr(record, field, _read(value, made))
    base = Base()
    base.state = made[0]
    base.seq = saved["seq"]
    base.digest = bytes.fromhex(saved["digest"])
    return base


class _Writer:
    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.records: list[Any] = []

    def number(self, record: Any) -> int:
        """Return the record's number, given on first sight."""
        known = self.numbers.get(id(record))
        if known is None:
            known = self.numbers[id(record)] = len(self.records)
            self.records.append(record)
        return known

    def write_all(self) -> list[Any]:
        """Write every record; writing one may number more, until none is left."""
        written: list[Any] = []
        while len(written) < len(self.records):
            record = self.records[len(written)]
            cls = type(record)
            fields = {name: self.write(getattr(record, name)) for name in cls.__slots__}
            written.append([cls.__name__, fields])
        return written

    def write(self, value: Any) -> Any:
        if isinstance(value, int) and not -INT_LIMIT <= value < INT_LIMIT:
            return ["i", str(value)]
        if value is None or isinstance(value, (int, str)):
            return value
        name = type(value).__name__
        if name in _RECORDS:
            return ["r", self.number(value)]
        if name in _TUPLES:
            return [name, [self.write(item) for item in value]]
        if isinstance(value, dict):
            return ["d", [[self.write(k), self.write(v)] for k, v in value.items()]]
        kinds: dict[type[Any], str] = {tuple: "t", list: "l", deque: "q"}
        return [kinds[type(value)], [self.write(item) for item in value]]


def _read(value: Any, made: list[Any]) -> Any:
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "r":
        return made[content]
    if kind == "i":
        return int(content)
    if kind == "d":
        return {_read(k, made): _read(v, made) for k, v in content}
    items = [_read(item, made) for item in content]
    if kind == "l":
        return items
    if kind == "t":
        return tuple(items)
    if kind == "q":
        return deque(items)
    return _TUPLES[kind](*items)
