"""The one module that speaks SQL: four tables in SQLite (WAL, synchronous=FULL).

The schema would do for PostgreSQL with INTEGER read as BIGINT, BLOB as BYTEA and STRICT left out.
Nothing here knows what the bytes mean. Foreign errors leave as `JournalError`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bedplate.errors import ChainBroken, JournalError, JournalMissing
from bedplate.journal.record import Content, Row

DATABASE_FILE = "journal.sqlite"
WAL_FILE = f"{DATABASE_FILE}-wal"
FORMAT = "1"
PAGE_ROWS = 1024
"""Rows read at once: what a reader holds in memory, and how long it holds back SQLite's WAL."""
_WAL_PAGES = 4096
_BUSY_MS = 10_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS record (
    seq INTEGER NOT NULL PRIMARY KEY,
    time_ns INTEGER NOT NULL,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS record_kind ON record (kind, seq);
CREATE TABLE IF NOT EXISTS checkpoint (
    size INTEGER NOT NULL PRIMARY KEY,
    note BLOB NOT NULL,
    frontier BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS content (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    hash TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (hash, tenant, session)
) STRICT;
CREATE INDEX IF NOT EXISTS content_session ON content (tenant, session);
"""
_OBJECTS = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
"""What is in the database besides SQLite's own."""
_COLUMNS = "seq, time_ns, kind, tenant, session, body"
_ROWS_AT_ONCE = 32
"""Rows of one INSERT. Each statement gives the interpreter's lock away and waits to get it back."""
_ADD_CONTENT = (
    "INSERT INTO content (hash, tenant, session, data) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_ADD_CHECKPOINT = "INSERT INTO checkpoint (size, note, frontier) VALUES (?, ?, ?)"


@cache
def _insert(rows: int) -> str:
    """Return the statement that stores so many rows."""
    places = ", ".join(["(?, ?, ?, ?, ?, ?)"] * rows)
    return f"INSERT INTO record ({_COLUMNS}) VALUES {places}"


def _add_rows(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    whole = len(rows) - len(rows) % _ROWS_AT_ONCE
    if whole:
        runs = (rows[at : at + _ROWS_AT_ONCE] for at in range(0, whole, _ROWS_AT_ONCE))
        flat = (tuple(chain.from_iterable(run)) for run in runs)
        connection.executemany(_insert(_ROWS_AT_ONCE), flat)
    rest = rows[whole:]
    if rest:
        connection.execute(_insert(len(rest)), tuple(chain.from_iterable(rest)))


class Mark(NamedTuple):
    """A stored checkpoint: tree size, signed note, and the packed frontier at that size."""

    size: int
    note: bytes
    frontier: bytes


class Storage:
    """One connection. Safe to use from several threads; SQLite lets them in one by one."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection

    @classmethod
    def create(cls, folder: Path) -> Storage:
        """Open for writing; make the tables where there are none.

        Raises:
            JournalError: the file cannot be opened or is not a database.
        """
        path = folder / DATABASE_FILE
        with _mapped(path):
            self = cls(path, _connect(str(path), uri=False))
            for pragma in (
                "journal_mode=WAL",
                "synchronous=FULL",
                "secure_delete=ON",
                f"wal_autocheckpoint={_WAL_PAGES}",
            ):
                self._connection.execute(f"PRAGMA {pragma}")
            self._connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
        return self

    @classmethod
    def read_only(cls, folder: Path) -> Storage:
        """Open for reading, beside a writer or without one, also on a read-only medium.

        Raises:
            JournalMissing: there is no journal.
            JournalError: it cannot be opened.
        """
        path = folder / DATABASE_FILE
        if not path.is_file():
            raise JournalMissing(
                f"there is no journal at {path}: start `bedplate serve` once, or name the folder "
                "with --data-dir or its configuration with --config"
            )
        with _mapped(path):
            try:
                return cls(path, _probed(f"{path.absolute().as_uri()}?mode=ro"))
            except sqlite3.OperationalError:
                wal = path.with_name(WAL_FILE)
                if wal.exists() and wal.stat().st_size:
                    raise
            # The WAL holds nothing, and none can be made here: the file is all there is.
            return cls(path, _probed(f"{path.absolute().as_uri()}?immutable=1"))

    def close(self) -> None:
        """Close the connection; the last one folds the WAL into the database."""
        with _mapped(self._path):
            self._connection.close()

    def meta(self, name: str) -> str | None:
        """Return a fixed fact about the journal."""
        row = self._one("SELECT value FROM meta WHERE name = ?", (name,))
        return None if row is None else str(row[0])

    def set_meta(self, values: dict[str, str]) -> None:
        """Store facts about the journal, in one transaction."""
        with self._transaction() as connection:
            connection.executemany("INSERT INTO meta VALUES (?, ?)", list(values.items()))

    def add(self, rows: Sequence[Row], contents: Sequence[Content], mark: Mark | None) -> None:
        """Store all of it durably, or nothing.

        Raises:
            JournalError: nothing is stored. `code` is `journal_full` when there was no room, and
                `journal_fsync` when nobody can tell what the disk holds now.
        """
        with self._transaction() as connection:
            _add_rows(connection, rows)
            if contents:
                connection.executemany(_ADD_CONTENT, contents)
            if mark is not None:
                connection.execute(_ADD_CHECKPOINT, mark)

    def size(self) -> int:
        """Return the number of records, by the last one's seq."""
        row = self._one("SELECT seq FROM record ORDER BY seq DESC LIMIT 1", ())
        return 0 if row is None else int(row[0]) + 1

    def extent(self) -> tuple[int, int]:
        """Return the number of records and the size of the newest checkpoint, at one instant."""
        row = self._one(
            "SELECT (SELECT max(seq) + 1 FROM record), (SELECT max(size) FROM checkpoint)", ()
        )
        assert row is not None
        return int(row[0] or 0), int(row[1] or 0)

    def has_below_zero(self) -> bool:
        """Tell whether there are records or checkpoints before the first; no writer makes any."""
        row = self._one(
            "SELECT EXISTS (SELECT 1 FROM record WHERE seq < 0) "
            "OR EXISTS (SELECT 1 FROM checkpoint WHERE size < 0)",
            (),
        )
        assert row is not None
        return bool(row[0])

    def check_tables(self) -> None:
        """Check that the tables are plain ones, as they were made.

        A view in place of a table could show one thing to a verifier and another to a bill.

        Raises:
            ChainBroken: the database has something else in it: a view, a trigger, another table.
        """
        made = sqlite3.connect(":memory:")
        try:
            made.executescript(_SCHEMA)
            ours = set(made.execute(_OBJECTS))
        finally:
            made.close()
        for kind, name, sql in self._all(_OBJECTS, ()):
            if (kind, name, sql) not in ours:
                raise ChainBroken(
                    f"the {kind} {name!r} of the database {self._path} is not of the journal: it "
                    "was added or changed"
                )

    def check_integrity(self) -> None:
        """Check pages and indices. Raises ChainBroken when an index does not fit its table."""
        found = self._all("PRAGMA integrity_check", ())
        if found != [("ok",)]:
            raise ChainBroken(f"the database {self._path} is damaged: {found[0][0]}")

    def page(self, start: int, *, kind: str | None = None, rows_max: int = PAGE_ROWS) -> list[Row]:
        """Return up to `rows_max` rows from seq `start` on, in order."""
        if kind is None:
            return self._all(
                f"SELECT {_COLUMNS} FROM record WHERE seq >= ? ORDER BY seq LIMIT ?",
                (start, rows_max),
            )
        return self._all(
            f"SELECT {_COLUMNS} FROM record WHERE kind = ? AND seq >= ? ORDER BY seq LIMIT ?",
            (kind, start, rows_max),
        )

    def between(self, start: int, end: int) -> list[Row]:
        """Return the rows from seq `start` up to, not including, `end`; fewer where some miss.

        Cost: 1.1 µs a row, where `page` takes 1.3 µs.
        """
        return self._all(
            f"SELECT {_COLUMNS} FROM record WHERE seq >= ? AND seq < ? ORDER BY seq", (start, end)
        )

    def last(self, kind: str) -> Row | None:
        """Return the newest row of a kind. Cost: one index look-up."""
        row: Row | None = self._one(
            f"SELECT {_COLUMNS} FROM record WHERE kind = ? ORDER BY seq DESC LIMIT 1", (kind,)
        )
        return row

    def marks(self, after: int) -> list[Mark]:
        """Return up to a page of checkpoints of more than `after` records, in order."""
        rows = self._all(
            "SELECT size, note, frontier FROM checkpoint WHERE size > ? ORDER BY size LIMIT ?",
            (after, PAGE_ROWS),
        )
        return [Mark(*row) for row in rows]

    def mark(self, size: int) -> Mark | None:
        """Return the checkpoint of exactly this size."""
        row = self._one("SELECT size, note, frontier FROM checkpoint WHERE size = ?", (size,))
        return None if row is None else Mark(*row)

    def mark_size(self, size_min: int) -> int | None:
        """Return the size of the first checkpoint of at least `size_min` records."""
        row = self._one("SELECT min(size) FROM checkpoint WHERE size >= ?", (size_min,))
        assert row is not None
        return None if row[0] is None else int(row[0])

    def last_mark(self) -> Mark | None:
        """Return the newest checkpoint."""
        row = self._one(
            "SELECT size, note, frontier FROM checkpoint ORDER BY size DESC LIMIT 1", ()
        )
        return None if row is None else Mark(*row)

    def content(self, content_hash: str) -> bytes | None:
        """Return contents by hash, whichever session stored them."""
        row = self._one("SELECT data FROM content WHERE hash = ? LIMIT 1", (content_hash,))
        return None if row is None else bytes(row[0])

    def contents(self) -> Iterator[Content]:
        """Yield all contents, ordered by owner and hash, one page at a time."""
        last, beyond = ("", "", ""), ">="
        while rows := self._all(
            f"SELECT hash, tenant, session, data FROM content WHERE (hash, tenant, session) "
            f"{beyond} (?, ?, ?) ORDER BY hash, tenant, session LIMIT 64",
            last,
        ):
            yield from (Content(*row) for row in rows)
            last, beyond = rows[-1][:3], ">"

    def owners(self, session: str) -> list[tuple[str, int]]:
        """Return each tenant that has contents under this session's id, and how many."""
        return self._all(
            "SELECT tenant, count(*) FROM content WHERE session = ? GROUP BY tenant "
            "ORDER BY tenant",
            (session,),
        )

    def erase(self, tenant: str, session: str, content_hash: str | None) -> int:
        """Overwrite and delete contents of one session; return how many.

        The bytes leave the database with the transaction, and its WAL as soon as no reader holds
        it back.
        """
        where, values = "tenant = ? AND session = ?", [tenant, session]
        if content_hash is not None:
            where, values = where + " AND hash = ?", [*values, content_hash]
        with self._transaction() as connection:
            count = connection.execute(f"DELETE FROM content WHERE {where}", values).rowcount
        with _mapped(self._path):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return count

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _mapped(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a failing COMMIT may have ended it
                    self._connection.execute("ROLLBACK")
                raise

    def _one(self, query: str, values: Sequence[object]) -> Any:
        with _mapped(self._path):
            return self._connection.execute(query, values).fetchone()

    def _all(self, query: str, values: Sequence[object]) -> list[Any]:
        with _mapped(self._path):
            return self._connection.execute(query, values).fetchall()


def _connect(target: str, *, uri: bool) -> sqlite3.Connection:
    assert sqlite3.threadsafety == 3, "SQLite must be built for use from several threads"
    return sqlite3.connect(
        target,
        uri=uri,
        isolation_level=None,
        check_same_thread=False,
        timeout=_BUSY_MS / 1000,
    )


def _probed(target: str) -> sqlite3.Connection:
    connection = _connect(target, uri=True)
    try:
        connection.execute("SELECT 1 FROM meta").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if name == "SQLITE_FULL":
            raise JournalError(
                f"no room to write the journal {path}: nothing of this batch is stored; free disk "
                "space, then try again",
                code="journal_full",
            ) from error
        code = "journal_fsync" if name.endswith("FSYNC") else "journal_io"
        raise JournalError(f"journal {path}: {error} ({name})", code=code) from error
