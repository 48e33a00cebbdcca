"""Read a journal, also while another process writes it.

Each page is one short read of committed records, so a slow reader neither holds the writer back nor
lets SQLite's WAL grow.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType

from bedplate.errors import ChainBroken, JournalError
from bedplate.journal import tree
from bedplate.journal.record import Record, Row, leaf_hashes, record_of
from bedplate.journal.storage import FORMAT, PAGE_ROWS, Storage


class Reader:
    """A read-only view of a journal's committed records."""

    def __init__(self, folder: Path) -> None:
        """Open the journal in `folder`.

        Raises:
            JournalError: there is none, or it has another format.
        """
        self._storage = Storage.read_only(folder)
        self.origin = check_format(self._storage, folder)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._storage.close()

    @property
    def size(self) -> int:
        """Number of committed records now."""
        return self._storage.size()

    def read(self, start: int = 0, *, kinds: Collection[str] | None = None) -> Iterator[Record]:
        """Yield records from seq `start` on, in order, only of `kinds` where given.

        Ends at the last record that is committed when it gets there. Memory: a page of rows for
        each kind.
        """
        return map(record_of, self._rows(start, kinds))

    def last(self, kind: str) -> Record | None:
        """Return the newest record of a kind. Cost: one index look-up."""
        row = self._storage.last(kind)
        return None if row is None else record_of(row)

    def content(self, content_hash: str) -> bytes | None:
        """Return stored contents, None when they are unknown or erased."""
        return self._storage.content(content_hash)

    def owners(self, session: str) -> list[tuple[str, int]]:
        """Return each tenant that has contents under this session's id, and how many."""
        return self._storage.owners(session)

    def last_checkpoint(self) -> bytes | None:
        """Return the newest stored checkpoint, a signed note."""
        mark = self._storage.last_mark()
        return None if mark is None else mark.note

    def subtree_root(self, start: int, end: int) -> bytes:
        """Return the root of the tree over records `start` up to, not including, `end`.

        Raises:
            ChainBroken: records in between are missing.

        Cost: reads and hashes all of them, in bounded memory.
        """
        frontier = tree.Frontier()
        at = start
        while at < end:
            rows = self._storage.page(at, rows_max=min(PAGE_ROWS, end - at))
            if not rows or rows[0][0] != at or rows[-1][0] != at + len(rows) - 1:
                raise ChainBroken(f"records from {at} on are missing; run `bedplate audit verify`")
            frontier.extend(leaf_hashes(rows))
            at += len(rows)
        return frontier.root()

    def _rows(self, start: int, kinds: Collection[str] | None) -> Iterator[Row]:
        if kinds is None:
            return self._pages(start, None)
        # One run for each kind, each in the order of its index.
        return heapq.merge(*(self._pages(start, kind) for kind in sorted(set(kinds))))

    def _pages(self, start: int, kind: str | None) -> Iterator[Row]:
        while rows := self._storage.page(start, kind=kind):
            yield from rows
            start = rows[-1][0] + 1


def check_format(storage: Storage, folder: Path) -> str:
    """Return the journal's origin.

    Raises:
        JournalError: not a journal, or one of another version's format.
    """
    found, origin = storage.meta("format"), storage.meta("origin")
    if found is None or origin is None:
        raise JournalError(f"the database in {folder} is not a journal of Bedplate")
    if found != FORMAT:
        raise JournalError(
            f"the journal in {folder} has format {found}, this version reads format {FORMAT}"
        )
    return origin
