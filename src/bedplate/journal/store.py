"""The journal's one writer.

What `append` does, in this order: encode and check the batch; hash it into a copy of the tree's
frontier; sign a checkpoint if one is due; commit all of it in one transaction; only then take the
copy over. A failure anywhere leaves file and memory as they were, so the next append may succeed.

A checkpoint is due with the first record, with 1,000 records since the last one, and when the time
of the newest record is a second past that of the last one covered. The verifier relies on this
rule: a longer unsigned tail means that somebody took checkpoints away.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from bedplate.errors import ChainBroken, JournalBusy, JournalError, Truncated
from bedplate.journal import checkpoint as notes
from bedplate.journal.checkpoint import Checkpoint
from bedplate.journal.keys import KEY_FILE, PUBLIC_FILE, Signer, check_name
from bedplate.journal.reader import Reader, check_format
from bedplate.journal.record import Content, Record, Row, leaf_hashes, rows_of
from bedplate.journal.storage import DATABASE_FILE, FORMAT, WAL_FILE, Mark, Storage
from bedplate.journal.tree import Frontier

CHECKPOINT_RECORDS = 1_000
CHECKPOINT_NS = 1_000_000_000
LOCK_FILE = "writer.lock"


class Journal:
    """An open journal. Make one with `Journal.open`; one process at a time may write.

    `append`, `checkpoint`, `erase_content` and `close` exclude one another by a lock; the reading
    methods may be called from any thread at any time and see what is committed.
    """

    def __init__(self, folder: Path, storage: Storage, signer: Signer, lock: int) -> None:
        self.folder = folder
        self._storage = storage
        self._signer = signer
        self._lock_file = lock
        self._mutex = threading.Lock()
        self._reader: Reader | None = None
        self._frontier = Frontier()
        self._note = b""
        self._signed_size = 0
        self._signed_time_ns = 0
        self._time_ns = 0
        self._lost: JournalError | None = None

    @classmethod
    def open(cls, folder: Path, *, origin: str, signer: Signer | None = None) -> Journal:
        """Open or create the journal in `folder` for writing, and check its tail.

        Checked: the newest checkpoint is signed by our key and its root is that of the stored
        frontier; the records after it are contiguous; there are no fewer than the last writer
        noted, as when the WAL was deleted. Everything before is for `verify`.

        Args:
            folder: Made with mode 0700 if it is not there.
            origin: Name of this cell, fixed for the life of the journal.
            signer: The signing key; by default the folder's own, made on first open.

        Raises:
            ChainBroken, Truncated: the tail does not fit the newest checkpoint, or a file is gone.
            JournalBusy: another process writes it.
            JournalError: another origin; key or file unusable.

        Cost: reads the records since the newest checkpoint.
        """
        check_name(origin)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _take_lock(folder / LOCK_FILE)
        storage: Storage | None = None
        try:
            if _has_key(folder) and not _has_database(folder):
                raise _emptied(folder)  # before SQLite makes a new one and drops the old WAL
            storage = Storage.create(folder)
            if storage.meta("format") is None and storage.size() == 0:
                if _has_key(folder):
                    raise _emptied(folder)
                storage.set_meta({"format": FORMAT, "origin": origin})
            found = check_format(storage, folder)
            if found != origin:
                raise JournalError(
                    f"the journal in {folder} belongs to {found!r}, not to {origin!r}; give each "
                    "cell a folder of its own"
                )
            if signer is None:
                signer = Signer.open(folder, origin, create=storage.size() == 0)
            journal = cls(folder, storage, signer, lock)
            journal._recover()
            journal._check_size(_noted_size(lock))
            journal._reader = Reader(folder)
        except BaseException:
            if storage is not None:
                storage.close()
            os.close(lock)
            raise
        return journal

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def origin(self) -> str:
        """Name of this journal's cell, the origin of its checkpoints."""
        return self._signer.verifier.name

    @property
    def next_seq(self) -> int:
        """Seq that the next record must have: the number of records."""
        return self._frontier.size

    @property
    def last_time_ns(self) -> int:
        """Time of the newest record, 0 in an empty journal."""
        return self._time_ns

    def append(self, records: Sequence[Record], contents: Sequence[Content] = ()) -> None:
        """Store a batch: all of it durable on return, or nothing stored and an error raised.

        Raises:
            JournalError: a body that cannot be encoded, a full disk (`code` journal_full), or
                another failure of the disk. After a failed fsync (`code` journal_fsync) every
                append fails until the journal is opened anew, which reads what the disk holds: the
                system may have dropped the pages that it could not write and report success next.

        Cost: a few µs a record and one fsync; a signature when a checkpoint is due.
        """
        with self._mutex:
            rows = rows_of(records)
            time_ns = self._check_order(rows)
            frontier = self._frontier.copy()
            frontier.extend(leaf_hashes(rows))
            due = (
                bool(rows)
                and (self._signed_size == 0 or time_ns - self._signed_time_ns >= CHECKPOINT_NS)
            ) or frontier.size - self._signed_size >= CHECKPOINT_RECORDS
            mark = self._sign(frontier) if due else None
            self._add(rows, contents, mark)
            self._frontier, self._time_ns = frontier, time_ns
            _note_size(self._lock_file, frontier.size)
            if mark is not None:
                self._signed(mark)

    def checkpoint(self) -> bytes:
        """Return a signed checkpoint of all records so far; store it if it is a new one.

        Raises:
            JournalError: it could not be stored.
        """
        with self._mutex:
            if not self._note or self._signed_size != self._frontier.size:
                mark = self._sign(self._frontier)
                self._add((), (), mark)
                self._signed(mark)
            return self._note

    def read(self, start: int = 0, *, kinds: Collection[str] | None = None) -> Iterator[Record]:
        """Yield committed records from seq `start` on; see `Reader.read`."""
        return self._open_reader().read(start, kinds=kinds)

    def last(self, kind: str) -> Record | None:
        """Return the newest record of a kind. Cost: one index look-up."""
        return self._open_reader().last(kind)

    def content(self, content_hash: str) -> bytes | None:
        """Return stored contents, None when they are unknown or erased."""
        return self._open_reader().content(content_hash)

    def erase_content(self, *, tenant: str, session: str, content_hash: str | None = None) -> int:
        """Erase contents of one session, all or one; the records that cite them still verify.

        The bytes are overwritten, not only unlinked. Who erased what is for the caller to record.

        Returns:
            How many contents were erased.
        """
        with self._mutex:
            return self._storage.erase(tenant, session, content_hash)

    def close(self) -> None:
        """Sign what is unsigned, close the files, let the next writer in. May be called again."""
        if self._reader is None:
            return
        try:
            if self._signed_size != self._frontier.size and self._lost is None:
                self.checkpoint()
        finally:
            with self._mutex:
                self._reader.close()
                self._reader = None
                self._storage.close()
                os.close(self._lock_file)

    def _open_reader(self) -> Reader:
        if self._reader is None:
            raise JournalError(f"the journal in {self.folder} is closed")
        return self._reader

    def _add(self, rows: Sequence[Row], contents: Sequence[Content], mark: Mark | None) -> None:
        if self._lost is not None:
            raise JournalError(
                f"the journal in {self.folder} takes no records since an fsync failed; restart the "
                "service once the disk is sound",
                code=self._lost.code,
            ) from self._lost
        try:
            self._storage.add(rows, contents, mark)
        except JournalError as error:
            if error.code == "journal_fsync":
                self._lost = error
            raise

    def _check_order(self, rows: Sequence[Row]) -> int:
        seq, last_ns = self._frontier.size, self._time_ns
        for row in rows:
            assert row[0] == seq, f"record {row[0]} where {seq} is next"
            assert row[1] >= last_ns, f"the time of record {seq} falls by {last_ns - row[1]} ns"
            seq, last_ns = seq + 1, row[1]
        return last_ns

    def _sign(self, frontier: Frontier) -> Mark:
        claim = Checkpoint(self.origin, frontier.size, frontier.root())
        return Mark(frontier.size, notes.sign(claim, self._signer), frontier.pack())

    def _signed(self, mark: Mark) -> None:
        assert mark.size == self._frontier.size
        self._note, self._signed_size, self._signed_time_ns = mark.note, mark.size, self._time_ns

    def _check_size(self, noted: int) -> None:
        """Refuse a journal of fewer records than there were; else note whose it is now."""
        if self.next_seq < noted:
            raise Truncated(
                f"the journal in {self.folder} has {self.next_seq} records, there were {noted}: a "
                f"file was taken away or replaced, such as {WAL_FILE}. Put it back; or delete "
                f"{self.folder / LOCK_FILE} to go on with the records that are there"
            )
        os.ftruncate(self._lock_file, 0)
        _note_size(self._lock_file, self.next_seq)

    def _recover(self) -> None:
        """Take over the stored state; refuse one that does not fit its newest checkpoint."""
        if self._storage.has_below_zero():
            raise ChainBroken(f"the journal in {self.folder} has records before record 0")
        size, mark = self._storage.size(), self._storage.last_mark()
        if mark is None:
            if size:
                raise ChainBroken(f"the journal in {self.folder} has {size} records, no checkpoint")
            return
        claim = notes.verify(mark.note, self._signer.verifier)
        if claim.size != mark.size or claim.origin != self.origin:
            raise ChainBroken(f"checkpoint {mark.size} claims {claim.size} of {claim.origin!r}")
        if size < mark.size:
            raise Truncated(f"the journal ends at {size}, its newest checkpoint covers {mark.size}")
        try:
            self._frontier = Frontier.restore(mark.size, mark.frontier)
        except ValueError as error:
            raise ChainBroken(f"checkpoint {mark.size}: {error}") from error
        if self._frontier.root() != claim.root:
            raise ChainBroken(f"checkpoint {mark.size}: the stored frontier has another root")
        if mark.size:
            (covered,) = self._storage.page(mark.size - 1, rows_max=1)
            self._time_ns = covered[1]
        self._signed(mark)
        while rows := self._storage.page(self._frontier.size):
            try:
                self._time_ns = self._check_order(rows)
            except AssertionError as error:
                raise ChainBroken(str(error)) from error
            self._frontier.extend(leaf_hashes(rows))


def _take_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").partition(" ")[0] or "unknown"
        os.close(descriptor)
        raise JournalBusy(
            f"the journal in {path.parent} is being written by process {owner}; stop it first"
        ) from error
    return descriptor


def _note_size(lock: int, size: int) -> None:
    """Write who writes, and how many records are durable. Not synced: it survives a kill only."""
    os.pwrite(lock, f"{os.getpid()} {size:019}\n".encode(), 0)


def _noted_size(lock: int) -> int:
    """Return the size that the last writer noted, 0 where a power cut left nothing to read."""
    size = os.pread(lock, 64, 0).rstrip(b"\n").rpartition(b" ")[2]
    return int(size) if len(size) == 19 and size.isdigit() else 0


def _has_database(folder: Path) -> bool:
    path = folder / DATABASE_FILE
    return path.exists() and path.stat().st_size > 0


def _has_key(folder: Path) -> bool:
    return (folder / KEY_FILE).exists() or (folder / PUBLIC_FILE).exists()


def _emptied(folder: Path) -> Truncated:
    return Truncated(
        f"{folder} has the key of a journal and no records: {DATABASE_FILE} is missing or was "
        "emptied. Put the database back, with its WAL if there is one. To begin a new journal, "
        f"move {KEY_FILE} and {PUBLIC_FILE} away, or use another data folder"
    )
