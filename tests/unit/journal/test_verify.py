from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bedplate.errors import ChainBroken, JournalError, Truncated
from bedplate.journal import Content, Journal, Reader, Record, Report, content_hash
from bedplate.journal import verify as verify_journal
from bedplate.journal.keys import PUBLIC_FILE, Signer, Verifier
from bedplate.journal.storage import DATABASE_FILE
from tests.unit.journal.builders import ORIGIN, START_NS, citing, records, written

Verify = Callable[..., Report]


@pytest.fixture(params=["one run", "a run for each checkpoint", "two processes"])
def verify(request: pytest.FixtureRequest) -> Verify:
    if request.param == "one run":
        return verify_journal
    processes = 2 if request.param == "two processes" else 1
    return partial(verify_journal, processes=processes, run_records=1)


def content(data: bytes, *, session: str) -> Content:
    return Content(content_hash(data), "t", session, data)


def checkpoint(folder: Path) -> bytes:
    with Reader(folder) as reader:
        note = reader.last_checkpoint()
        assert note is not None
        return note


def tamper(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        for statement in statements:
            database.execute(statement)


def test_a_sound_journal_verifies_and_is_described(verify: Verify, tmp_path: Path) -> None:
    written(tmp_path, [400, 700, 2])
    seen: list[tuple[int, int]] = []
    report = verify(
        tmp_path,
        checkpoint=checkpoint(tmp_path),
        deep=True,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert report.origin == ORIGIN
    assert report.key == str(Verifier.load(tmp_path))
    assert (report.size, report.checkpoints, report.unsigned) == (1_102, 2, 0)
    assert report.external_size == 1_102
    assert seen[-1] == (1_102, 1_102)


def test_it_verifies_while_it_is_written(verify: Verify, tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        for start in range(0, 900, 300):
            journal.append(records(300, start=start, step_ns=1))
            assert verify(tmp_path).size == start + 300


def test_an_older_checkpoint_from_outside_still_holds(verify: Verify, tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append(records(3))
        early = journal.checkpoint()
        journal.append(records(50, start=3))
    assert verify(tmp_path, checkpoint=early).external_size == 3


def test_a_cut_back_to_an_own_checkpoint_shows_only_from_outside(
    verify: Verify, tmp_path: Path
) -> None:
    written(tmp_path, [3, 1_200])
    outside = checkpoint(tmp_path)
    tamper(tmp_path, "DELETE FROM record WHERE seq >= 3", "DELETE FROM checkpoint WHERE size > 3")
    assert verify(tmp_path).size == 3
    with pytest.raises(Truncated, match="the checkpoint given covers 1203"):
        verify(tmp_path, checkpoint=outside)


def test_a_journal_made_anew_with_a_new_key_shows_only_from_outside(
    verify: Verify, tmp_path: Path
) -> None:
    written(tmp_path / "a", [5])
    outside, key = checkpoint(tmp_path / "a"), Verifier.load(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    written(tmp_path / "a", [6])
    assert verify(tmp_path / "a").size == 6
    with pytest.raises(ChainBroken, match="not signed by key"):
        verify(tmp_path / "a", checkpoint=outside)
    with pytest.raises(ChainBroken, match="not signed by key"):
        verify(tmp_path / "a", key=key)


def test_a_checkpoint_of_another_cell_is_told_from_ours(verify: Verify, tmp_path: Path) -> None:
    signer = Signer.create("cell-2")
    with Journal.open(tmp_path / "b", origin="cell-2", signer=signer) as journal:
        journal.append(records(1))
    written(tmp_path / "a", [1])
    with pytest.raises(ChainBroken, match="is of 'cell-2'"):
        verify(tmp_path / "a", checkpoint=checkpoint(tmp_path / "b"), key=signer.verifier)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE record SET body = '{}' WHERE seq = 7",
        "UPDATE record SET body = x'7b7d' WHERE seq = 7",
        "UPDATE record SET time_ns = time_ns + 1 WHERE seq = 7",
        "UPDATE record SET kind = 'usage' WHERE seq = 7",
        "UPDATE record SET tenant = 'wealth' WHERE seq = 7",
        "UPDATE record SET session = '' WHERE seq = 7",
        "UPDATE record SET seq = 2000 WHERE seq = 7",
        "UPDATE record SET seq = -1 WHERE seq = 7",
        "INSERT INTO record VALUES (-1, 0, 'note', '', '', x'7b7d')",
        "INSERT INTO record VALUES (-9223372036854775808, 0, 'note', '', '', x'7b7d')",
        "INSERT INTO record SELECT 9223372036854775807, time_ns, kind, tenant, session, body "
        "FROM record WHERE seq = 1202",
        "INSERT INTO checkpoint SELECT -2, note, frontier FROM checkpoint WHERE size = 2",
        "UPDATE record SET time_ns = 0 WHERE seq = 7",
        "UPDATE checkpoint SET size = 3 WHERE size = 2",
        "UPDATE checkpoint SET note = (SELECT max(note) FROM checkpoint)",
        "UPDATE checkpoint SET note = x'00' WHERE size = 2",
        "DELETE FROM checkpoint",
        "DELETE FROM checkpoint WHERE size > 2",
        "UPDATE meta SET value = 'cell-2' WHERE name = 'origin'",
    ],
)
def test_changes_show_without_any_help_from_outside(
    verify: Verify, tmp_path: Path, statement: str
) -> None:
    written(tmp_path, [2, 1_201])
    try:
        tamper(tmp_path, statement)
    except sqlite3.IntegrityError:
        assert "body = '{}'" in statement  # STRICT tables take no text for bytes
        return
    with pytest.raises(JournalError):
        verify(tmp_path)


def test_changed_contents_show_and_erased_ones_do_not(verify: Verify, tmp_path: Path) -> None:
    kept = [content(b"%d" % number, session=f"s-{number}") for number in range(200)]
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append([citing(seq, cited) for seq, cited in enumerate(kept)], kept)
    assert verify(tmp_path).contents == 200
    tamper(tmp_path, "DELETE FROM content WHERE session = 's-7'")
    assert verify(tmp_path).contents == 199
    tamper(tmp_path, "UPDATE content SET data = x'00' WHERE session = 's-8'")
    with pytest.raises(ChainBroken, match="was changed"):
        verify(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE content SET tenant = 'wealth' WHERE session = 's-1'",
        "UPDATE content SET session = 's-2' WHERE session = 's-1'",
        "INSERT INTO content SELECT 'wealth', session, hash, data FROM content LIMIT 1",
        f"INSERT INTO content VALUES ('t', 's-1', '{content_hash(b'forged')}', '{{}}')",
        f"INSERT INTO content VALUES ('', '', '{content_hash(b'')}', x'')",
        "INSERT INTO content VALUES ('', '', '', x'')",
    ],
)
def test_contents_that_no_record_of_their_session_cites_show(
    verify: Verify, tmp_path: Path, statement: str
) -> None:
    kept = [content(b"%d" % number, session=f"s-{number}") for number in range(3)]
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append([citing(seq, cited) for seq, cited in enumerate(kept)], kept)
        assert verify(tmp_path).contents == 3
    tamper(tmp_path, statement.replace("'{}'", f"x'{b'forged'.hex()}'"))
    with pytest.raises(ChainBroken, match=r"is cited by no record|was changed"):
        verify(tmp_path)


def test_each_kind_of_note_that_cites_is_known(verify: Verify, tmp_path: Path) -> None:
    kept = [content(word.encode(), session=word) for word in ("recognised", "answered", "snapshot")]
    notes = [
        Record(seq, START_NS + seq, cited.session, "t", cited.session, {"content": cited.hash})
        for seq, cited in enumerate(kept)
    ]
    with Journal.open(tmp_path, origin=ORIGIN) as journal:
        journal.append(notes, kept)
    assert verify(tmp_path).contents == 3


def test_deep_finds_a_body_that_is_not_canonical(verify: Verify, tmp_path: Path) -> None:
    """Only the writer can sign such a body: a mistake of another implementation, not a forgery."""
    from bedplate.journal.record import leaf_hashes
    from bedplate.journal.tree import Frontier

    signer = Signer.create(ORIGIN)
    with Journal.open(tmp_path, origin=ORIGIN, signer=signer) as journal:
        row = (0, 1, "note", "", "", b'{"b":1,"a":2}')
        frontier = Frontier()
        frontier.extend(leaf_hashes([row]))
        journal._storage.add([row], (), journal._sign(frontier))
        journal._frontier = frontier
        journal._signed_size = 1
    assert verify(tmp_path, key=signer.verifier).size == 1
    with pytest.raises(ChainBroken, match="not in canonical form"):
        verify(tmp_path, key=signer.verifier, deep=True)


def test_without_its_public_key_nothing_can_be_said(verify: Verify, tmp_path: Path) -> None:
    written(tmp_path, [1])
    (tmp_path / PUBLIC_FILE).unlink()
    with pytest.raises(JournalError, match="cannot read the journal's public key"):
        verify(tmp_path)
    (tmp_path / PUBLIC_FILE).write_bytes(b"\xff")
    with pytest.raises(JournalError, match="cannot read the journal's public key"):
        verify(tmp_path)


@pytest.mark.parametrize(
    "statements",
    [
        (
            "ALTER TABLE record RENAME TO real",
            "CREATE VIEW record AS SELECT * FROM real "
            "WHERE kind <> 'usage' OR unixepoch() < 4102444800",
        ),
        ("CREATE TRIGGER gone AFTER INSERT ON content BEGIN DELETE FROM content; END",),
        ("ALTER TABLE record ADD COLUMN note TEXT",),
        ("CREATE TABLE more (a)",),
    ],
    ids=["view", "trigger", "column", "table"],
)
def test_a_database_with_more_in_it_than_plain_tables_shows(
    verify: Verify, tmp_path: Path, statements: tuple[str, ...]
) -> None:
    """The view tells the truth until the year 2100, and a bill without rows from then on."""
    written(tmp_path, [400])
    tamper(tmp_path, *statements)
    with pytest.raises(ChainBroken, match="is not of the journal"):
        verify(tmp_path)


def test_a_lost_index_changes_nothing(verify: Verify, tmp_path: Path) -> None:
    written(tmp_path, [400])
    tamper(tmp_path, "DROP INDEX record_kind")
    assert verify(tmp_path).size == 400
