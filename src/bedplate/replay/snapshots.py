"""Snapshots: a note with the hash of the core's whole state, and the state as content."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from bedplate.core.base import Base
from bedplate.core.snapshot import restore
from bedplate.errors import ChainBroken, ReplayDivergence
from bedplate.journal import Journal, Reader, Record, content_hash
from bedplate.replay.version import core_version


class Start(NamedTuple):
    """Where a replay begins: a core, the first record for it, the last event it has handled."""

    base: Base
    seq: int
    event_seq: int


def begin(journal: Journal | Reader, *, from_start: bool) -> Start:
    """Choose where to begin: at the first event, or (not `from_start`) at the newest snapshot.

    Where another core wrote the first part, the earliest start is what it handed over: a snapshot,
    or nothing, where this version could not read it.

    Raises:
        ReplayDivergence: another core wrote the journal, or the state to begin with was erased.
    """
    started = journal.last("core_started")
    if started is None:
        return Start(Base(), 0, -1)
    if started.body["core"] != core_version():
        raise ReplayDivergence(
            f"core {started.body['core']} wrote this journal and this is core {core_version()}, "
            "which may decide otherwise; replay it with the version of Bedplate that wrote it "
            f"({started.body['bedplate']})"
        )
    changed = journal.last("core_changed")
    note = handed_over(journal) if from_start else journal.last("snapshot")
    if note is not None and changed is not None and note.seq < changed.seq:
        note = handed_over(journal)  # an older one is of a core that handed nothing over
    if note is not None:
        return resume(journal, note)
    return Start(Base(), 0 if changed is None else changed.seq + 1, -1)


def resume(journal: Journal | Reader, note: Record) -> Start:
    """Begin at a snapshot.

    Raises:
        ReplayDivergence: its content was erased.
        ChainBroken: its content was changed.
        ValueError: it is of another version of the core, which this one cannot read.
    """
    base = load_snapshot(journal, note)
    if base is None:
        raise ReplayDivergence(
            f"the state of snapshot {note.seq} was erased; nothing can be recovered from there on"
        )
    return Start(base, note.seq + 1, note.body["event_seq"])


def handed_over(journal: Journal | Reader) -> Record | None:
    """Return the snapshot with which this version of the core took over, None without one."""
    changed = journal.last("core_changed")
    if changed is None or changed.body["snapshot_seq"] < 0:
        return None
    return next(journal.read(changed.body["snapshot_seq"]))


def load_snapshot(journal: Journal | Reader, note: Record) -> Base | None:
    """Return the core as it was at a `snapshot` note, None when its content was erased.

    Raises:
        ChainBroken: the content is not what the note names, or restores to another digest.
        ValueError: it is of another version of the core, which this one cannot read.
    """
    assert note.kind == "snapshot"
    data = journal.content(note.body["content"])
    if data is None:
        return None
    if content_hash(data) != note.body["content"]:
        raise ChainBroken(f"the content of snapshot {note.seq} was changed")
    base = restore(orjson.loads(data))
    if base.digest.hex() != note.body["digest"]:
        raise ChainBroken(f"snapshot {note.seq} restores to another digest than it names")
    return base
