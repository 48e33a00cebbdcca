"""Verify one run of records: the part of `verify` that a process does on its own.

A run begins at record 0 or at a stored checkpoint, and ends at a stored checkpoint or at the
journal's end:

    0            8,431         16,500      size
    |-- run 0 ----|-- run 1 -----|-- run 2 --|
                  ^ checkpoint   ^ checkpoint

The run before a seam shows that the records up to it have the root that its checkpoint signs. The
run after it takes over the subtree roots stored with that checkpoint, once their root is the signed
one: a tree's size and root leave no choice of them. So a run needs nothing from the run before it,
and all runs together show what one walk over all records would. What only both sides of a seam
tell, the time across it, is for `verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bedplate.errors import ChainBroken, JournalError
from bedplate.journal import checkpoint as notes
from bedplate.journal.checkpoint import Checkpoint
from bedplate.journal.keys import Verifier
from bedplate.journal.record import CITING, Row, cited_hashes, leaf_hashes, record_of, rows_of
from bedplate.journal.storage import PAGE_ROWS, Mark, Storage
from bedplate.journal.tree import Frontier

Citation = tuple[str, str, list[str]]
"""Tenant, session, and the hashes of contents that records of theirs cite."""


class Job(NamedTuple):
    """What all runs of one verification have in common.

    `folder` is as the system spells it. `covered` is the size of the newest checkpoint that counts;
    a writer may have added some since. `external` was kept outside.
    """

    folder: bytes
    origin: str
    key: str
    covered: int
    external: Checkpoint | None
    deep: bool


class Run(NamedTuple):
    """Records `start` up to, not including, `end`."""

    start: int
    end: int


class Signed(NamedTuple):
    """The newest checkpoint of a run: its size, and the time of the last record it covers."""

    size: int
    time_ns: int


class Walked(NamedTuple):
    """A run that holds. `root` is that of all records up to its end; times are 0 in an empty run.

    `checkpoints` counts those above its start, `signed` is the newest of them.
    """

    run: Run
    root: bytes
    first_time_ns: int
    last_time_ns: int
    checkpoints: int
    signed: Signed | None


class Walker:
    """Verifies runs one after another, over one connection."""

    def __init__(self, storage: Storage, job: Job) -> None:
        """Take the journal, opened for reading.

        Raises:
            JournalError: the key cannot be read.
        """
        self._storage = storage
        self._job = job
        self._key = Verifier.parse(job.key)

    def walk(self, run: Run, *, cites: bool) -> tuple[Walked, list[Citation]]:
        """Verify one run; return also what its records cite, nothing unless `cites`.

        Raises:
            ChainBroken: something in it was changed.
            JournalError: it cannot be read.
        """
        walk = _Walk(self._storage, self._job, self._key, run)
        cited: dict[tuple[str, str], set[str]] = {}
        for rows in walk.pages():
            walk.add(rows)
            if cites:
                _cite(rows, cited)
            if self._job.deep:
                _check_encoding(rows)
        return walk.finish(), [(*owner, list(hashes)) for owner, hashes in cited.items()]


class _Walk:
    """One pass over the records of a run."""

    def __init__(self, storage: Storage, job: Job, key: Verifier, run: Run) -> None:
        self._storage = storage
        self._job = job
        self._key = key
        self._run = run
        self._frontier = self._resumed(run.start) if run.start else Frontier()
        self._external = job.external if _is_within(job.external, run) else None
        self._first_time_ns = self._time_ns = 0
        self._checkpoints = 0
        self._signed: Signed | None = None
        self._marks = self._stored_marks()
        self._next = next(self._marks, None)

    def pages(self) -> Iterator[list[Row]]:
        """Yield the rows in order; fewer than the run has when some are missing."""
        while left := self._run.end - self._frontier.size:
            start = self._frontier.size
            rows = self._storage.between(start, start + min(PAGE_ROWS, left))
            if not rows:
                return
            yield rows

    def add(self, rows: Sequence[Row]) -> None:
        """Check order, hash, and compare the root wherever a checkpoint covers it."""
        first = self._frontier.size
        if [row[0] for row in rows] != list(range(first, first + len(rows))):
            raise ChainBroken(f"records are missing or misplaced between {first} and {rows[-1][0]}")
        times = [self._time_ns, *(row[1] for row in rows)]
        try:
            falls = times != sorted(times)
            leaves = leaf_hashes(rows)
        except (TypeError, ValueError) as error:
            raise ChainBroken(
                f"a record between {first} and {rows[-1][0]} is malformed: {error}"
            ) from error
        if falls:
            raise ChainBroken(f"time falls between records {first} and {rows[-1][0]}")
        if first == self._run.start:
            self._first_time_ns = times[1]
        at = 0
        for size in self._boundaries(first + len(rows)):
            self._frontier.extend(leaves[at : size - first])
            at = size - first
            self._compare(size, times[at])
        self._frontier.extend(leaves[at:])
        self._time_ns = times[-1]

    def finish(self) -> Walked:
        """Check that the run's end was reached."""
        if self._frontier.size != self._run.end:
            raise ChainBroken(f"records from {self._frontier.size} on are missing")
        for size in self._boundaries(self._run.end):
            assert size == 0, "all others were compared with the records before them"
            self._compare(size, 0)
        return Walked(
            self._run,
            self._frontier.root(),
            self._first_time_ns,
            self._time_ns,
            self._checkpoints,
            self._signed,
        )

    def _resumed(self, size: int) -> Frontier:
        """Take over the tree at a stored checkpoint, if it is the one that was signed."""
        mark = self._storage.mark(size)
        if mark is None:
            raise ChainBroken(f"the checkpoint of size {size} was taken away meanwhile")
        claim = notes.verify(mark.note, self._key)
        try:
            frontier = Frontier.restore(size, mark.frontier)
        except (TypeError, ValueError) as error:
            raise ChainBroken(f"checkpoint of size {size}: {error}") from error
        if claim != Checkpoint(self._job.origin, size, frontier.root()):
            raise ChainBroken(f"checkpoint of size {size}: the stored frontier has another root")
        return frontier

    def _boundaries(self, end: int) -> Iterator[int]:
        """Yield the sizes up to `end` at which a root is claimed; each must be compared in turn."""
        while True:
            sizes = [mark.size for mark in (self._next, self._external) if mark is not None]
            if not sizes or min(sizes) > end:
                return
            yield min(sizes)

    def _compare(self, size: int, time_ns: int) -> None:
        root = self._frontier.root()
        if self._next is not None and self._next.size == size:
            claim = notes.verify(self._next.note, self._key)
            if claim != Checkpoint(self._job.origin, size, root):
                since = self._run.start if self._signed is None else self._signed.size
                raise ChainBroken(f"records {since} to {size - 1} do not match their checkpoint")
            if self._next.frontier != self._frontier.pack():
                raise ChainBroken(f"checkpoint of size {size}: the stored frontier was changed")
            self._checkpoints += 1
            self._signed = Signed(size, time_ns)
            self._next = next(self._marks, None)
        if self._external is not None and self._external.size == size:
            if self._external.root != root:
                raise ChainBroken(f"records 0 to {size - 1} do not match the checkpoint given")
            self._external = None

    def _stored_marks(self) -> Iterator[Mark]:
        """Yield the checkpoints above the run's start; the first run also has one of size 0."""
        last = self._run.start or -1
        end = min(self._run.end, self._job.covered)
        while marks := self._storage.marks(last):
            for mark in marks:
                if mark.size > end:
                    return
                yield mark
            last = marks[-1].size


def _is_within(external: Checkpoint | None, run: Run) -> bool:
    """Tell whether the checkpoint from outside is this run's to compare; it is one run's only."""
    if external is None:
        return False
    return run.start < external.size <= run.end or run.start == external.size == 0


def _check_encoding(rows: Sequence[Row]) -> None:
    for row in rows:
        if rows_of([record_of(row)]) != [row]:
            raise ChainBroken(f"the body of record {row[0]} is not in canonical form")


def _cite(rows: Sequence[Row], cited: dict[tuple[str, str], set[str]]) -> None:
    for row in [row for row in rows if row[2] in CITING]:
        try:
            cited.setdefault(row[3:5], set()).update(cited_hashes(row))
        except (JournalError, TypeError, ValueError, RecursionError) as error:
            raise ChainBroken(f"the body of record {row[0]} cannot be read: {error}") from error
