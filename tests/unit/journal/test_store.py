from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from bedplate.errors import ChainBroken, JournalBusy, JournalError, Truncated
from bedplate.journal import Content, Journal, Reader, Record, content_hash, verify
from bedplate.journal import checkpoint as notes
from bedplate.journal.keys import KEY_FILE, Signer
from bedplate.journal.storage import DATABASE_FILE, Storage
from tests.conformance import naive_journal as naive
from tests.unit.journal.builders import ORIGIN, START_NS, citing, records, written


def content(data: bytes, *, tenant: str = "fraud", session: str = "s-0") -> Content:
    return Content(content_hash(data), tenant, session, data)


def test_what_is_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    made = written(tmp_path, [1, 7, 3])
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        assert journal.next_seq == 11
        assert journal.last_time_ns == made[-1].time_ns
        assert list(journal.read()) == made
        journal.append(records(2, start=11))
        assert list(journal.read(10)) == [made[10], *records(2, start=11)]
    assert verify(tmp_path).size == 13


def test_the_root_is_that_of_the_definition(tmp_path: Path) -> None:
    made = written(tmp_path, [5, 1, 14])
    leaves = [naive.leaf(naive.canonical(record._asdict())) for record in made]
    assert verify(tmp_path).root == naive.root(leaves)


def test_an_empty_journal_has_the_empty_root(tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        assert (journal.next_seq, journal.last_time_ns) == (0, 0)
        assert journal.last("usage") is None
        claim = notes.parse(journal.checkpoint())
    assert claim == notes.Checkpoint(ORIGIN, 0, naive.root([]))
    report = verify(tmp_path)
    assert (report.size, report.root, report.unsigned) == (0, naive.root([]), 0)
    assert written(tmp_path, [2]) == records(2)


def test_folder_and_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "journal"
    written(folder, [1])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600


def test_a_second_writer_is_refused_and_may_follow(tmp_path: Path) -> None:
    with (
        Journal.open(tmp_path, origin=ORIGIN),
        pytest.raises(JournalBusy, match=r"is being written by process \d+; stop it first$"),
    ):
        Journal.open(tmp_path, origin=ORIGIN)
    Journal.open(tmp_path, origin=ORIGIN).close()


def test_a_journal_keeps_its_origin(tmp_path: Path) -> None:
    written(tmp_path, [1])
    with pytest.raises(JournalError, match="belongs to 'cell-1', not to 'cell-2'"):
        Journal.open(tmp_path, origin="cell-2")
    Journal.open(tmp_path, origin=ORIGIN).close()


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [1])
    with sqlite3.connect(tmp_path / DATABASE_FILE) as database:
        database.execute("UPDATE meta SET value = '2' WHERE name = 'format'")
    with pytest.raises(JournalError, match="format 2"):
        Journal.open(tmp_path, origin=ORIGIN)
    with pytest.raises(JournalError, match="format 2"):
        Reader(tmp_path)


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_bytes(b"not a database" * 100)
    with pytest.raises(JournalError, match="SQLITE_NOTADB"):
        Journal.open(tmp_path, origin=ORIGIN)


def test_a_journal_whose_key_is_lost_is_not_written_with_a_new_one(tmp_path: Path) -> None:
    written(tmp_path, [1])
    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(JournalError, match="cannot read the journal's signing key"):
        Journal.open(tmp_path, origin=ORIGIN)


def test_a_key_may_come_from_elsewhere(tmp_path: Path) -> None:
    signer = Signer.create(ORIGIN)
    with Journal.open(tmp_path, origin=ORIGIN, signer=signer) as journal:
        journal.append(records(3))
    assert not (tmp_path / KEY_FILE).exists()
    assert verify(tmp_path, key=signer.verifier).size == 3


@pytest.mark.parametrize("seq", [0, 2, 4])
def test_a_gap_is_a_bug_of_the_caller(tmp_path: Path, seq: int) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append(records(3))
        with pytest.raises(AssertionError, match="where 3 is next"):
            journal.append(records(1, start=seq))
        assert journal.next_seq == 3


def test_falling_time_is_a_bug_of_the_caller(tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append(records(2))
        with pytest.raises(AssertionError, match="falls by 1 ns"):
            journal.append([Record(2, START_NS + 999_999, "note", "", "", {})])
        journal.append([Record(2, START_NS + 1_000_000, "note", "", "", {})])


def test_a_refused_batch_leaves_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        bad = Record(1, START_NS, "note", "", "", {"ratio": 0.5})
        with pytest.raises(JournalError, match="ratio"):
            journal.append([records(1)[0], bad], [content(b"x")])
        assert journal.next_seq == 0
        assert list(journal.read()) == []
        assert journal.content(content_hash(b"x")) is None
        journal.append(records(2))
    assert verify(tmp_path).size == 2


def sizes(folder: Path) -> list[int]:
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        return [row[0] for row in database.execute("SELECT size FROM checkpoint ORDER BY size")]


def test_a_checkpoint_comes_with_the_first_record_and_each_thousand(tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        for start in range(0, 2_600, 400):
            journal.append(records(400, start=start, step_ns=1))
        assert sizes(tmp_path) == [400, 1_600, 2_800]
    assert sizes(tmp_path) == [400, 1_600, 2_800]
    assert verify(tmp_path).checkpoints == 3


def test_a_checkpoint_comes_when_the_last_is_a_second_old(tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        for seq in range(9):
            journal.append(records(1, start=seq, step_ns=400_000_000))
        assert sizes(tmp_path) == [1, 4, 7]
        assert verify(tmp_path).unsigned == 2
    assert sizes(tmp_path) == [1, 4, 7, 9], "the last one at a clean end"


def test_a_checkpoint_on_request_is_made_once(tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append(records(3))
        first = journal.checkpoint()
        assert journal.checkpoint() == first
        journal.append(records(2, start=3))
        assert notes.parse(journal.checkpoint()).size == 5
    assert sizes(tmp_path) == [3, 5]


def test_opening_counts_on_from_an_unsigned_tail(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, origin=ORIGIN)
    journal.append(records(2))
    journal.append(records(600, start=2, step_ns=1_000_000))
    image = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    journal.close()
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name, data in image.items():
        (crashed / name).write_bytes(data)
    (crashed / KEY_FILE).chmod(0o600)
    with Journal.open(crashed, origin=ORIGIN) as again:
        assert again.next_seq == 602
        again.append(records(400, start=602))
    assert sizes(crashed) == [2, 1_002]
    assert verify(crashed).size == 1_002


def test_a_full_disk_stores_nothing_of_the_batch_and_is_not_for_ever(tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append(records(10))
        database = journal._storage._connection
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages + 2}")
        big = content(bytes(100_000))
        with pytest.raises(JournalError, match="no room") as caught:
            journal.append(records(50, start=10), [big])
        assert caught.value.code == "journal_full"
        assert caught.value.retryable is False
        assert journal.next_seq == 10
        assert list(journal.read()) == records(10)
        assert journal.content(big.hash) is None
        database.execute("PRAGMA max_page_count = 1000000")
        journal.append([*records(50, start=10), citing(60, big)], [big])
        assert journal.content(big.hash) == big.data
    assert verify(tmp_path, deep=True).size == 61


def test_contents_are_kept_apart_by_session_and_erased_alone(tmp_path: Path) -> None:
    shared, own = b"the same words", b"only here"
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        kept = [
            content(shared),
            content(own),
            content(shared, session="s-1"),
            content(shared, tenant="wealth"),
        ]
        notes = [citing(seq, cited) for seq, cited in enumerate(kept)]
        journal.append(notes[:2], [kept[0], *kept[:2]])
        journal.append(notes[2:3], kept[2:3])
        journal.append(notes[3:], kept[3:])
        assert journal.content(content_hash(shared)) == shared
        assert journal.content("0" * 64) is None
        assert verify(tmp_path).contents == 4

        assert journal.erase_content(tenant="fraud", session="s-9") == 0
        assert (
            journal.erase_content(tenant="fraud", session="s-0", content_hash=content_hash(own))
            == 1
        )
        assert journal.content(content_hash(own)) is None
        assert journal.erase_content(tenant="fraud", session="s-0") == 1
        assert journal.content(content_hash(shared)) == shared, "of the other sessions"
        assert verify(tmp_path).contents == 2
    assert verify(tmp_path).size == 4


def test_erased_bytes_are_gone_from_the_files(tmp_path: Path) -> None:
    secret = b"account 4711 of a customer"
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append(records(1), [content(secret * 1_000), content(b"kept")])
        journal.erase_content(
            tenant="fraud", session="s-0", content_hash=content_hash(secret * 1_000)
        )
        for path in tmp_path.iterdir():
            assert secret not in path.read_bytes(), path.name
        assert journal.content(content_hash(b"kept")) == b"kept"


def test_the_newest_of_a_kind_is_found(tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append(records(9))
        newest = journal.last("TokensEmitted")
        assert newest is not None
        assert newest.seq == 6
        plan = journal._storage._all(
            "EXPLAIN QUERY PLAN SELECT seq FROM record WHERE kind = ? ORDER BY seq DESC LIMIT 1",
            ("usage",),
        )
        assert "record_kind" in plan[0][3]


def test_any_thread_may_read_while_one_appends(tmp_path: Path) -> None:
    seen: list[int] = []
    failures: list[BaseException] = []

    def read(journal: Journal) -> None:
        try:
            while not seen or seen[-1] < 2_000:
                got = [record.seq for record in journal.read()]
                assert got == list(range(len(got)))
                assert len(got) % 50 == 0, "batches are seen whole"
                seen.append(len(got))
        except (AssertionError, JournalError) as error:
            failures.append(error)

    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        readers = [threading.Thread(target=read, args=(journal,)) for _ in range(2)]
        for reader in readers:
            reader.start()
        for start in range(0, 2_000, 50):
            journal.append(records(50, start=start))
        for reader in readers:
            reader.join(timeout=30)
    assert failures == []
    assert seen[-1] == 2_000


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, origin=ORIGIN)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.read()
    with pytest.raises(JournalError):
        journal.append(records(1))


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("DELETE FROM record WHERE seq > 2", Truncated),
        ("DELETE FROM checkpoint", ChainBroken),
        ("UPDATE checkpoint SET frontier = zeroblob(length(frontier))", ChainBroken),
        ("UPDATE checkpoint SET frontier = x'00'", ChainBroken),
        ("UPDATE checkpoint SET size = size - 1", ChainBroken),
        ("UPDATE checkpoint SET note = x'00'", JournalError),
    ],
)
def test_a_tail_that_does_not_fit_its_checkpoint_is_not_written_on(
    tmp_path: Path, statement: str, error: type[JournalError]
) -> None:
    written(tmp_path, [6])
    with sqlite3.connect(tmp_path / DATABASE_FILE) as database:
        database.execute(statement)
    with pytest.raises(error):
        Journal.open(tmp_path, origin=ORIGIN)
    with pytest.raises(error):
        Journal.open(tmp_path, origin=ORIGIN)  # the lock was given back


def test_a_hole_in_the_unsigned_tail_is_found_on_opening(tmp_path: Path) -> None:
    written(tmp_path, [2, 6])
    with sqlite3.connect(tmp_path / DATABASE_FILE) as database:
        database.execute("DELETE FROM checkpoint WHERE size = 8")
        database.execute("DELETE FROM record WHERE seq = 5")
    with pytest.raises(ChainBroken, match="where 5 is next"):
        Journal.open(tmp_path, origin=ORIGIN)


def test_after_a_failed_fsync_only_a_restart_goes_on(tmp_path: Path) -> None:
    class FailingDisk(Storage):
        def add(self, rows: object, contents: object, mark: object) -> None:
            raise JournalError("the disk failed", code="journal_fsync")

    journal = Journal.open(tmp_path, origin=ORIGIN)
    journal.append(records(1))
    journal.append(records(1, start=1))
    sound = journal._storage
    journal._storage = FailingDisk(sound._path, sound._connection)
    with pytest.raises(JournalError, match="the disk failed"):
        journal.append(records(1, start=2))
    journal._storage = sound
    with pytest.raises(JournalError, match="restart the service"):
        journal.append(records(1, start=2))
    with pytest.raises(JournalError, match="restart the service"):
        journal.checkpoint()
    journal.close()
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        assert journal.next_seq == 2
        journal.append(records(1, start=2))
