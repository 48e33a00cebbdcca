r"""The meta file of an entry: a JSON header and the adapter's own bytes, checked as a whole.

    offset  0   8 bytes  magic "BPKVMT1\n"
            8   4 bytes  header length H, little-endian
           12   H bytes  header: JSON object, the fields of `Header`
         12+H   M bytes  adapter's meta, M = header.meta_bytes
       12+H+M  16 bytes  xxh3_128 of everything before

A file that does not parse in full is no entry: the context is computed again, nothing is guessed.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass
from typing import NamedTuple

import orjson
import xxhash

from bedplate.core.ids import EntryId
from bedplate.errors import PoolError
from bedplate.pool.types import Fingerprint, Owner

MAGIC = b"BPKVMT1\n"
CHECKSUM_BYTES = 16
_PREFIX = struct.Struct("<8sI")


@dataclass(frozen=True, slots=True)
class Header:
    """What the pool itself must know of an entry. `data_checksum` is xxh3_128 in hex."""

    entry: EntryId
    owner: Owner
    fingerprint: Fingerprint
    data_bytes: int
    data_checksum: str
    meta_bytes: int


class Decoded(NamedTuple):
    """A meta file that checked out."""

    header: Header
    meta: bytes


def encode(header: Header, meta: bytes) -> bytes:
    """Return the bytes of a meta file."""
    assert header.meta_bytes == len(meta)
    text = orjson.dumps(asdict(header), option=orjson.OPT_SORT_KEYS)
    body = _PREFIX.pack(MAGIC, len(text)) + text + meta
    return body + xxhash.xxh3_128_digest(body)


def decode(data: bytes) -> Decoded:
    """Parse a meta file; raise PoolError that says which part is wrong."""
    if len(data) < _PREFIX.size + CHECKSUM_BYTES:
        raise PoolError(f"the meta file is cut short: {len(data)} bytes")
    magic, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise PoolError("the meta file is of another format or version")
    body = memoryview(data)[:-CHECKSUM_BYTES]
    if xxhash.xxh3_128_digest(body) != data[-CHECKSUM_BYTES:]:
        raise PoolError("the meta file is corrupt: its checksum differs")
    end = _PREFIX.size + length
    try:
        fields = orjson.loads(body[_PREFIX.size : end])
        header = Header(
            entry=EntryId(fields["entry"]),
            owner=Owner(**fields["owner"]),
            fingerprint=Fingerprint(**fields["fingerprint"]),
            data_bytes=fields["data_bytes"],
            data_checksum=fields["data_checksum"],
            meta_bytes=fields["meta_bytes"],
        )
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise PoolError(f"the meta file's header does not parse: {error}") from error
    meta = bytes(body[end:])
    if len(meta) != header.meta_bytes:
        raise PoolError(f"the meta file holds {len(meta)} bytes of {header.meta_bytes}")
    return Decoded(header, meta)
