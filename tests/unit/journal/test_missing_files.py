"""A journal that lost a file is never begun anew in silence."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from bedplate.errors import ChainBroken, JournalError, Truncated
from bedplate.journal import Journal, Reader
from bedplate.journal.keys import KEY_FILE, PUBLIC_FILE
from bedplate.journal.storage import DATABASE_FILE, WAL_FILE
from bedplate.journal.store import LOCK_FILE
from tests.unit.journal.builders import ORIGIN, records, written


@pytest.mark.parametrize("left", [(), (KEY_FILE,), (PUBLIC_FILE,)])
@pytest.mark.parametrize("emptied", [False, True])
def test_a_key_without_its_database_begins_no_new_journal(
    tmp_path: Path, left: tuple[str, ...], emptied: bool
) -> None:
    written(tmp_path, [1])
    database = tmp_path / DATABASE_FILE
    if emptied:
        database.write_bytes(b"")
    else:
        database.unlink()
    for name in {KEY_FILE, PUBLIC_FILE} - set(left):
        (tmp_path / name).unlink()
    if left:
        with pytest.raises(Truncated, match=f"move {KEY_FILE} and {PUBLIC_FILE} away"):
            Journal.open(tmp_path, origin=ORIGIN)
        assert not database.exists() or not database.stat().st_size, "nothing was begun"
    else:
        with pytest.raises(Truncated, match="there were 1"):
            Journal.open(tmp_path, origin=ORIGIN)
        (tmp_path / LOCK_FILE).unlink()
        assert written(tmp_path, [2]) == records(2), "as the message says"


def killed(folder: Path, live: Path, *, without: tuple[str, ...] = ()) -> None:
    """Copy what a killed writer of `live` would leave, `without` some files."""
    shutil.copytree(live, folder, ignore=lambda _, names: set(without) & set(names))


def test_after_a_kill_the_wal_must_be_there(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "live", origin=ORIGIN) as journal:
        journal.append(records(3))
        killed(tmp_path / "whole", tmp_path / "live")
        killed(tmp_path / "first", tmp_path / "live", without=(WAL_FILE, f"{DATABASE_FILE}-shm"))
    with Journal.open(tmp_path / "live", origin=ORIGIN) as journal:
        journal.append(records(2, start=3))
        killed(tmp_path / "later", tmp_path / "live", without=(WAL_FILE, f"{DATABASE_FILE}-shm"))

    assert Journal.open(tmp_path / "whole", origin=ORIGIN).next_seq == 3
    for name, message in (
        ("first", "the key of a journal and no records"),
        ("later", f"has 3 records, there were 5: .*{WAL_FILE}"),
    ):
        with pytest.raises(Truncated, match=message):
            Journal.open(tmp_path / name, origin=ORIGIN)
    (tmp_path / "later" / LOCK_FILE).unlink()
    with Journal.open(tmp_path / "later", origin=ORIGIN) as journal:
        assert journal.next_seq == 3, "what the message says, knowingly"


def test_a_wal_that_another_program_folded_is_not_missed(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "live", origin=ORIGIN) as journal:
        journal.append(records(3))
        killed(tmp_path / "image", tmp_path / "live")
    database = sqlite3.connect(tmp_path / "image" / DATABASE_FILE)
    assert database.execute("SELECT count(*) FROM record").fetchone() == (3,)
    database.close()
    assert not (tmp_path / "image" / WAL_FILE).exists()
    with Journal.open(tmp_path / "image", origin=ORIGIN) as journal:
        assert journal.next_seq == 3


def test_a_refused_open_after_a_kill_loses_nothing(tmp_path: Path) -> None:
    """It folds the WAL, so the next open must not miss that."""
    with Journal.open(tmp_path / "live", origin=ORIGIN) as journal:
        journal.append(records(3))
        killed(tmp_path / "image", tmp_path / "live")
    with pytest.raises(JournalError, match="belongs to"):
        Journal.open(tmp_path / "image", origin="cell-2")
    with Reader(tmp_path / "image") as reader:
        assert reader.size == 3
    with Journal.open(tmp_path / "image", origin=ORIGIN) as journal:
        assert list(journal.read()) == records(3)


def test_a_journal_that_was_opened_and_never_written_opens_again(tmp_path: Path) -> None:
    Journal.open(tmp_path, origin=ORIGIN).close()
    assert written(tmp_path, [2]) == records(2)


def test_a_record_before_the_first_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [2])
    with sqlite3.connect(tmp_path / DATABASE_FILE) as database:
        database.execute("INSERT INTO record VALUES (-1, 0, 'core_changed', '', '', x'7b7d')")
    with pytest.raises(ChainBroken, match="before record 0"):
        Journal.open(tmp_path, origin=ORIGIN)
