"""What the adapter remembers of each branch: its token ids, and where each message's content ends.

Text is never made into tokens twice: a prompt is the ids of the messages known already, and those
of the new ones after them. So what a card or the pool holds stays a prefix of the prompt, whatever
the tokenizer would make of the same text today.

    ids        [ head msg0 | msg1 | msg2 (the answer) ]
    ends         ^ ends[0]   ^ [1]  ^ [2]               0: the end of this message is not known
    computed     ids[:computed] are in the branch's KV; a last sampled token is not

A transcript is immutable. It is kept packed, since thousands of idle sessions have one.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bedplate.core.ids import BranchId, EntryId, SessionId, TenantId
from bedplate.engines.base import JsonObject, canonical

HASH_BYTES = 16
_HEADER = struct.Struct("<4sIIII16s")
_MAGIC = b"BPT1"
_COMPARE_BYTES = 4096
_OBJECT_BYTES = 640
"""What a transcript's objects, its owner's and their places in two dictionaries take."""


class Owner(NamedTuple):
    """A branch of a session, with its tenant: no transcript crosses tenants (INV-07)."""

    tenant: TenantId
    session: SessionId
    branch: BranchId


@dataclass(frozen=True, slots=True)
class Transcript:
    """Token ids of one branch, packed as little-endian u32, with message hashes and ends.

    `root` stands for what comes before the first message: tools and template. `tail` is the last
    token of the answer when it was sampled but not computed, else -1. `complete` is False when the
    server kept ids back (a character that is split over tokens): ids then end before them, and a
    stored file fills them in.
    """

    root: bytes
    hashes: bytes
    ends: bytes
    ids: bytes
    computed: int
    complete: bool = True
    tail: int = -1

    @property
    def size_bytes(self) -> int:
        """Bytes that this transcript keeps in memory."""
        return _OBJECT_BYTES + len(self.hashes) + len(self.ends) + len(self.ids)

    def known(self, root: bytes, hashes: bytes) -> int:
        """Return how many leading messages are the same and end where this transcript knows."""
        if root != self.root:
            return 0
        ends = unpack(self.ends)
        best = 0
        for index in range(min(len(hashes), len(self.hashes)) // HASH_BYTES):
            at = index * HASH_BYTES
            if hashes[at : at + HASH_BYTES] != self.hashes[at : at + HASH_BYTES]:
                break
            if ends[index]:
                best = index + 1
        return best

    def filled(self, file_ids: bytes) -> Transcript:
        """Return the transcript with what the stored file says of the ids that were kept back."""
        if self.complete or not file_ids.startswith(self.ids):
            return self
        ids = file_ids if self.tail < 0 else file_ids + pack([self.tail])
        ends = unpack(self.ends)
        ends[-1] = len(ids) // 4
        return replace(self, ids=ids, ends=pack(ends), complete=True)

    def encode(self) -> bytes:
        """Return the form that is kept with a pool entry."""
        messages = len(self.hashes) // HASH_BYTES
        header = _HEADER.pack(
            _MAGIC, messages, len(self.ids) // 4, self.computed, int(self.complete), self.root
        )
        return header + self.hashes + self.ends + self.ids


def decode(data: bytes) -> Transcript | None:
    """Return the transcript of a pool entry, None where the bytes are of another format."""
    if len(data) < _HEADER.size:
        return None
    magic, messages, tokens, computed, complete, root = _HEADER.unpack_from(data)
    at = _HEADER.size
    if magic != _MAGIC or len(data) != at + messages * (HASH_BYTES + 4) + tokens * 4:
        return None
    middle = at + messages * HASH_BYTES
    end = middle + messages * 4
    return Transcript(
        root, data[at:middle], data[middle:end], data[end:], computed, complete=bool(complete)
    )


def pack(values: Sequence[int]) -> bytes:
    """Return integers as little-endian u32."""
    return array("I", values).tobytes()


def unpack(data: bytes) -> array[int]:
    """Return the integers of `pack`."""
    values = array("I")
    values.frombytes(data)
    return values


def common_tokens(a: bytes, b: bytes) -> int:
    """Return how many leading ids two packed sequences share. Cost: a compare of memory."""
    limit = min(len(a), len(b))
    at = 0
    while at < limit and a[at : at + _COMPARE_BYTES] == b[at : at + _COMPARE_BYTES]:
        at += _COMPARE_BYTES
    at = min(at, limit)
    while at < limit and a[at : at + 4] == b[at : at + 4]:
        at += 4
    return at // 4


def ids_hash(ids: bytes) -> str:
    """Return the hash of packed ids that a fingerprint holds."""
    return hashlib.sha256(ids).hexdigest()


def opening_name(tenant: TenantId, model: str, ids: bytes) -> str:
    """Return the name of an opening: equal for the same ids of one tenant and model only."""
    return hashlib.sha256(canonical([tenant, model]) + ids).hexdigest()[: 2 * HASH_BYTES]


def root_hash(template: str, tools: Sequence[JsonObject]) -> bytes:
    """Return the hash of everything that stands before the first message."""
    text = canonical([template, list(tools)])
    return hashlib.sha256(text).digest()[:HASH_BYTES]


def pack_hashes(hashes: Sequence[bytes]) -> bytes:
    """Return message hashes as a transcript keeps them: cut, one after the other."""
    return b"".join(each[:HASH_BYTES] for each in hashes)


class Transcripts:
    """The transcripts of all branches, in bounded memory.

    What is beyond `bytes_max` leaves memory. Those that the pool keeps too (`_spare`) go before the
    others, in each the least recently used first: what is kept with a pool entry can be read again
    from there (`entry`); any other is simply not known any more, and its branch's next prompt is
    made from text again.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[Owner, Transcript] = OrderedDict()
        self._spare: OrderedDict[Owner, Transcript] = OrderedDict()
        self._stored: dict[Owner, EntryId] = {}
        self._branches: dict[SessionId, set[Owner]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held) + len(self._spare)

    @property
    def size_bytes(self) -> int:
        """Memory that the transcripts take."""
        return self._bytes

    def put(self, owner: Owner, transcript: Transcript) -> None:
        """Remember the branch's transcript in place of the one before. The pool has it not."""
        self._drop(owner)
        self._held[owner] = transcript
        self._bytes += transcript.size_bytes
        self._branches.setdefault(owner.session, set()).add(owner)
        while self._bytes > self._bytes_max and len(self) > 1:
            self._drop(next(iter(self._spare or self._held)))

    def get(self, owner: Owner) -> Transcript | None:
        """Return the branch's transcript if it is in memory."""
        for kept in (self._held, self._spare):
            if owner in kept:
                kept.move_to_end(owner)
                return kept[owner]
        return None

    def stored(self, owner: Owner, entry: EntryId | None) -> None:
        """Note which pool entry keeps this branch's transcript as it is, None for none."""
        if entry is None:
            self._stored.pop(owner, None)
            return
        self._stored[owner] = entry
        self._branches.setdefault(owner.session, set()).add(owner)
        if owner in self._held:
            self._spare[owner] = self._held.pop(owner)

    def entry(self, owner: Owner) -> EntryId | None:
        """Return the pool entry that keeps this branch's transcript."""
        return self._stored.get(owner)

    def forget(self, session: SessionId) -> None:
        """Drop all branches of an ended session."""
        for owner in self._branches.pop(session, set()):
            self._drop(owner)
            self._stored.pop(owner, None)

    def _drop(self, owner: Owner) -> None:
        gone = self._held.pop(owner, None) or self._spare.pop(owner, None)
        if gone is not None:
            self._bytes -= gone.size_bytes
