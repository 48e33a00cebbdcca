"""The Merkle tree of RFC 9162, section 2.1: frontier, proofs, and their verification.

Everything here is pure. A leaf hash is SHA-256(0x00 ‖ bytes), an inner node SHA-256(0x01 ‖ left ‖
right), the root of the empty tree SHA-256 of nothing. The frontier keeps the roots of the perfect
subtrees that make up the tree, one for each set bit of its size:

    size 13 = 0b1101      levels[3] = root of leaves 0..7
                          levels[2] = root of leaves 8..11
                          levels[0] = leaf 12
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

EMPTY_ROOT = hashlib.sha256(b"").digest()
HASH_BYTES = 32
_LEVELS = 64
_NODE_START = hashlib.sha256(b"\x01")

SubtreeRoot = Callable[[int, int], bytes]
"""Root of the leaves from the first index up to, not including, the second."""


class Range(NamedTuple):
    """Leaves `start` up to, not including, `end`."""

    start: int
    end: int


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class Frontier:
    """The right edge of a growing tree: enough to add leaves and to tell the root."""

    __slots__ = ("_levels", "size")

    def __init__(self) -> None:
        self.size = 0
        self._levels: list[bytes | None] = [None] * _LEVELS

    @classmethod
    def restore(cls, size: int, packed: bytes) -> Frontier:
        """Rebuild a frontier from `pack`; whether it is the right one is told by its root.

        Raises:
            ValueError: the number of hashes does not fit the size.
        """
        if size < 0 or len(packed) != HASH_BYTES * size.bit_count():
            raise ValueError(f"a frontier of size {size} has {size.bit_count()} hashes")
        self = cls()
        self.size = size
        levels = (level for level in range(_LEVELS) if size >> level & 1)
        for at, level in enumerate(levels):
            self._levels[level] = packed[HASH_BYTES * at : HASH_BYTES * (at + 1)]
        return self

    def pack(self) -> bytes:
        """Return the subtree roots, lowest level first."""
        return b"".join(peak for peak in self._levels if peak is not None)

    def copy(self) -> Frontier:
        """Return an independent copy."""
        twin = Frontier()
        twin.size = self.size
        twin._levels = self._levels.copy()
        return twin

    def extend(self, leaves: Sequence[bytes]) -> None:
        """Add leaf hashes, in order. Cost: one node hash a leaf, amortised."""
        run = list(leaves)
        level = 0
        while run:
            peak = self._levels[level]
            if peak is not None:
                run.insert(0, peak)
            self._levels[level] = run.pop() if len(run) & 1 else None
            run = _parents(run)
            level += 1
        self.size += len(leaves)
        assert all(
            (peak is not None) == bool(self.size >> level & 1)
            for level, peak in enumerate(self._levels)
        ), "one peak for each bit of the size"

    def root(self) -> bytes:
        """Return the root of the tree as it is now."""
        root: bytes | None = None
        for peak in self._levels:
            if peak is not None:
                root = peak if root is None else node_hash(peak, root)
        return EMPTY_ROOT if root is None else root


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """Return the subtrees whose roots prove that leaf `index` is in a tree of `size`, bottom up."""
    assert 0 <= index < size
    path: list[Range] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(Range(middle, end))
            end = middle
        else:
            path.append(Range(start, middle))
            start = middle
    return path[::-1]


def consistency_ranges(old: int, new: int) -> list[Range]:
    """Return the subtrees whose roots prove a tree of `old` leaves a prefix of one of `new`.

    Bottom up, as RFC 9162 orders them; empty when old equals new or is 0.
    """
    assert 0 <= old <= new
    if old in (0, new):
        return []
    path: list[Range] = []
    start, end, whole = 0, new, True
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(Range(middle, end))
            end = middle
        else:
            path.append(Range(start, middle))
            start, whole = middle, False
    if not whole:
        path.append(Range(start, end))
    return path[::-1]


def inclusion_proof(index: int, size: int, subtree_root: SubtreeRoot) -> list[bytes]:
    """Return the hashes that `verify_inclusion` needs."""
    return [subtree_root(start, end) for start, end in inclusion_ranges(index, size)]


def consistency_proof(old: int, new: int, subtree_root: SubtreeRoot) -> list[bytes]:
    """Return the hashes that `verify_consistency` needs."""
    return [subtree_root(start, end) for start, end in consistency_ranges(old, new)]


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Tell whether the proof shows leaf hash `leaf` at `index` of the tree of `size` with `root`.

    Source: RFC 9162, section 2.1.3.2.
    """
    if not 0 <= index < size:
        return False
    at, last, made = index, size - 1, leaf
    for part in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            made = node_hash(part, made)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            made = node_hash(made, part)
        at, last = at >> 1, last >> 1
    return last == 0 and made == root


def verify_consistency(
    old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Tell whether the proof shows that the tree of `old` leaves is a prefix of the one of `new`.

    Source: RFC 9162, section 2.1.4.2.
    """
    if not 0 <= old <= new:
        return False
    if old == new:
        return not proof and old_root == new_root
    if old == 0:
        return not proof and old_root == EMPTY_ROOT
    path = list(proof)
    if old & (old - 1) == 0:
        path.insert(0, old_root)
    if not path:
        return False
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    made_old = made_new = path[0]
    for part in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            made_old = node_hash(part, made_old)
            made_new = node_hash(part, made_new)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            made_new = node_hash(made_new, part)
        at, last = at >> 1, last >> 1
    return last == 0 and made_old == old_root and made_new == new_root


def _parents(run: Sequence[bytes]) -> list[bytes]:
    """Hash each two. Copying a started hash spares OpenSSL looking it up by name each time."""
    start = _NODE_START.copy
    made = []
    pairs = iter(run)
    for left, right in zip(pairs, pairs, strict=True):
        node = start()
        node.update(left + right)
        made.append(node.digest())
    return made


def _split(size: int) -> int:
    """Return the largest power of two below `size`."""
    assert size > 1
    return 1 << (size - 1).bit_length() - 1
