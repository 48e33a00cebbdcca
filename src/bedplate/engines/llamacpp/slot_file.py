"""Read the token ids at the head of a slot file: what the server itself says the slot held.

Layout of llama.cpp's sequence state files, little endian u32: magic `ggsq`, version, count, then
`count` words. The server's own words are `-1`, a version, the number of ids and the ids, then what
belongs to media (nothing for text); older builds write the ids alone.
"""

from __future__ import annotations

import struct
from pathlib import Path

from bedplate.errors import PoolError

_MAGIC = 0x67677371
_WRAPPED = 0xFFFFFFFF
_TOKENS_MAX = 1 << 24


def slot_file_ids(path: Path) -> bytes:
    """Return the packed ids of a slot file.

    Raises:
        PoolError: the file is not of this layout; it must not be loaded.
    """
    with path.open("rb") as file:
        head = file.read(12)
        if len(head) == 12:
            magic, _version, count = struct.unpack("<III", head)
            if magic == _MAGIC and count <= _TOKENS_MAX:
                words = file.read(count * 4)
                if len(words) == count * 4:
                    return _unwrapped(words, path)
    raise PoolError(f"{path.name} is not a slot file of this engine")


def _unwrapped(words: bytes, path: Path) -> bytes:
    if len(words) < 12:
        return words
    mark, _version, count = struct.unpack_from("<III", words)
    if mark != _WRAPPED:
        return words
    ids = words[12 : 12 + count * 4]
    if len(ids) != count * 4:
        raise PoolError(f"{path.name} holds fewer tokens than it says")
    return ids
