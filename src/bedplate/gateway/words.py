"""Random words for ids, drawn from the system many at a time.

One system call per word would let go of the interpreter's lock, and get it back behind the
journal's writer; at hundreds of requests a second that costs more than all else an id needs.
"""

from __future__ import annotations

import os

_DRAWN_BYTES = 4096


class Words:
    """Draws hexadecimal words. Not for secrets that are kept: the next ones wait in memory."""

    __slots__ = ("_at", "_drawn")

    def __init__(self) -> None:
        self._drawn = b""
        self._at = 0

    def draw(self, size_bytes: int) -> str:
        """Return a word of 2 × `size_bytes` digits, never one that was returned before."""
        assert 0 < size_bytes <= _DRAWN_BYTES
        if self._at + size_bytes > len(self._drawn):
            self._drawn = os.urandom(_DRAWN_BYTES)
            self._at = 0
        word = self._drawn[self._at : self._at + size_bytes]
        self._at += size_bytes
        return word.hex()
