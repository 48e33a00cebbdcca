from __future__ import annotations

import os
from pathlib import Path

import pytest

from bedplate.errors import ChainBroken, JournalMissing
from bedplate.journal import Journal, Reader, tree
from bedplate.journal import checkpoint as notes
from bedplate.journal.storage import PAGE_ROWS
from tests.conformance import naive_journal as naive
from tests.unit.journal.builders import ORIGIN, records, written


def test_a_reader_sees_what_is_committed_while_the_writer_goes_on(tmp_path: Path) -> None:
    with Journal.open(tmp_path, origin=ORIGIN) as journal, Reader(tmp_path) as reader:
        assert reader.size == 0
        assert reader.last_checkpoint() is None
        journal.append(records(3))
        going = reader.read()
        assert next(going).seq == 0
        journal.append(records(2, start=3))
        assert [record.seq for record in going] == [1, 2, 3, 4], "it ends at the end of now"
        assert reader.size == 5
        assert reader.origin == ORIGIN


def test_pages_join_without_a_seam(tmp_path: Path) -> None:
    count = 2 * PAGE_ROWS + 5
    made = written(tmp_path, [count], step_ns=1)
    with Reader(tmp_path) as reader:
        assert list(reader.read()) == made
        assert list(reader.read(PAGE_ROWS)) == made[PAGE_ROWS:]
        assert list(reader.read(count)) == []


@pytest.mark.parametrize("start", [0, 4, 2_999])
def test_kinds_are_filtered_in_order(tmp_path: Path, start: int) -> None:
    made = written(tmp_path, [3_100], step_ns=1)
    with Reader(tmp_path) as reader:
        for kinds in (["TokensEmitted"], {"TurnEnded", "TokensEmitted"}, ["usage"], []):
            wanted = [r for r in made[start:] if r.kind in kinds]
            assert list(reader.read(start, kinds=kinds)) == wanted


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing, match="there is no journal"):
        Reader(tmp_path)
    assert list(tmp_path.iterdir()) == [], "a reader makes nothing"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where nobody may")
def test_a_journal_on_a_read_only_medium_is_read(tmp_path: Path) -> None:
    made = written(tmp_path / "journal", [5])
    (tmp_path / "journal").chmod(0o500)
    try:
        with Reader(tmp_path / "journal") as reader:
            assert list(reader.read()) == made
    finally:
        (tmp_path / "journal").chmod(0o700)


def test_a_proof_from_the_reader_verifies_against_the_checkpoint(tmp_path: Path) -> None:
    made = written(tmp_path, [37, 1, 60])
    leaves = [naive.leaf(naive.canonical(record._asdict())) for record in made]
    with Reader(tmp_path) as reader:
        note = reader.last_checkpoint()
        assert note is not None
        claim = notes.parse(note)
        for seq in (0, 36, 37, 97):
            proof = tree.inclusion_proof(seq, claim.size, reader.subtree_root)
            assert tree.verify_inclusion(leaves[seq], seq, claim.size, proof, claim.root)
        proof = tree.consistency_proof(38, claim.size, reader.subtree_root)
        old_root = naive.root(leaves[:38])
        assert tree.verify_consistency(38, old_root, claim.size, claim.root, proof)
        with pytest.raises(ChainBroken, match="records from 98"):
            reader.subtree_root(90, 99)
