"""Checkpoints: the tree's size and root in a signed note (C2SP signed-note and tlog-checkpoint).

    <origin>
    <size, decimal>
    <root, base64>

    — <origin> <base64(4-byte key id ‖ 64-byte signature)>

The signature covers the three lines with their newlines. Other signature lines (of witnesses) may
follow and are left alone.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from bedplate.errors import ChainBroken, JournalError
from bedplate.journal.keys import Signer, Verifier
from bedplate.journal.tree import HASH_BYTES

NOTE_BYTES_MAX = 1 << 20
"""A note from outside may carry many witnesses' signatures, but not any number."""
_DASH = "\N{EM DASH} "


class Checkpoint(NamedTuple):
    """A claim about the tree: at `size` records its root is `root`."""

    origin: str
    size: int
    root: bytes

    def text(self) -> bytes:
        """Return the three lines that are signed."""
        root = base64.b64encode(self.root).decode()
        return f"{self.origin}\n{self.size}\n{root}\n".encode()


def sign(checkpoint: Checkpoint, signer: Signer) -> bytes:
    """Return the checkpoint as a signed note."""
    text = checkpoint.text()
    signature = base64.b64encode(signer.verifier.key_id + signer.sign(text)).decode()
    return text + f"\n{_DASH}{signer.verifier.name} {signature}\n".encode()


def parse(note: bytes) -> Checkpoint:
    """Read a note's claim without looking at its signatures.

    Raises:
        JournalError: not a checkpoint.
    """
    return _claim(_split(note)[0])


def verify(note: bytes, verifier: Verifier) -> Checkpoint:
    """Read a note that must be signed by this key.

    Raises:
        JournalError: not a checkpoint.
        ChainBroken: no signature of this key, or a wrong one.
    """
    text, lines = _split(note)
    checkpoint = _claim(text)
    signed = False
    for line in lines:
        name, _, coded = line.removeprefix(_DASH).rpartition(" ")
        if not line.startswith(_DASH) or not name:
            raise JournalError(f"checkpoint of size {checkpoint.size}: malformed signature line")
        try:
            data = base64.b64decode(coded, validate=True)
        except (ValueError, binascii.Error) as error:
            raise JournalError(
                f"checkpoint of size {checkpoint.size}: signature is not base64"
            ) from error
        if name != verifier.name or data[:4] != verifier.key_id:
            continue
        if not verifier.verify(data[4:], text):
            raise ChainBroken(
                f"checkpoint of size {checkpoint.size}: wrong signature of key "
                f"{verifier.name}+{verifier.key_id.hex()}"
            )
        signed = True
    if not signed:
        raise ChainBroken(
            f"checkpoint of size {checkpoint.size} of {checkpoint.origin!r} is not signed by key "
            f"{verifier.name}+{verifier.key_id.hex()}"
        )
    return checkpoint


def _split(note: bytes) -> tuple[bytes, list[str]]:
    if len(note) > NOTE_BYTES_MAX:
        raise JournalError(f"a checkpoint has at most {NOTE_BYTES_MAX} bytes")
    text, blank, signatures = note.rpartition(b"\n\n")
    if not blank or not signatures.endswith(b"\n"):
        raise JournalError("a checkpoint is text, a blank line, and signature lines")
    try:
        return text + b"\n", signatures.decode().split("\n")[:-1]
    except UnicodeDecodeError as error:
        raise JournalError("a checkpoint must be UTF-8") from error


def _claim(text: bytes) -> Checkpoint:
    try:
        origin, size, coded, *_ = text.decode().split("\n")
        root = base64.b64decode(coded, validate=True)
        checkpoint = Checkpoint(origin, int(size), root)
    except (ValueError, binascii.Error) as error:
        raise JournalError("a checkpoint has three lines: origin, size, root") from error
    if len(root) != HASH_BYTES or not text.startswith(checkpoint.text()):
        raise JournalError("a checkpoint's size is decimal and its root is 32 bytes in base64")
    return checkpoint
