"""The published vectors: recomputed without product code, then compared with the product."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bedplate.errors import JournalError
from bedplate.journal import Record, tree
from bedplate.journal import checkpoint as notes
from bedplate.journal.keys import Signer, Verifier
from bedplate.journal.record import canonical_bytes, leaf_hashes, record_of, rows_of
from tests.conformance import naive_journal as naive

VECTORS: dict[str, Any] = json.loads(
    Path(__file__).with_name("journal_vectors.json").read_text(encoding="ascii")
)
LEAVES = [bytes.fromhex(entry["leaf"]) for entry in VECTORS["records"]]
RECORDS = [Record(**entry["record"]) for entry in VECTORS["records"]]


def hexed(proof: list[bytes]) -> list[str]:
    return [part.hex() for part in proof]


def subtree(start: int, end: int) -> bytes:
    return naive.root(LEAVES[start:end])


def test_the_vectors_follow_from_the_page_alone() -> None:
    for entry in VECTORS["records"]:
        data = naive.canonical(entry["record"])
        assert data.decode() == entry["canonical"]
        assert naive.leaf(data).hex() == entry["leaf"]
        assert json.loads(data) == entry["record"]
    assert [naive.root(LEAVES[:size]).hex() for size in range(len(LEAVES) + 1)] == VECTORS["roots"]
    for entry in VECTORS["inclusion"]:
        assert hexed(naive.inclusion(entry["index"], LEAVES[: entry["size"]])) == entry["proof"]
    for entry in VECTORS["consistency"]:
        assert hexed(naive.consistency(entry["old"], LEAVES[: entry["new"]])) == entry["proof"]
    given = VECTORS["checkpoint"]
    seed = bytes.fromhex(given["seed"])
    assert naive.checkpoint(given["origin"], LEAVES, seed).decode() == given["note"]
    assert naive.verifier_key(given["origin"], seed) == given["key"]


def test_the_product_encodes_and_hashes_records_as_published() -> None:
    for record, entry in zip(RECORDS, VECTORS["records"], strict=True):
        assert canonical_bytes(record).decode() == entry["canonical"]
        assert record_of(rows_of([record])[0]) == record
    assert hexed(leaf_hashes(rows_of(RECORDS))) == [entry["leaf"] for entry in VECTORS["records"]]


def test_the_product_builds_trees_and_proofs_as_published() -> None:
    frontier = tree.Frontier()
    roots = [frontier.root().hex()]
    for leaf in LEAVES:
        frontier.extend([leaf])
        roots.append(frontier.root().hex())
    assert roots == VECTORS["roots"]
    for entry in VECTORS["inclusion"]:
        proof = tree.inclusion_proof(entry["index"], entry["size"], subtree)
        assert hexed(proof) == entry["proof"]
    for entry in VECTORS["consistency"]:
        proof = tree.consistency_proof(entry["old"], entry["new"], subtree)
        assert hexed(proof) == entry["proof"]


def test_the_product_signs_and_reads_checkpoints_as_published() -> None:
    given = VECTORS["checkpoint"]
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(given["seed"]))
    signer = Signer(given["origin"], key)
    assert str(signer.verifier) == given["key"]
    claim = notes.Checkpoint(given["origin"], given["size"], bytes.fromhex(VECTORS["roots"][-1]))
    assert notes.sign(claim, signer).decode() == given["note"]
    assert notes.verify(given["note"].encode(), Verifier.parse(given["key"])) == claim


@pytest.mark.parametrize("entry", VECTORS["refused"], ids=lambda entry: entry["why"])
def test_the_product_refuses_what_the_form_cannot_hold(entry: dict[str, Any]) -> None:
    with pytest.raises(JournalError, match="record 7"):
        rows_of([Record(7, 0, "note", "", "", entry["body"])])


def test_a_note_signed_elsewhere_verifies() -> None:
    """The example of Go's sumdb/note, which C2SP's signed-note form was taken from."""
    key = Verifier.parse("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    signature = base64.b64decode(
        "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
    )
    text = (
        b"If you think cryptography is the answer to your problem,\n"
        b"then you don't know what your problem is.\n"
    )
    assert signature[:4] == key.key_id
    assert key.verify(signature[4:], text)
    assert not key.verify(signature[4:], text + b" ")


def test_the_tree_is_that_of_certificate_transparency() -> None:
    """Leaves and root of the reference implementation's own test."""
    data = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"]
    data.append("606162636465666768696a6b6c6d6e6f")
    leaves = [naive.leaf(bytes.fromhex(text)) for text in data]
    frontier = tree.Frontier()
    frontier.extend(leaves)
    expected = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    assert frontier.root().hex() == naive.root(leaves).hex() == expected
