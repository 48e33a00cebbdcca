"""The store: entries over files, with ownership, checksums and one cap.

All methods block on files and may be called from any thread; checksums are computed outside the
lock, so that loads and stores of several cards run side by side.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from bedplate.core.ids import EntryId, TenantId
from bedplate.errors import PoolError
from bedplate.pool import files
from bedplate.pool import folder as folders
from bedplate.pool import meta as metas
from bedplate.pool.types import EntryInfo, Fingerprint, Opened, Owner, Pending

_LOG = logging.getLogger(__name__)
_OURS = re.compile(r"[0-9a-f]{32}\.(kv|meta|tmp)")
_MUST_MATCH = ("model_digest", "kv_type", "layout", "engine")


class _Entry(NamedTuple):
    stem: str
    header: metas.Header
    size_bytes: int


class KvPool:
    """Stored KV of all sessions behind one set of cards.

    The index in memory is a cache of the folder and is rebuilt by `open`. `used_bytes` counts data
    and meta of all entries and never passes `size_bytes_max`; files still being written by an
    engine are not counted until `commit`, which refuses what does not fit.
    """

    def __init__(self, place: folders.Place, size_bytes_max: int, lock_fd: int) -> None:
        """Use `KvPool.open`; this only assembles what that has prepared."""
        assert size_bytes_max > 0
        self.folder = place.folder
        self.on_disk = place.on_disk
        self.warning = place.warning
        self.size_bytes_max = size_bytes_max
        self._lock_fd = lock_fd
        self._mutex = threading.Lock()
        self._entries: dict[EntryId, _Entry] = {}
        self._pending: dict[EntryId, Pending] = {}
        self._used_bytes = 0

    @classmethod
    def open(cls, folder: Path | None, *, name: str, size_bytes_max: int, fallback: Path) -> KvPool:
        """Open the pool, drop what a killed process left half done, and load the index.

        Args:
            folder: A folder of the operator's choice, or None for shared memory.
            name: Names the pool in shared memory, so that several services share a host.
            size_bytes_max: Cap over all entries, > 0.
            fallback: Folder on disk when shared memory is missing or too small; see `warning`.

        Raises:
            PoolError: The folder cannot be used, is not ours alone, or another process has it.

        Cost: reads every meta file once; data files are checked when they are opened.
        """
        if size_bytes_max <= 0:
            raise PoolError(f"the pool's size is {size_bytes_max} bytes; it must be above 0")
        place = folders.choose(folder, name=name, size_bytes_max=size_bytes_max, fallback=fallback)
        if place.warning is not None:
            _LOG.warning("pool: %s", place.warning)
        lock_fd = folders.lock(place.folder)
        pool = cls(place, size_bytes_max, lock_fd)
        try:
            pool._load()
        except BaseException:
            pool.close()
            raise
        return pool

    def close(self) -> None:
        """Give the folder free for another process; entries stay."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries, data and meta."""
        return self._used_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of all the pool's files as they are in the folder now, unfinished ones included."""
        return sum(
            item.stat(follow_symlinks=False).st_size
            for item in os.scandir(self.folder)
            if _OURS.fullmatch(item.name)
        )

    def bytes_by_tenant(self) -> dict[TenantId, int]:
        """Return the bytes of all entries by the tenant that owns them."""
        totals: dict[TenantId, int] = {}
        with self._mutex:
            for item in self._entries.values():
                tenant = item.header.owner.tenant
                totals[tenant] = totals.get(tenant, 0) + item.size_bytes
        return totals

    def entries(self) -> list[EntryInfo]:
        """Return all entries by rising id."""
        with self._mutex:
            found = sorted(self._entries.items())
        return [
            EntryInfo(entry, item.header.owner, item.header.fingerprint, item.size_bytes)
            for entry, item in found
        ]

    def begin(self, entry: EntryId, owner: Owner) -> Pending:
        """Make an empty private file for an engine to write.

        Raises:
            PoolError: The id is in use, or the file cannot be made.
        """
        name = f"{secrets.token_hex(16)}.kv"
        pending = Pending(entry, owner, name, self.folder / name)
        with self._mutex:
            if entry in self._entries or entry in self._pending:
                raise PoolError(f"pool entry {entry} exists already; drop it first")
            self._pending[entry] = pending
        try:
            os.close(os.open(pending.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            with self._mutex:
                del self._pending[entry]
            raise PoolError(f"pool entry {entry} cannot begin: {error.strerror}") from error
        return pending

    def commit(
        self,
        pending: Pending,
        fingerprint: Fingerprint,
        meta: bytes,
        *,
        written_bytes: int | None = None,
    ) -> int:
        """Turn what the engine wrote into an entry.

        Args:
            pending: From `begin`; it is used up, whether this succeeds or raises.
            fingerprint: What the KV was made from.
            meta: The adapter's own record, given back by `open_entry`.
            written_bytes: What the engine says it wrote, where it says so.

        Returns:
            Bytes that the entry takes, data and meta together.

        Raises:
            PoolError: Over the cap, no space left, nothing or less written. All files are gone.
        """
        if self._pending.get(pending.entry) is not pending:
            raise PoolError(f"pool entry {pending.entry} is not being stored")
        try:
            return self._commit(pending, fingerprint, meta, written_bytes)
        except OSError as error:
            self.abort(pending)
            raise PoolError(
                f"pool entry {pending.entry} cannot be stored in {self.folder}: {error.strerror}"
            ) from error
        except BaseException:
            self.abort(pending)
            raise

    def abort(self, pending: Pending) -> None:
        """Forget a store that has begun and remove its file. Safe to call twice."""
        with self._mutex:
            if self._pending.get(pending.entry) is not pending:
                return
            del self._pending[pending.entry]
        pending.path.unlink(missing_ok=True)

    def open_entry(self, entry: EntryId, expect: Fingerprint | None, tenant: TenantId) -> Opened:
        """Verify an entry and hand it out for reading.

        The owner is checked first: a foreign entry answers exactly like a missing one (INV-07).
        Then the fingerprint, unless `expect` is None, then size and checksum of the data file.

        Raises:
            PoolError: Not there for this tenant, made otherwise, cut short, or corrupt.

        Cost: reads the data file once (about 10 GB/s from memory).
        """
        with self._mutex:
            item = self._entries.get(entry)
        if item is None or item.header.owner.tenant != tenant:
            raise PoolError(f"pool entry {entry} is not there; the context is computed again")
        _compare(entry, item.header.fingerprint, expect)
        path = self.folder / f"{item.stem}.kv"
        try:
            decoded = metas.decode((self.folder / f"{item.stem}.meta").read_bytes())
            measured = files.measure(path)
        except OSError as error:
            raise PoolError(f"pool entry {entry} cannot be read: {error.strerror}") from error
        except PoolError as error:
            raise PoolError(f"pool entry {entry}: {error.message}") from error
        if decoded.header != item.header:
            raise PoolError(f"pool entry {entry} was changed from outside: its meta file differs")
        if measured.size_bytes != item.header.data_bytes:
            raise PoolError(
                f"pool entry {entry} is truncated: {measured.size_bytes} bytes"
                f" of {item.header.data_bytes}"
            )
        if measured.checksum != item.header.data_checksum:
            raise PoolError(f"pool entry {entry} is corrupt: its checksum differs")
        return Opened(path.name, path, item.header.fingerprint, decoded.meta, item.size_bytes)

    def drop(self, entry: EntryId) -> int:
        """Delete an entry; return the bytes freed, 0 when there is no such entry.

        Raises:
            PoolError: A file cannot be deleted; its bytes stay counted, drop may be tried again.
        """
        with self._mutex:
            item = self._entries.get(entry)
            if item is None:
                return 0
            try:
                (self.folder / f"{item.stem}.meta").unlink(missing_ok=True)
                (self.folder / f"{item.stem}.kv").unlink(missing_ok=True)
            except OSError as error:
                raise PoolError(
                    f"pool entry {entry} cannot be deleted: {error.strerror}"
                ) from error
            del self._entries[entry]
            self._used_bytes -= item.size_bytes
        return item.size_bytes

    def collect(self, live: Collection[EntryId]) -> int:
        """Delete entries that no session owns, and files that belong to no entry.

        A card that outlived its gateway may finish a store that nobody waits for; its file is
        found here.

        Returns:
            Entries deleted.
        """
        kept = frozenset(live)
        with self._mutex:
            dead = sorted(entry for entry in self._entries if entry not in kept)
        for entry in dead:
            self.drop(entry)
        with self._mutex:
            self._sweep()
        return len(dead)

    def _commit(
        self, pending: Pending, fingerprint: Fingerprint, meta: bytes, written_bytes: int | None
    ) -> int:
        measured = files.measure(pending.path, sync=self.on_disk)
        if measured.size_bytes == 0:
            raise PoolError(f"pool entry {pending.entry} is empty: the engine wrote nothing")
        if written_bytes is not None and written_bytes != measured.size_bytes:
            raise PoolError(
                f"pool entry {pending.entry} is cut short: the engine wrote {written_bytes} bytes,"
                f" the file holds {measured.size_bytes}; is {self.folder} full?"
            )
        header = metas.Header(
            entry=pending.entry,
            owner=pending.owner,
            fingerprint=fingerprint,
            data_bytes=measured.size_bytes,
            data_checksum=measured.checksum,
            meta_bytes=len(meta),
        )
        encoded = metas.encode(header, meta)
        size_bytes = measured.size_bytes + len(encoded)
        stem = pending.name.removesuffix(".kv")
        self._reserve(pending.entry, size_bytes)
        try:
            self._publish(stem, encoded)
        except BaseException:
            with self._mutex:
                self._used_bytes -= size_bytes
            raise
        with self._mutex:
            del self._pending[pending.entry]
            self._entries[pending.entry] = _Entry(stem, header, size_bytes)
        return size_bytes

    def _reserve(self, entry: EntryId, size_bytes: int) -> None:
        """Count the bytes before the entry shows: two commits cannot pass the cap together."""
        with self._mutex:
            if self._used_bytes + size_bytes > self.size_bytes_max:
                raise PoolError(
                    f"pool entry {entry} of {size_bytes} bytes does not fit:"
                    f" {self._used_bytes} of {self.size_bytes_max} bytes are used"
                )
            self._used_bytes += size_bytes

    def _publish(self, stem: str, encoded: bytes) -> None:
        """Write the meta file under a temporary name and rename it: from here on it is an entry."""
        temporary = self.folder / f"{stem}.tmp"
        final = self.folder / f"{stem}.meta"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                files.write_all(file.fileno(), encoded)
                if self.on_disk:
                    os.fsync(file.fileno())
            os.rename(temporary, final)
            if self.on_disk:
                files.sync_folder(self.folder)
        except BaseException:
            temporary.unlink(missing_ok=True)
            final.unlink(missing_ok=True)
            raise

    def _load(self) -> None:
        """Build the index from the folder and delete what is no entry."""
        for path in sorted(self.folder.glob("*.meta")):
            if not _OURS.fullmatch(path.name):
                continue
            try:
                item = self._read_entry(path)
            except PoolError as error:
                _LOG.warning("pool: dropped %s: %s", path.name, error.message)
                continue
            self._entries[item.header.entry] = item
            self._used_bytes += item.size_bytes
        self._sweep()
        if self._used_bytes > self.size_bytes_max:
            _LOG.warning(
                "pool: %d bytes are stored, the cap is now %d; nothing is stored until some are"
                " dropped",
                self._used_bytes,
                self.size_bytes_max,
            )

    def _read_entry(self, path: Path) -> _Entry:
        try:
            encoded = path.read_bytes()
            data_bytes = path.with_suffix(".kv").stat().st_size
        except FileNotFoundError as error:
            raise PoolError("its data file is missing") from error
        except OSError as error:
            raise PoolError(f"it cannot be read: {error.strerror}") from error
        header = metas.decode(encoded).header
        if header.data_bytes != data_bytes:
            raise PoolError(
                f"its data file is truncated: {data_bytes} of {header.data_bytes} bytes"
            )
        if header.entry in self._entries:
            raise PoolError(f"a second file claims entry {header.entry}")
        return _Entry(path.stem, header, data_bytes + len(encoded))

    def _sweep(self) -> None:
        """Delete the pool's files that belong neither to an entry nor to a store under way."""
        known = {item.stem for item in self._entries.values()}
        known.update(pending.path.stem for pending in self._pending.values())
        for path in sorted(self.folder.iterdir()):
            if _OURS.fullmatch(path.name) and path.stem not in known:
                path.unlink(missing_ok=True)


def _compare(entry: EntryId, stored: Fingerprint, expect: Fingerprint | None) -> None:
    if expect is None:
        return
    for field in _MUST_MATCH:
        has, wants = getattr(stored, field), getattr(expect, field)
        if has != wants:
            raise PoolError(
                f"pool entry {entry} was made with another {field}:"
                f" stored {has!r}, wanted {wants!r}"
            )
