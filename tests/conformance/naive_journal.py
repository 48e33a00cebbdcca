"""The journal's format a second time, from docs/reference/journal.md, without product code.

Slow and plain on purpose: the definitions of RFC 9162 section 2.1 as they stand there.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def canonical(record: dict[str, object]) -> bytes:
    return _encode(record).encode()


def leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def split(size: int) -> int:
    k = 1
    while k * 2 < size:
        k *= 2
    return k


def root(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves))
    return node(root(leaves[:k]), root(leaves[k:]))


def inclusion(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if index < k:
        return [*inclusion(index, leaves[:k]), root(leaves[k:])]
    return [*inclusion(index - k, leaves[k:]), root(leaves[:k])]


def consistency(old: int, leaves: Sequence[bytes], whole: bool = True) -> list[bytes]:
    if old == len(leaves):
        return [] if whole else [root(leaves)]
    k = split(len(leaves))
    if old <= k:
        return [*consistency(old, leaves[:k], whole), root(leaves[k:])]
    return [*consistency(old - k, leaves[k:], False), root(leaves[:k])]


def checkpoint(origin: str, leaves: Sequence[bytes], seed: bytes) -> bytes:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes_raw()
    key_id = hashlib.sha256(origin.encode() + b"\n\x01" + public).digest()[:4]
    text = f"{origin}\n{len(leaves)}\n{base64.b64encode(root(leaves)).decode()}\n".encode()
    signature = base64.b64encode(key_id + key.sign(text))
    return text + b"\n" + "\u2014 ".encode() + origin.encode() + b" " + signature + b"\n"


def verifier_key(origin: str, seed: bytes) -> str:
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    key_id = hashlib.sha256(origin.encode() + b"\n\x01" + public).hexdigest()[:8]
    coded = base64.b64encode(b"\x01" + public).decode()
    return f"{origin}+{key_id}+{coded}"
