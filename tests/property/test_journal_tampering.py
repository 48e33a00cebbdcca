"""Whatever somebody without the key does to the database shows against a checkpoint kept outside.

The attacker here writes SQL: edits, deletes, swaps, inserts, renumbers, cuts; then repairs what a
careless verifier would look at: takes checkpoints away, rebuilds them over the new tree with the
old signatures, or signs them with a key of his own and puts its public half in place.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bedplate.errors import ChainBroken, JournalError, Truncated
from bedplate.journal import Journal, verify
from bedplate.journal.keys import PUBLIC_FILE
from bedplate.journal.storage import DATABASE_FILE
from tests.conformance import naive_journal as naive
from tests.unit.journal.builders import ORIGIN, records

SIZE = 40
RUN_RECORDS = (1, 5, 8_192)
"""A run for each checkpoint, some with several, and one run for all."""
COLUMNS = ("time_ns", "kind", "tenant", "session", "body")
Rows = list[list[object]]
"""Stored records: seq, time_ns, kind, tenant, session, body."""
Change = Callable[[Rows], None]
Repair = Callable[[sqlite3.Connection, Path, Rows], None]


class Original(NamedTuple):
    folder: Path
    outside: dict[int, bytes]
    """Checkpoints taken away in time, by size."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    folder = tmp_path_factory.mktemp("original")
    outside = {}
    with Journal.open(folder, origin=ORIGIN) as journal:
        for seq in range(SIZE):
            journal.append(records(1, start=seq))
            if seq % 3 == 0:
                outside[seq + 1] = journal.checkpoint()
        outside[SIZE] = journal.checkpoint()
    return Original(folder, outside)


# What is done to the records.

positions = st.integers(0, SIZE - 1)
words = st.sampled_from(["", "x", "TurnEnded", "TokensEmitted", "fraud", "wealth", "s-1", 'a"b\\'])


def edit(rows: Rows, at: int, column: int, value: object) -> None:
    rows[at][1 + column] = value


@st.composite
def edits(draw: st.DrawFn) -> Change:
    at, column = draw(positions), draw(st.integers(0, len(COLUMNS) - 1))
    if COLUMNS[column] == "time_ns":
        value: object = draw(st.integers(0, 2**63 - 1))
    elif COLUMNS[column] == "body":
        value = draw(st.sampled_from([b"{}", b"", b'{"turn":"t-1"}', b'{},"kind":"x"']))
    else:
        value = draw(words)
    return lambda rows: edit(rows, at, column, value)


@st.composite
def swaps(draw: st.DrawFn) -> Change:
    a, b = draw(positions), draw(positions)
    keep_times = draw(st.booleans())

    def swap(rows: Rows) -> None:
        rows[a][2 - keep_times :], rows[b][2 - keep_times :] = (
            rows[b][2 - keep_times :],
            rows[a][2 - keep_times :],
        )

    return swap


@st.composite
def deletions(draw: st.DrawFn) -> Change:
    gone = draw(st.sets(positions, min_size=1, max_size=4))
    renumber = draw(st.booleans())

    def delete(rows: Rows) -> None:
        rows[:] = [row for row in rows if row[0] not in gone]
        if renumber:
            for seq, row in enumerate(rows):
                row[0] = seq

    return delete


@st.composite
def insertions(draw: st.DrawFn) -> Change:
    at, of = draw(positions), draw(positions)

    def insert(rows: Rows) -> None:
        rows.insert(at, list(rows[of]))
        for seq, row in enumerate(rows):
            row[0] = seq

    return insert


def cuts() -> st.SearchStrategy[Change]:
    return positions.map(lambda keep: lambda rows: rows.__delitem__(slice(keep, None)))


tampers = st.lists(
    edits() | swaps() | deletions() | insertions(), min_size=1, max_size=2
) | cuts().map(lambda cut: [cut])

# What is done to the stored checkpoints afterwards.


def leave(database: sqlite3.Connection, folder: Path, rows: Rows) -> None:
    """Do nothing."""


def take_away_covering(database: sqlite3.Connection, folder: Path, rows: Rows) -> None:
    database.execute("DELETE FROM checkpoint WHERE size > 1")


def take_away_beyond_the_end(database: sqlite3.Connection, folder: Path, rows: Rows) -> None:
    database.execute("DELETE FROM checkpoint WHERE size > ?", (len(rows),))


def take_away_all(database: sqlite3.Connection, folder: Path, rows: Rows) -> None:
    database.execute("DELETE FROM checkpoint")


def rebuild(database: sqlite3.Connection, rows: Rows, note: Callable[[int, bytes], bytes]) -> None:
    leaves = [naive.leaf(leaf_bytes(row)) for row in rows]
    stored = database.execute("SELECT size, note FROM checkpoint").fetchall()
    for size, old in stored:
        if size > len(rows):
            database.execute("DELETE FROM checkpoint WHERE size = ?", (size,))
            continue
        peaks, at = [], 0
        for level in reversed(range(size.bit_length())):
            if size >> level & 1:
                peaks.append(naive.root(leaves[at : at + (1 << level)]))
                at += 1 << level
        frontier = b"".join(reversed(peaks))
        database.execute(
            "UPDATE checkpoint SET note = ?, frontier = ? WHERE size = ?",
            (note(size, old), frontier, size),
        )


def leaf_bytes(row: list[object]) -> bytes:
    seq, time_ns, kind, tenant, session, body = row
    assert isinstance(body, bytes)
    names = {"kind": kind, "seq": seq, "session": session, "tenant": tenant, "time_ns": time_ns}
    return b'{"body":' + body + b"," + naive.canonical(names)[1:]


def keep_signatures(database: sqlite3.Connection, folder: Path, rows: Rows) -> None:
    """Rebuild every checkpoint over the new tree, with the signature it had."""
    leaves = [naive.leaf(leaf_bytes(row)) for row in rows]

    def note(size: int, old: bytes) -> bytes:
        text = naive.checkpoint(ORIGIN, leaves[:size], bytes(32)).split(b"\n\n")[0]
        return text + b"\n\n" + old.split(b"\n\n")[1]

    rebuild(database, rows, note)


def sign_anew(database: sqlite3.Connection, folder: Path, rows: Rows) -> None:
    """Rebuild every checkpoint with the attacker's key."""
    leaves = [naive.leaf(leaf_bytes(row)) for row in rows]
    rebuild(database, rows, lambda size, old: naive.checkpoint(ORIGIN, leaves[:size], bytes(32)))


def sign_anew_and_change_the_key(database: sqlite3.Connection, folder: Path, rows: Rows) -> None:
    """Leave nothing inside that contradicts the new records."""
    sign_anew(database, folder, rows)
    (folder / PUBLIC_FILE).write_text(naive.verifier_key(ORIGIN, bytes(32)) + "\n")


repairs = st.sampled_from(
    [
        leave,
        take_away_covering,
        take_away_beyond_the_end,
        take_away_all,
        keep_signatures,
        sign_anew,
        sign_anew_and_change_the_key,
    ]
)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def read(database: sqlite3.Connection) -> Rows:
    return [list(row) for row in database.execute("SELECT * FROM record ORDER BY seq")]


def tampered(original: Original, scratch: Path, tamper: list[Change], repair: Repair) -> Path:
    """Return a copy of the journal with these records and these checkpoints."""
    folder = scratch / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in (DATABASE_FILE, PUBLIC_FILE):
        shutil.copy(original.folder / name, folder / name)
    with sqlite3.connect(folder / DATABASE_FILE, isolation_level=None) as database:
        database.execute("PRAGMA synchronous=OFF")
        database.execute("BEGIN")
        rows = read(database)
        for change in tamper:
            if rows:
                change(rows)
        database.execute("DELETE FROM record")
        database.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", rows)
        repair(database, folder, rows)
        database.execute("COMMIT")
    database.close()
    return folder


def first_change(original: Original, folder: Path) -> int | None:
    """Return the least seq whose record differs from the original's, None where all are equal."""
    found = []
    for place in (original.folder, folder):
        database = sqlite3.connect(place / DATABASE_FILE)
        found.append(read(database))
        database.close()
    before, after = found
    for seq, row in enumerate(before):
        if seq >= len(after) or after[seq] != row:
            return seq
    return None if len(after) == len(before) else len(before)


def guarded(change: Change) -> Change:
    """Let positions past the end of what an earlier change left do nothing."""

    def apply(rows: Rows) -> None:
        try:
            change(rows)
        except IndexError:
            return

    return apply


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tamper=tampers, repair=repairs, data=st.data())
def test_every_change_shows_against_any_checkpoint_that_covers_it(
    original: Original,
    scratch: Path,
    tamper: list[Change],
    repair: Repair,
    data: st.DataObject,
) -> None:
    folder = tampered(original, scratch, [guarded(change) for change in tamper], repair)
    seq = first_change(original, folder)
    covering = [size for size in original.outside if seq is not None and size > seq]
    if not covering:
        return
    outside = original.outside[data.draw(st.sampled_from(covering))]
    for run_records in RUN_RECORDS:
        with pytest.raises((ChainBroken, Truncated)):
            verify(folder, checkpoint=outside, processes=1, run_records=run_records)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tamper=tampers, repair=st.sampled_from([leave, keep_signatures, sign_anew, take_away_all]))
def test_without_the_key_no_change_below_the_last_own_checkpoint_hides(
    original: Original,
    scratch: Path,
    tamper: list[Change],
    repair: Repair,
) -> None:
    folder = tampered(original, scratch, [guarded(change) for change in tamper], repair)
    seq = first_change(original, folder)
    database = sqlite3.connect(folder / DATABASE_FILE)
    (covered,) = database.execute("SELECT coalesce(max(size), 0) FROM checkpoint").fetchone()
    (left,) = database.execute("SELECT count(*) FROM record").fetchone()
    database.close()
    if seq is not None and (seq < covered or (left and not covered)):
        for run_records in RUN_RECORDS:
            with pytest.raises(JournalError):
                verify(folder, processes=1, run_records=run_records)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tamper=tampers, repair=repairs)
def test_every_change_shows_to_several_processes(
    original: Original, scratch: Path, tamper: list[Change], repair: Repair
) -> None:
    folder = tampered(original, scratch, [guarded(change) for change in tamper], repair)
    outside = original.outside[SIZE]
    if first_change(original, folder) is None:
        return
    with pytest.raises((ChainBroken, Truncated)):
        verify(folder, checkpoint=outside, processes=3, run_records=2)


@pytest.mark.parametrize("repair", [leave, sign_anew_and_change_the_key])
def test_the_harness_itself_breaks_nothing(
    original: Original, scratch: Path, repair: Repair
) -> None:
    folder = tampered(original, scratch, [], repair)
    assert first_change(original, folder) is None
    assert verify(folder, deep=True).size == SIZE
    if repair is leave:
        for size, note in original.outside.items():
            for run_records in RUN_RECORDS:
                report = verify(folder, checkpoint=note, processes=1, run_records=run_records)
                assert report.external_size == size
    else:
        with pytest.raises(ChainBroken, match="not signed by key"):
            verify(folder, checkpoint=original.outside[SIZE])


def test_a_forged_checkpoint_is_no_checkpoint(original: Original) -> None:
    forged = naive.checkpoint(ORIGIN, [], bytes(32))
    with pytest.raises(ChainBroken, match="not signed by key"):
        verify(original.folder, checkpoint=forged)
