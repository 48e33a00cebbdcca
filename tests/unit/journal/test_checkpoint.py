from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from bedplate.errors import ChainBroken, JournalError
from bedplate.journal import checkpoint as notes
from bedplate.journal.checkpoint import Checkpoint
from bedplate.journal.keys import KEY_FILE, PUBLIC_FILE, Signer, Verifier

SIGNER = Signer.create("cell-1")
CLAIM = Checkpoint("cell-1", 12, bytes(range(32)))
NOTE = notes.sign(CLAIM, SIGNER)


def test_a_signed_claim_comes_back() -> None:
    assert notes.parse(NOTE) == CLAIM
    assert notes.verify(NOTE, SIGNER.verifier) == CLAIM
    assert NOTE.startswith(CLAIM.text() + b"\n\xe2\x80\x94 cell-1 ")


def test_lines_of_other_signers_are_left_alone() -> None:
    other = notes.sign(CLAIM, Signer.create("witness.example")).split(b"\n\n")[1]
    head, own = NOTE.split(b"\n\n")
    assert notes.verify(head + b"\n\n" + other + own, SIGNER.verifier) == CLAIM
    with pytest.raises(ChainBroken, match="not signed by key cell-1"):
        notes.verify(head + b"\n\n" + other, SIGNER.verifier)


def test_another_key_of_the_same_name_does_not_do() -> None:
    note = notes.sign(CLAIM, Signer.create("cell-1"))
    with pytest.raises(ChainBroken, match="not signed"):
        notes.verify(note, SIGNER.verifier)


@pytest.mark.parametrize("at", range(len(CLAIM.text())))
def test_any_changed_byte_of_the_text_shows(at: int) -> None:
    note = NOTE[:at] + bytes([NOTE[at] ^ 1]) + NOTE[at + 1 :]
    with pytest.raises(JournalError):
        notes.verify(note, SIGNER.verifier)


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"cell-1\n12\n",
        NOTE[:-1],
        NOTE.replace(b"\n12\n", b"\n012\n"),
        NOTE.replace(b"\n12\n", b"\n+12\n"),
        NOTE.replace(b"\n12\n", b"\n-12\n"),
        NOTE.replace(b"\n12\n", b"\n\n"),
        NOTE.replace(b"AAEC", b"AAE"),
        NOTE.replace("\u2014".encode(), b"--"),
        NOTE.replace(b"cell-1 ", b"cell-1"),
        NOTE + b"\xff\n",
        NOTE + b"x" * notes.NOTE_BYTES_MAX,
    ],
)
def test_what_is_no_checkpoint_is_refused(note: bytes) -> None:
    with pytest.raises(JournalError):
        notes.verify(note, SIGNER.verifier)


@pytest.mark.parametrize("name", ["", "two words", "a+b", "a\nb", "a\u2003b", "a\x00b"])
def test_a_name_must_fit_a_note(name: str) -> None:
    with pytest.raises(JournalError, match="origin"):
        Signer.create(name)


def test_a_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    signer = Signer.open(tmp_path, "cell-1", create=True)
    mode = stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode)
    assert mode == 0o600
    again = Signer.open(tmp_path, "cell-1", create=True)
    assert again.verifier.public == signer.verifier.public
    assert str(Verifier.load(tmp_path)) == str(signer.verifier)
    assert not (tmp_path / KEY_FILE).with_suffix(".part").exists()


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    Signer.open(tmp_path, "cell-1", create=True)
    os.chmod(tmp_path / KEY_FILE, 0o640)
    with pytest.raises(JournalError, match="chmod 600"):
        Signer.open(tmp_path, "cell-1", create=False)


def test_a_lost_or_foreign_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot read"):
        Signer.open(tmp_path, "cell-1", create=False)
    Signer.open(tmp_path, "cell-1", create=True)
    (tmp_path / PUBLIC_FILE).write_text(f"{Signer.create('cell-1').verifier}\n")
    with pytest.raises(JournalError, match="is not the public key"):
        Signer.open(tmp_path, "cell-1", create=False)
    pem = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / KEY_FILE).write_bytes(pem)
    with pytest.raises(JournalError, match="not an Ed25519 key"):
        Signer.open(tmp_path, "cell-1", create=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cell-1",
        "cell-1+00000000+AAAA",
        "cell-1+zz+!",
        str(SIGNER.verifier).replace("+", "+0", 1),
    ],
    ids=["nothing", "a name", "a short key", "no hex", "a long hash"],
)
def test_a_malformed_verifier_key_is_refused(text: str) -> None:
    with pytest.raises(JournalError):
        Verifier.parse(text)
