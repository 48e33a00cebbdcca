"""Save the whole core as JSON values and restore it: same digest, same future.

The records form a graph (a slot knows its branch, the branch its slot), so they are numbered as
they are met and refer to one another by number. The order of dicts is part of the state (rotation,
least recently stored first) and is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from bedplate.core import CORE_VERSION
from bedplate.core.base import SHIPPED, Base
from bedplate.core.costs import Costs, Line
from bedplate.core.group import Group
from bedplate.core.ids import (
    BranchId,
    CardId,
    EntryId,
    ModelId,
    SessionId,
    SlotId,
    TenantId,
    TurnId,
)
from bedplate.core.limits import LanePolicy, Policy, Slice, TenantPolicy, default_policy
from bedplate.core.prefix import Prefix
from bedplate.core.prices import Prices
from bedplate.core.rules import Rules
from bedplate.core.shares import Share
from bedplate.core.state import State
from bedplate.core.states import Branch, Card, Entry, Session, Slot, Tenant, Turn
from bedplate.core.tools import Gaps, Memory

INT_LIMIT = 1 << 63
"""Integers beyond 64 bits (a bucket of a large limit) are written as text."""
_RECORDS = {
    cls.__name__: cls
    for cls in (
        State,
        Tenant,
        Share,
        Session,
        Branch,
        Turn,
        Slot,
        Card,
        Group,
        Entry,
        Prefix,
        Gaps,
        Memory,
        Line,
        Costs,
    )
}
_FIELDS = {
    name: sorted(getattr(cls, "__mypyc_attrs__", None) or cls.__slots__)
    for name, cls in _RECORDS.items()
}
"""Names of each record's fields, of which its compiled form has another list than its slots."""
_FIELDS["State"].remove("rules")  # they are code, not state
_TUPLES = {cls.__name__: cls for cls in (Policy, LanePolicy, TenantPolicy, Slice, Prices)}


def snapshot(base: Base) -> dict[str, Any]:
    """Return the state as JSON values (objects, lists, strings, integers, booleans, null).

    Cost: O(state). Valid for `restore` of the same CORE_VERSION only.
    """
    state = base.state
    within = (state.actions, state.touched, state.moved, state.stirred, state.loose)
    for within_step in within:
        assert not within_step, "a snapshot is taken between steps"
    writer = _Writer()
    writer.number(state)
    return {
        "core_version": CORE_VERSION,
        "seq": base.seq,
        "digest": base.digest.hex(),
        "records": writer.write_all(),
    }


def restore(saved: dict[str, Any], rules: Rules = SHIPPED) -> Base:
    """Rebuild a core from `snapshot`'s value.

    Raises:
        ValueError: the snapshot is of another core, by version or by the fields of its records.
    """
    if saved.get("core_version") != CORE_VERSION:
        raise ValueError(
            f"snapshot of core version {saved.get('core_version')}, this is {CORE_VERSION}"
        )
    records = saved["records"]
    blank = _blanks(rules)
    made: list[Any] = []
    for name, _ in records:
        if name not in blank:
            raise ValueError(f"the snapshot holds a {name}, which this core does not have")
        made.append(blank[name]())
    for record, (name, fields) in zip(made, records, strict=True):
        if sorted(fields) != _FIELDS[name]:
            raise ValueError(f"a {name} of the snapshot has other fields than this core's")
        for field, value in fields.items():
            setattr(record, field, _read(value, made))
    base = Base(rules)
    base.state = made[0]
    base.seq = saved["seq"]
    base.digest = bytes.fromhex(saved["digest"])
    return base


def _blanks(rules: Rules) -> dict[str, Callable[[], Any]]:
    """Return what makes a record of each kind; all its fields are then overwritten."""
    group = Group(ModelId(""), 1)
    card = Card(CardId(""), 0, group)
    tenant = Tenant(TenantId(""), default_policy().default_tenant, 0)
    session = Session(SessionId(""), tenant, group, 0, 0)
    share = Share(tenant, group)
    branch = Branch(BranchId(0), session, share, 0)
    return {
        "State": lambda: State(rules),
        "Group": lambda: Group(ModelId(""), 1),
        "Card": lambda: Card(CardId(""), 0, group),
        "Slot": lambda: Slot(SlotId(0), card),
        "Tenant": lambda: Tenant(TenantId(""), tenant.policy, 0),
        "Session": lambda: Session(SessionId(""), tenant, group, 0, 0),
        "Share": lambda: Share(tenant, group),
        "Branch": lambda: Branch(BranchId(0), session, share, 0),
        "Turn": lambda: Turn(TurnId(""), branch, 0, 0),
        "Entry": lambda: Entry(EntryId(0), branch, 0, 0),
        "Prefix": lambda: Prefix("", ModelId(""), 0),
        "Gaps": Gaps,
        "Memory": lambda: Memory(0),
        "Line": Line,
        "Costs": Costs,
    }


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
            kind = type(record).__name__
            fields = {name: self.write(getattr(record, name)) for name in _FIELDS[kind]}
            written.append([kind, fields])
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
