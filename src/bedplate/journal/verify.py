"""Verify a whole journal offline: records, tree, checkpoints, contents.

What is checked: seq counts from 0 without a gap and time never falls; every stored checkpoint is
signed by the key, and its root and the subtree roots stored with it are those of the tree over the
stored bytes; the unsigned tail is no longer than the writer ever leaves one; every content still in
store has the hash that is its name, and is cited by a record of its own session; a checkpoint from
outside is signed, and is a prefix of what is here. With `deep`, every body is also decoded and must
encode to the same bytes, and SQLite checks its indices.

What no check inside the file can show is a journal cut back to one of its own checkpoints, or one
made anew with a new key: only a checkpoint, and the verifier key, kept outside show those.

The records are verified in runs (`verify_run` says why that is enough), which this process and one
more for each further core take in order. How much there is, is read once, so a writer may go on.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from bedplate.errors import BedplateError, ChainBroken, Truncated
from bedplate.journal import checkpoint as notes
from bedplate.journal.checkpoint import Checkpoint
from bedplate.journal.keys import Verifier
from bedplate.journal.reader import check_format
from bedplate.journal.record import content_hash
from bedplate.journal.storage import Storage
from bedplate.journal.store import CHECKPOINT_NS, CHECKPOINT_RECORDS
from bedplate.journal.verify_process import VerifyProcess
from bedplate.journal.verify_run import Citation, Job, Run, Signed, Walked, Walker

Progress = Callable[[int, int], None]
"""Told now and then: records verified so far, records in all."""

RUN_RECORDS = 8_192
"""Least of a run: some 40 ms, so that no core is without work for long at the end."""
RUNS_MIN = 4
"""With fewer, another process would only just have started when there is nothing left to do."""
PROCESSES_MAX = 8
_TELL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Report:
    """A journal that verified.

    `checkpoints` counts stored ones. `unsigned` counts records after the newest. `external_size` is
    the size of the checkpoint from outside, None when none was given.
    """

    origin: str
    key: str
    size: int
    root: bytes
    checkpoints: int
    unsigned: int
    contents: int
    external_size: int | None


def verify(
    folder: Path,
    *,
    checkpoint: bytes | None = None,
    key: Verifier | None = None,
    deep: bool = False,
    progress: Progress | None = None,
    processes: int | None = None,
    run_records: int = RUN_RECORDS,
) -> Report:
    """Verify the journal in `folder`; a writer may be appending to it.

    Args:
        folder: The journal's folder, or a copy of it.
        checkpoint: A signed checkpoint that was kept outside.
        key: The verifier key, kept outside; by default the one beside the journal.
        deep: Also decode and encode every body, and let SQLite check its pages and indices.
        progress: Told after each run of records.
        processes: How many verify at once, this one among them; by default one for each core that
            may be used, at most 8. A journal of fewer than 4 runs is always verified by this one.
        run_records: Least number of records of a run but the last.

    Raises:
        ChainBroken: something was changed; the message says where.
        Truncated: records that a checkpoint covers are missing.
        JournalError: there is no journal here, or it or the checkpoint cannot be read; or one of
            the processes ended early.

    Cost: some 5 µs a record of one core, 0.15 ms a checkpoint; `deep` as much again, shared among
    the processes. Each further one takes 0.15 s to start, and 40 MB. Memory: some 200 bytes for
    each content in store.
    """
    assert run_records > 0
    assert processes is None or processes > 0
    key = Verifier.load(folder) if key is None else key
    external = None if checkpoint is None else notes.verify(checkpoint, key)
    with ExitStack() as opened:
        storage = Storage.read_only(folder)
        opened.callback(storage.close)
        origin = check_format(storage, folder)
        storage.check_tables()
        others = [
            opened.enter_context(VerifyProcess())
            for _ in range(_others(storage.size(), processes, run_records))
        ]
        contents = _Contents(storage)  # before the extent, for a writer may be adding to both
        size, covered = _extent(storage, origin, external)
        job = Job(os.fsencode(folder), origin, str(key), covered, external, deep)
        crew = _Crew(_runs(storage, size, covered, run_records), contents, progress)
        for other in others:
            other.begin(job)
        with crew.beside(others):
            if deep:
                storage.check_integrity()
            crew.work(Walker(storage, job))
        walked = crew.walked()
    signed_size = _join(walked)
    contents.finish()
    return Report(
        origin=origin,
        key=str(key),
        size=size,
        root=walked[-1].root,
        checkpoints=sum(part.checkpoints for part in walked),
        unsigned=size - signed_size,
        contents=contents.count,
        external_size=None if external is None else external.size,
    )


def _others(size: int, processes: int | None, run_records: int) -> int:
    """Return how many processes to start beside this one."""
    if processes is None:
        processes = min(_cores(), PROCESSES_MAX)
    return min(processes, size // run_records) - 1 if size >= RUNS_MIN * run_records else 0


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _extent(storage: Storage, origin: str, external: Checkpoint | None) -> tuple[int, int]:
    """Return how many records there are now, and how many of them a stored checkpoint covers."""
    size, covered = storage.extent()
    if storage.has_below_zero():
        raise ChainBroken("there are records or checkpoints before record 0: they were added")
    if size < covered:
        raise Truncated(f"the journal ends at {size}, a stored checkpoint covers {covered}")
    if external is not None:
        if external.origin != origin:
            raise ChainBroken(
                f"the checkpoint given is of {external.origin!r}, the journal is of {origin!r}"
            )
        if size < external.size:
            raise Truncated(
                f"the journal ends at record {size}, the checkpoint given covers "
                f"{external.size}: the tail is missing"
            )
    return size, covered


def _runs(storage: Storage, size: int, covered: int, run_records: int) -> list[Run]:
    """Cut the records into runs, at checkpoints. There is always one, if only of no records."""
    runs: list[Run] = []
    start = 0
    while (end := storage.mark_size(start + run_records)) is not None:
        if end > covered or end >= size:
            break
        runs.append(Run(start, end))
        start = end
    return [*runs, Run(start, size)]


def _join(walked: Sequence[Walked]) -> int:
    """Check what shows only where runs meet or end; return the size of the newest checkpoint."""
    size = time_ns = 0
    signed = Signed(0, 0)
    for part in walked:
        assert part.run.start == size, f"no run from {size} on was verified"
        assert part is walked[-1] or (part.signed and part.signed.size == part.run.end)
        if part.first_time_ns < time_ns:
            raise ChainBroken(f"time falls between records {size - 1} and {size}")
        size, time_ns = part.run.end, part.last_time_ns
        signed = signed if part.signed is None else part.signed
    unsigned = size - signed.size
    if size and (
        signed.size == 0
        or unsigned >= CHECKPOINT_RECORDS
        or time_ns - signed.time_ns >= CHECKPOINT_NS
    ):
        raise ChainBroken(
            f"the last {unsigned} records have no checkpoint, though one was due: checkpoints "
            "were taken away"
        )
    return signed.size


class _Crew:
    """Hands the runs out in order, to this process and to others beside it.

    So when a run fails, all before it were handed out too: they are waited for, and the error is
    that of the first run that fails, as if one process had walked alone.
    """

    def __init__(self, runs: Sequence[Run], contents: _Contents, progress: Progress | None) -> None:
        self._runs = runs
        self._contents = contents
        self._progress = progress
        self._todo = deque(enumerate(runs))
        self._lock = Lock()
        self._walked: dict[int, Walked] = {}
        self._failed: dict[int, BedplateError] = {}
        self._done = 0

    @contextmanager
    def beside(self, others: Sequence[VerifyProcess]) -> Iterator[None]:
        """Have the others work during the body, and wait for them after it."""
        if not others:
            yield
            return
        with ThreadPoolExecutor(len(others)) as pool:
            works = [pool.submit(self._work, other) for other in others]
            try:
                yield
                while wait(works, timeout=_TELL_SECONDS).not_done:
                    self._tell()
            finally:  # where the body failed, nothing more is wanted of them
                self._todo.clear()
                for other in others:
                    other.end()
        for work in works:
            work.result()
        self._tell()

    def work(self, walker: Walker) -> None:
        """Verify runs in this process until there are none left."""
        self._work(walker, tell=self._tell)

    def walked(self) -> list[Walked]:
        """Return all runs, in order.

        Raises:
            ChainBroken, JournalError: of the first run that does not hold.
        """
        if self._failed:
            raise self._failed[min(self._failed)]
        return [self._walked[index] for index in range(len(self._runs))]

    def _work(self, walker: Walker | VerifyProcess, tell: Callable[[], None] | None = None) -> None:
        while True:
            try:
                index, run = self._todo.popleft()
            except IndexError:
                return
            try:
                walked, cited = walker.walk(run, cites=bool(self._contents.left))
            except BedplateError as error:
                self._failed[index] = error
                self._todo.clear()
                return
            with self._lock:
                self._contents.cite(cited)
                self._done += run.end - run.start
            self._walked[index] = walked
            if tell is not None:
                tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._runs[-1].end)


class _Contents:
    """The contents in store when it was made, less those that a record was found to cite."""

    def __init__(self, storage: Storage) -> None:
        """Read all contents.

        Raises:
            ChainBroken: one does not have the hash that is its name.
        """
        self.count = 0
        self.left: dict[tuple[str, str], set[str]] = {}
        for name, tenant, session, data in storage.contents():
            found = content_hash(data)
            if found != name:
                raise ChainBroken(
                    f"content {name} of session {session} was changed: it hashes to {found}"
                )
            self.left.setdefault((tenant, session), set()).add(name)
            self.count += 1

    def cite(self, cited: Iterable[Citation]) -> None:
        """Cross out what records cite."""
        for tenant, session, hashes in cited:
            owner = tenant, session
            if (left := self.left.get(owner)) is not None:
                left.difference_update(hashes)
                if not left:
                    del self.left[owner]

    def finish(self) -> None:
        """Raise ChainBroken when there are contents that no record of their session cites."""
        for (tenant, session), left in self.left.items():
            raise ChainBroken(
                f"content {min(left)} of tenant {tenant!r}, session {session!r} is cited by no "
                "record of that session: it was added or moved"
            )
