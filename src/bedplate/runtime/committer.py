"""Group commit: records of the loop's thread made durable, in order, by one writer thread.

A group is what one outermost `post` caused; it is never split over two transactions. The writer
takes every group that waits, up to `_BATCH_RECORDS`, appends them as one transaction, reports the
last durable sequence number to the loop, and goes on with what has gathered meanwhile. So a lone
record is durable after one commit and a burst shares commits; there is no timer. Once no group has
come for `idle_s` the writer has the journal sign its tail, which the next append would do else.

When the journal cannot be written (a full disk), the writer keeps its batch and tries again with
growing pauses. The journal is *stalled* from the first failure, or once a record has waited for
`stall_s`, until an append succeeds in less than that.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from bedplate.core.units import SECOND_NS
from bedplate.errors import JournalError
from bedplate.journal import Content, Journal, Record
from bedplate.journal.record import rows_of

_log = logging.getLogger(__name__)

_BATCH_RECORDS = 4096
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0
_SIGN_PAUSE_MAX_S = 60.0


class Group(NamedTuple):
    """Records that must become durable together, and the contents that they name."""

    records: list[Record]
    contents: list[Content]


@dataclass(slots=True)
class CommitStats:
    """What the writer did so far. `wait_ns` sums, over commits, the age of the oldest record."""

    commits: int = 0
    records: int = 0
    append_ns: int = 0
    failures: int = 0
    batch_max: int = 0


@dataclass(slots=True)
class Hooks:
    """What the committer tells its owner, always in the loop's thread.

    `stalled(on)`: records wait too long, or no longer do. `crashed(error)`: the journal raised what
    no retry can heal; the writer has ended.
    """

    stalled: Callable[[bool], None]
    crashed: Callable[[BaseException], None]


@dataclass(order=True, slots=True)
class _Waiter:
    seq: int
    future: asyncio.Future[None] = field(compare=False)


class Committer:
    """The way of records to disk. All methods belong to the loop's thread."""

    def __init__(
        self, journal: Journal, hooks: Hooks, *, stall_s: float = 2.0, idle_s: float = 1.0
    ) -> None:
        self.stats = CommitStats()
        self.stalled = False
        self.durable = journal.next_seq - 1
        """Highest sequence number that is durable."""
        self.published = self.durable
        """Highest sequence number that was handed to the writer."""
        self._journal = journal
        self._hooks = hooks
        self._stall_s = stall_s
        self._idle_s = idle_s
        self._groups: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        self._waiters: list[_Waiter] = []
        self._pending_since: float | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._resumed: asyncio.Future[None] | None = None
        self._give_up = threading.Event()
        self._crash: JournalError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the writer thread; call once, from the running loop."""
        assert self._thread is None, "the committer runs already"
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, name="journal-writer", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Records that are not durable yet."""
        return self.published - self.durable

    def publish(self, group: Group) -> None:
        """Hand a group over; its first sequence number follows the last one published."""
        records = group.records
        assert records, "a group holds at least one record"
        assert records[0].seq == self.published + 1, "sequence numbers are contiguous"
        self.published = records[-1].seq
        if self._pending_since is None:
            assert self._loop is not None, "start the committer first"
            self._pending_since = self._loop.time()
            if self._watch is None:
                self._watch = self._loop.call_later(self._stall_s, self._check_age)
        self._groups.put(group)

    async def committed(self, seq: int) -> None:
        """Return once record `seq` is durable.

        Raises:
            JournalError: the writer ended before that.
        """
        if seq <= self.durable:
            return
        if self._crash is not None:
            raise self._crash
        assert self._loop is not None, "start the committer first"
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiters, _Waiter(seq, future))
        await future

    async def flowing(self) -> None:
        """Return once the journal is not stalled."""
        while self.stalled:
            if self._crash is not None:
                raise self._crash
            assert self._loop is not None, "start the committer first"
            if self._resumed is None:
                self._resumed = self._loop.create_future()
            await asyncio.shield(self._resumed)

    async def close(self, *, timeout_s: float = 10.0) -> bool:
        """Make everything durable and end the writer; False if it could not within `timeout_s`."""
        thread = self._thread
        if thread is None:
            return True
        self._groups.put(None)
        await asyncio.to_thread(thread.join, timeout_s)
        if thread.is_alive():
            self._give_up.set()
            await asyncio.to_thread(thread.join, _RETRY_MAX_S)
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.sleep(0)
        if self.durable == self.published:
            return True
        self._fail(JournalError(f"records from {self.durable + 1} on could not be made durable"))
        return False

    # In the writer's thread.

    def _write(self) -> None:
        try:
            while True:
                group = self._next_group()
                if group is None:
                    return
                ending = self._append_with(group)
                if ending or self._give_up.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 (the loop is told, and halts)
            _log.critical("the journal writer ended: %r", error)
            self._call(self._on_crash, error)

    def _next_group(self) -> Group | None:
        """Wait for a group, and sign what was appended when none comes; None is the end."""
        pause_s = self._idle_s
        while True:
            try:
                return self._groups.get(timeout=pause_s)
            except queue.Empty:
                pass
            try:
                self._journal.checkpoint()
                return self._groups.get()
            except (JournalError, OSError) as error:
                _log.error("journal: its tail could not be signed yet: %s", error)
                pause_s = min(2 * pause_s, _SIGN_PAUSE_MAX_S)

    def _append_with(self, group: Group) -> bool:
        """Append this group and all that wait behind it; True when the end was among them."""
        records, contents = group.records, group.contents
        ending = False
        while len(records) < _BATCH_RECORDS:
            try:
                more = self._groups.get_nowait()
            except queue.Empty:
                break
            if more is None:
                ending = True
                break
            records.extend(more.records)
            contents.extend(more.contents)
        self._append(records, contents)
        return ending

    def _append(self, records: list[Record], contents: list[Content]) -> None:
        pause_s = _RETRY_FIRST_S
        while True:
            began_ns = time.monotonic_ns()
            try:
                self._journal.append(records, contents)
                took_ns = time.monotonic_ns() - began_ns
                self._call(self._on_durable, records[-1].seq, len(records), took_ns)
                return
            except (JournalError, OSError) as error:
                rows_of(records)  # a record that cannot be encoded is a bug: no retry heals it
                _log.error("journal: append failed, trying again in %.1f s: %s", pause_s, error)
                self._call(self._on_failure)
                if self._give_up.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, _RETRY_MAX_S)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    # In the loop's thread.

    def _on_durable(self, seq: int, records: int, took_ns: int) -> None:
        self.durable = seq
        stats = self.stats
        stats.commits += 1
        stats.records += records
        stats.append_ns += took_ns
        stats.batch_max = max(stats.batch_max, records)
        assert self._loop is not None
        self._pending_since = None if seq == self.published else self._loop.time()
        waiters = self._waiters
        while waiters and waiters[0].seq <= seq:
            future = heapq.heappop(waiters).future
            if not future.done():
                future.set_result(None)
        if self.stalled and took_ns < self._stall_s * SECOND_NS:
            self._set_stalled(False)

    def _on_failure(self) -> None:
        self.stats.failures += 1
        self._set_stalled(True)

    def _on_crash(self, error: BaseException) -> None:
        self._fail(JournalError(f"the journal cannot be written: {error}"))
        self._hooks.crashed(error)

    def _fail(self, error: JournalError) -> None:
        """Let nobody wait for what will not become durable."""
        self._crash = error
        futures = [waiter.future for waiter in self._waiters]
        self._waiters.clear()
        if self._resumed is not None:
            futures.append(self._resumed)
            self._resumed = None
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def _check_age(self) -> None:
        assert self._loop is not None
        self._watch = None
        if self._pending_since is None:
            return
        left_s = self._pending_since + self._stall_s - self._loop.time()
        if left_s <= 0:
            self._set_stalled(True)
            left_s = self._stall_s
        self._watch = self._loop.call_later(left_s, self._check_age)

    def _set_stalled(self, on: bool) -> None:
        if on != self.stalled:
            self.stalled = on
            if not on and self._resumed is not None:
                self._resumed.set_result(None)
                self._resumed = None
            self._hooks.stalled(on)
