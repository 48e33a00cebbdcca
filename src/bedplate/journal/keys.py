"""The journal's Ed25519 key: made on first open, used for nothing but checkpoints.

Two files lie beside the journal. `signer.key` is the private key (PEM, mode 0600). `signer.pub` is
one line, the verifier key of C2SP signed notes, to be copied outside and given to auditors:

    <name>+<key id, 8 hex digits>+<base64(0x01 ‖ 32-byte public key)>
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from bedplate.errors import JournalError

KEY_FILE = "signer.key"
PUBLIC_FILE = "signer.pub"
_ED25519 = b"\x01"


class Verifier:
    """A public key with its name: checks signatures of `Signer`."""

    def __init__(self, name: str, public: bytes) -> None:
        check_name(name)
        self.name = name
        self.public = public
        self.key_id = hashlib.sha256(name.encode() + b"\n" + _ED25519 + public).digest()[:4]
        self._key = Ed25519PublicKey.from_public_bytes(public)

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Read a verifier key line.

        Raises:
            JournalError: not a verifier key, or its key id does not fit its key.
        """
        try:
            name, key_id, key = text.strip().split("+", 2)
            data = base64.b64decode(key, validate=True)
        except (ValueError, binascii.Error) as error:
            raise JournalError("a verifier key reads NAME+KEYID+BASE64 in one line") from error
        if len(data) != 33 or data[:1] != _ED25519:
            raise JournalError(f"the verifier key of {name!r} is not an Ed25519 key")
        verifier = cls(name, data[1:])
        if verifier.key_id.hex() != key_id:
            raise JournalError(
                f"the verifier key of {name!r} has key id {key_id}, which is not its own"
            )
        return verifier

    @classmethod
    def load(cls, folder: Path) -> Verifier:
        """Read `signer.pub` of a journal's folder.

        Raises:
            JournalError: the file is missing or not a verifier key.
        """
        path = folder / PUBLIC_FILE
        try:
            return cls.parse(path.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError) as error:
            raise JournalError(f"cannot read the journal's public key {path}: {error}") from error

    def __str__(self) -> str:
        key = base64.b64encode(_ED25519 + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{key}"

    def verify(self, signature: bytes, text: bytes) -> bool:
        """Tell whether the 64-byte signature is this key's over `text`. Cost: about 0.1 ms."""
        try:
            self._key.verify(signature, text)
        except InvalidSignature:
            return False
        return True


class Signer:
    """The private key of one journal."""

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.verifier = Verifier(name, key.public_key().public_bytes_raw())

    @classmethod
    def create(cls, name: str) -> Signer:
        """Make a key that is kept nowhere."""
        return cls(name, Ed25519PrivateKey.generate())

    @classmethod
    def open(cls, folder: Path, name: str, *, create: bool) -> Signer:
        """Load the folder's key; with `create`, make it and its public file where there is none.

        Raises:
            JournalError: no key, an unreadable one, or one that others may read.
        """
        path = folder / KEY_FILE
        if create and not path.exists():
            signer = cls.create(name)
            signer._write(path)
        else:
            signer = cls(name, _load_private(path))
        public = folder / PUBLIC_FILE
        line = f"{signer.verifier}\n"
        if not public.exists():
            public.write_text(line, encoding="ascii")
        elif public.read_text(encoding="ascii", errors="replace") != line:
            raise JournalError(f"{public} is not the public key of {path}; restore the pair")
        return signer

    def sign(self, text: bytes) -> bytes:
        """Return the 64-byte signature over `text`."""
        return self._key.sign(text)

    def _write(self, path: Path) -> None:
        pem = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)


def check_name(name: str) -> None:
    """Refuse a key name or origin that a signed note cannot carry.

    Raises:
        JournalError: empty, or with white space, a control character or a plus sign.
    """
    if not name or not name.isprintable() or "+" in name or any(c.isspace() for c in name):
        raise JournalError(f"origin {name!r} must be a word without white space and plus signs")


def _load_private(path: Path) -> Ed25519PrivateKey:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise JournalError(f"cannot read the journal's signing key {path}: {error}") from error
    if mode & 0o077:
        raise JournalError(f"{path} may be read by others (mode {mode:o}); run `chmod 600 {path}`")
    if not isinstance(key, Ed25519PrivateKey):
        raise JournalError(f"{path} is not an Ed25519 key")
    return key
