"""Reading, writing and syncing the pool's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import xxhash

_READ_BYTES = 1 << 20


class Measured(NamedTuple):
    """Size and xxh3_128 in hex of a file."""

    size_bytes: int
    checksum: str


def measure(path: Path, *, sync: bool = False) -> Measured:
    """Return size and xxh3_128 of a file; with `sync`, also bring it to disk.

    Read in pieces that stay in the processor's cache: as fast as a memory map, and a file that
    shrinks meanwhile is an answer, not a crash.
    """
    hasher = xxhash.xxh3_128()
    size_bytes = 0
    buffer = memoryview(bytearray(_READ_BYTES))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
            size_bytes += count
        if sync:
            os.fsync(file.fileno())
    return Measured(size_bytes, hasher.hexdigest())


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however the system cuts it."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
