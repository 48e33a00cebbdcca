"""Runs of records that are verified apart, by one process or several, show what one walk shows."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from bedplate.errors import ChainBroken, JournalError
from bedplate.journal import Content, Journal, Record, content_hash, verify
from bedplate.journal import checkpoint as notes
from bedplate.journal import verify as verify_journal
from bedplate.journal.checkpoint import Checkpoint
from bedplate.journal.keys import Signer, Verifier
from bedplate.journal.record import leaf_hashes, rows_of
from bedplate.journal.storage import DATABASE_FILE, Storage
from bedplate.journal.tree import Frontier
from bedplate.journal.verify import PROCESSES_MAX, _others
from bedplate.journal.verify_process import VerifyProcess
from bedplate.journal.verify_run import Citation, Job, Run, Walked, Walker
from tests.unit.journal.builders import ORIGIN, citing, records, written

BATCH = 50
SIZE = 8 * BATCH
SEAM = 4 * BATCH
WAIT_S = 30.0
"""With runs of at least this many records, there are two, and they meet here."""
STEP_NS = 1_000_000_000 // BATCH
"""Each batch takes a second, so each is signed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written(tmp_path, [BATCH] * 8, step_ns=STEP_NS)
    return tmp_path


@pytest.fixture(params=[1, 2], ids=["one process", "two processes"])
def processes(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


def tamper(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize("run_records", [1, BATCH, BATCH + 1, SEAM, SIZE - 1, SIZE, 10 * SIZE])
def test_however_it_is_cut_the_report_is_the_same(folder: Path, run_records: int) -> None:
    whole = verify(folder, run_records=10 * SIZE, processes=1)
    assert (whole.size, whole.checkpoints, whole.unsigned) == (SIZE, 8, 0)
    for processes in (1, 3):
        assert verify(folder, run_records=run_records, processes=processes, deep=True) == whole


@pytest.mark.parametrize(
    "statements",
    [
        *(
            [f"UPDATE record SET {change} WHERE seq = {seq}"]
            for seq in (SEAM - 1, SEAM)
            for change in ("body = x'7b7d'", "time_ns = time_ns + 1", "tenant = 'x'")
        ),
        [f"DELETE FROM record WHERE seq = {SEAM - 1}"],
        [f"DELETE FROM record WHERE seq = {SEAM}"],
        [
            f"UPDATE record SET seq = 9999 WHERE seq = {SEAM}",
            f"UPDATE record SET seq = {SEAM} WHERE seq = {SEAM - 1}",
            f"UPDATE record SET seq = {SEAM - 1} WHERE seq = 9999",
        ],
        *(
            [
                f"UPDATE checkpoint SET {column} = (SELECT {column} FROM checkpoint "
                f"WHERE size = {SEAM + step}) WHERE size = {SEAM}"
            ]
            for column in ("note", "frontier")
            for step in (-BATCH, BATCH)
        ),
        [f"UPDATE checkpoint SET frontier = x'' WHERE size = {SEAM}"],
        [f"UPDATE checkpoint SET frontier = zeroblob(length(frontier)) WHERE size = {SEAM}"],
        [f"UPDATE checkpoint SET frontier = zeroblob(length(frontier)) WHERE size = {BATCH}"],
        [f"UPDATE checkpoint SET frontier = zeroblob(length(frontier)) WHERE size = {SIZE}"],
        [f"UPDATE checkpoint SET size = {SEAM + 1} WHERE size = {SEAM}"],
        [f"UPDATE checkpoint SET note = x'00' WHERE size = {SEAM}"],
        [f"DELETE FROM checkpoint WHERE size > {SEAM}"],
        [f"DELETE FROM checkpoint WHERE size > {SIZE - BATCH}"],
    ],
)
def test_a_change_at_a_seam_shows(folder: Path, statements: Sequence[str], processes: int) -> None:
    tamper(folder, *statements)
    for run_records in (BATCH, SEAM):
        with pytest.raises(JournalError):
            verify(folder, processes=processes, run_records=run_records)


def test_records_rewritten_with_all_frontiers_show(folder: Path, processes: int) -> None:
    """The run after the seam begins with a frontier that fits the new records; nobody signed it."""
    frontier = Frontier()
    made = rows_of(
        record._replace(tenant="wealth") if record.seq == 7 else record
        for record in records(SIZE, step_ns=STEP_NS)
    )
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        database.execute("UPDATE record SET tenant = 'wealth' WHERE seq = 7")
        for end in range(BATCH, SIZE + 1, BATCH):
            frontier.extend(leaf_hashes(made[end - BATCH : end]))
            database.execute(
                "UPDATE checkpoint SET frontier = ? WHERE size = ?", (frontier.pack(), end)
            )
    with pytest.raises(ChainBroken, match=f"records 0 to {BATCH - 1} do not match"):
        verify(folder, processes=processes, run_records=SEAM)
    tamper(folder, f"DELETE FROM checkpoint WHERE size < {SEAM}")
    with pytest.raises(ChainBroken, match=f"records 0 to {SEAM - 1} do not match"):
        verify(folder, processes=processes, run_records=SEAM)


def test_a_run_alone_begins_only_with_what_was_signed(folder: Path) -> None:
    key = str(Verifier.load(folder))
    job = Job(os.fsencode(folder), ORIGIN, key, SIZE, None, deep=False)
    run = Run(SEAM, SIZE)
    tamper(folder, "UPDATE record SET tenant = 'wealth' WHERE seq = 7")  # in another run
    assert Walker(Storage.read_only(folder), job).walk(run, cites=False)[0].checkpoints == 4
    tamper(
        folder, f"UPDATE checkpoint SET frontier = zeroblob(length(frontier)) WHERE size = {SEAM}"
    )
    with pytest.raises(ChainBroken, match=f"size {SEAM}: the stored frontier has another root"):
        Walker(Storage.read_only(folder), job).walk(run, cites=False)


def test_a_checkpoint_taken_away_moves_the_seam(folder: Path, processes: int) -> None:
    tamper(folder, f"DELETE FROM checkpoint WHERE size = {SEAM}")
    assert verify(folder, processes=processes, run_records=SEAM).checkpoints == 7


def signed(folder: Path, made: Sequence[Record], sizes: Sequence[int]) -> Signer:
    """Write records that a writer would refuse, with true checkpoints at these sizes."""
    signer = Signer.create(ORIGIN)
    with Journal.open(folder, origin=ORIGIN, signer=signer) as journal:
        frontier, rows = Frontier(), rows_of(made)
        for start, end in zip((0, *sizes), sizes, strict=False):
            frontier.extend(leaf_hashes(rows[start:end]))
            journal._storage.add(rows[start:end], (), journal._sign(frontier))
        journal._frontier, journal._signed_size = frontier, frontier.size
    return signer


@pytest.mark.parametrize("at", [3, 4, 5])
def test_time_that_falls_across_a_seam_shows(tmp_path: Path, at: int, processes: int) -> None:
    made = [
        record._replace(time_ns=record.time_ns - (10_000_000 if record.seq >= at else 0))
        for record in records(8)
    ]
    signer = signed(tmp_path, made, [4, 8])
    for run_records in (1, 8):
        with pytest.raises(ChainBroken, match="time falls between records"):
            verify(tmp_path, key=signer.verifier, processes=processes, run_records=run_records)


def test_a_checkpoint_from_outside_is_compared_in_whichever_run_it_falls(
    folder: Path, processes: int
) -> None:
    signer = Signer.open(folder, ORIGIN, create=False)
    rows = rows_of(records(SIZE, step_ns=STEP_NS))
    for size in (0, 1, SEAM - 1, SEAM, SEAM + 1, SIZE - 1, SIZE):
        frontier = Frontier()
        frontier.extend(leaf_hashes(rows[:size]))
        good = notes.sign(Checkpoint(ORIGIN, size, frontier.root()), signer)
        forged = notes.sign(Checkpoint(ORIGIN, size, bytes(32)), signer)
        report = verify(folder, checkpoint=good, processes=processes, run_records=SEAM)
        assert report.external_size == size
        with pytest.raises(ChainBroken, match="do not match the checkpoint given"):
            verify(folder, checkpoint=forged, processes=processes, run_records=SEAM)


def test_contents_are_found_in_whichever_run_cites_them(tmp_path: Path, processes: int) -> None:
    kept = [Content(content_hash(b"%d" % n), "t", "s", b"%d" % n) for n in range(40)]
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        for seq, cited in enumerate(kept):
            journal.append([citing(seq, cited)], [cited])
            journal.checkpoint()
    assert verify(tmp_path, processes=processes, run_records=5).contents == 40
    stray = content_hash(b"stray")
    tamper(tmp_path, f"INSERT INTO content VALUES ('t', 's', '{stray}', x'{b'stray'.hex()}')")
    with pytest.raises(ChainBroken, match=f"content {stray} .* is cited by no record"):
        verify(tmp_path, processes=processes, run_records=5)


@pytest.mark.parametrize(
    "body",
    [b'{"hashes":7}', b'{"hashes":[[]]}', b'{"hashes"', b"[" * 9_000, b'{"hashes":["\xff"]}'],
)
def test_a_citing_body_that_makes_no_sense_is_named(
    tmp_path: Path, body: bytes, processes: int
) -> None:
    """It is read before the checkpoint that covers it, more than a page on, can tell."""
    cited = Content(content_hash(b""), "t", "s", b"")
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append([citing(0, cited), *records(3_000, start=1, step_ns=1)], [cited])
        journal.append(records(5_000, start=3_001, step_ns=1))
    tamper(tmp_path, f"UPDATE record SET body = x'{body.hex()}' WHERE seq = 0")
    with pytest.raises(ChainBroken, match="the body of record 0 cannot be read"):
        verify(tmp_path, processes=processes, run_records=2_000)


def test_of_several_changes_the_first_is_named(folder: Path, processes: int) -> None:
    tamper(folder, "UPDATE record SET body = x'7b7d' WHERE seq IN (60, 110, 260, 390)")
    for _ in range(3):
        with pytest.raises(ChainBroken, match=f"records {BATCH} to {2 * BATCH - 1} do not match"):
            verify(folder, processes=processes, run_records=1)


def test_it_verifies_while_it_is_written(tmp_path: Path, processes: int) -> None:
    rounds = 40

    def write() -> None:
        with Journal.open(tmp_path, origin=ORIGIN) as journal:
            for start in range(0, 10 * rounds, 10):
                data = b"%d" % start
                made = Content(content_hash(data), "t", "s", data)
                journal.append([citing(start, made), *records(9, start=start + 1)], [made])
                journal.checkpoint()

    Journal.open(tmp_path, origin=ORIGIN).close()
    writer = threading.Thread(target=write)
    writer.start()
    sizes = []
    while writer.is_alive():
        report = verify(tmp_path, processes=processes, run_records=10)
        sizes.append(report.size)
        assert report.contents * 10 <= report.size
    assert sizes == sorted(sizes)
    report = verify(tmp_path, processes=processes, run_records=10)
    assert (report.size, report.contents) == (10 * rounds, rounds)


def test_progress_rises_to_the_whole(folder: Path, processes: int) -> None:
    told: list[tuple[int, int]] = []
    verify(
        folder,
        processes=processes,
        run_records=BATCH,
        progress=lambda done, size: told.append((done, size)),
    )
    assert told == sorted(told)
    assert told[-1] == (SIZE, SIZE)


# When a process does not live to answer.


class Watched(VerifyProcess):
    """Kept, so that the test can see what became of it."""

    made: list[Watched]
    struck: threading.Event

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def strike(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.struck.set()


class KilledBefore(Watched):
    def walk(self, run: Run, *, cites: bool) -> tuple[Walked, list[Citation]]:
        self.strike()
        return super().walk(run, cites=cites)


class KilledAtSecondRun(Watched):
    def walk(self, run: Run, *, cites: bool) -> tuple[Walked, list[Citation]]:
        if run.start >= SEAM:
            self.strike()
        return super().walk(run, cites=cites)


def use(monkeypatch: pytest.MonkeyPatch, kind: type[Watched]) -> list[Watched]:
    kind.made, kind.struck = [], threading.Event()
    monkeypatch.setattr(sys.modules[verify_journal.__module__], "VerifyProcess", kind)
    return kind.made


def gone(made: Sequence[Watched]) -> bool:
    return all(not Path(f"/proc/{process.pid}").exists() for process in made)


@pytest.mark.parametrize("kind", [KilledBefore, KilledAtSecondRun])
def test_a_killed_process_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Watched]
) -> None:
    made = use(monkeypatch, kind)

    def after_the_strike(done: int, size: int) -> None:
        """Keep this process from taking all runs before the other one had its own."""
        assert kind.struck.wait(WAIT_S)

    with pytest.raises(JournalError, match=r"ended early \(signal 9\).*verify again"):
        verify(folder, processes=2, run_records=1, progress=after_the_strike)
    assert len(made) == 1
    assert gone(made)


def test_a_process_that_cannot_begin_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(JournalError, match=r"ended early \(exit status 1\)"):
        verify(folder, processes=2, run_records=1)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(JournalError, match="cannot start a process"):
        verify(folder, processes=2, run_records=1)


def test_whoever_interrupts_it_leaves_no_process_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use(monkeypatch, Watched)

    def interrupt(done: int, size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(folder, processes=3, run_records=1, progress=interrupt)
    assert len(made) == 2
    assert gone(made)


def test_small_journals_start_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = use(monkeypatch, Watched)
    verify(folder, processes=4)
    verify(folder, processes=1, run_records=1)
    assert made == []


def test_by_default_each_usable_core_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = use(monkeypatch, Watched)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3})
    verify(folder, run_records=1)
    assert len(made) == 1
    for cores, others in ((1, 0), (4, 3), (PROCESSES_MAX, 7), (64, 7)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, count=cores: set(range(count)))
        assert _others(1_000, None, 10) == others
