"""A killed writer, a full disk, a torn WAL: with real processes and files."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bedplate.journal import Journal, Reader, verify
from bedplate.journal.storage import DATABASE_FILE
from bedplate.journal.store import LOCK_FILE
from tests.unit.journal.builders import ORIGIN, records, written

BATCH = 7
WRITER = """
import sys
from pathlib import Path
from bedplate.journal import Journal
from tests.unit.journal.builders import ORIGIN, records
with Journal.open(Path(sys.argv[1]), origin=ORIGIN) as journal:
    while True:
        seq = journal.next_seq
        journal.append(records({batch}, start=seq, step_ns=1000))
        print(journal.next_seq, flush=True)
"""
SMALL_DISK = """
import resource, signal, sys
from pathlib import Path
from bedplate.errors import JournalError
from bedplate.journal import Journal
from tests.unit.journal.builders import ORIGIN, records
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Journal.open(Path(sys.argv[1]), origin=ORIGIN) as journal:
    journal.append(records(100))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    failures = 0
    for _ in range(3):
        try:
            journal.append(records(20_000, start=100))
        except JournalError as error:
            failures += 1
    assert failures == 3, failures
    assert journal.next_seq == 100
    assert sum(1 for _ in journal.read()) == 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.append(records(20_000, start=100))
"""


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
    )


@pytest.mark.parametrize("acknowledged", [1, 20, 190])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(
    tmp_path: Path, acknowledged: int
) -> None:
    writer = start(WRITER.format(batch=BATCH), tmp_path)
    assert writer.stdout is not None
    promised = 0
    for _ in range(acknowledged):
        promised = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    promised = max([promised, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    writer.wait()

    assert verify(tmp_path).size >= promised
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        size = journal.next_seq
        assert size >= promised
        assert size % BATCH == 0, "a batch is there whole or not at all"
        assert list(journal.read()) == records(size, step_ns=1000)
        journal.append(records(1, start=size, step_ns=1000))
    assert verify(tmp_path, deep=True).size == size + 1


def test_a_failed_write_stores_nothing_and_the_next_may_succeed(tmp_path: Path) -> None:
    writer = start(SMALL_DISK, tmp_path)
    writer.communicate()
    assert writer.returncode == 0
    assert verify(tmp_path, deep=True).size == 20_100


def test_a_torn_wal_is_cut_back_to_whole_batches(tmp_path: Path) -> None:
    """What a power cut may leave: the last pages of the WAL are missing or garbage."""
    journal = Journal.open(tmp_path / "live", origin=ORIGIN)
    for seq in range(0, 40 * BATCH, BATCH):
        journal.append(records(BATCH, start=seq, step_ns=1000))
    image = tmp_path / "image"
    shutil.copytree(tmp_path / "live", image)
    journal.close()
    wal = (image / f"{DATABASE_FILE}-wal").read_bytes()
    assert wal, "the batches are still in the WAL"
    draw = random.Random(7)
    for number in range(12):
        crashed = tmp_path / f"crashed-{number}"
        shutil.copytree(image, crashed)
        (crashed / f"{DATABASE_FILE}-shm").unlink()
        (crashed / LOCK_FILE).unlink()  # was never synced
        at = draw.randrange(len(wal) // 2, len(wal))
        torn = wal[:at] + (draw.randbytes(len(wal) - at) if number % 2 else b"")
        (crashed / f"{DATABASE_FILE}-wal").write_bytes(torn)
        with Journal.open(crashed, origin=ORIGIN) as again:
            size = again.next_seq
            assert size % BATCH == 0
            assert 0 < size < 40 * BATCH
            assert list(again.read()) == records(size, step_ns=1000)
            again.append(records(BATCH, start=size, step_ns=1000))
        assert verify(crashed, deep=True).size == size + BATCH


def test_a_reader_in_another_process_sees_a_growing_journal(tmp_path: Path) -> None:
    written(tmp_path, [BATCH], step_ns=1000)
    writer = start(WRITER.format(batch=BATCH), tmp_path)
    assert writer.stdout is not None
    try:
        size = 0
        with Reader(tmp_path) as reader:
            while size < 100 * BATCH:
                promised = int(writer.stdout.readline())
                size = sum(1 for _ in reader.read())
                assert size >= promised
                assert size % BATCH == 0
            assert verify(tmp_path).size >= size
    finally:
        writer.kill()
        writer.communicate()
