"""Idempotency keys: the same call sent twice runs once and is billed once.

A client that sends `Idempotency-Key` may send the call again after a time-out. Per tenant and key:

    begin ──► Fresh ────────► finish (answer stored)  ──► begin ──► Stored: replay it
                 │                                         other body ──► 409
                 ├── begin meanwhile ──► Running: attach to that turn, or answer `in_progress`
                 └── release (refused, failed, cut: no answer) ──► the key is free again

Body and session name decide whether a call is the same, byte for byte, and the body also whether it
is streamed: what was streamed is replayed as a stream, from the stored response. Keys should come
from what the agent does (session, step, tool), never from generated text.

A pure data structure: no I/O, no clock. Answers stay where they are (the journal's contents); an
entry holds their hash. Answered entries live 24 hours, and each tenant has its own bound, so that
no tenant can push out another's. After a restart entries come back from `answered` notes; calls
that ran then were lost, so their keys are free.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from bedplate.core.ids import SessionId, TenantId, TurnId
from bedplate.core.units import MINUTE_NS
from bedplate.engines.base import JsonObject
from bedplate.errors import IdempotencyConflict, InvalidRequest
from bedplate.journal.record import Record

KEY_HEADER = "Idempotency-Key"
KEY_MAX = 255
KEEP_NS = 24 * 60 * MINUTE_NS
TENANT_KEYS_MAX = 10_000
NOTE_KIND = "answered"
HASH_BYTES = 16


class Fresh(NamedTuple):
    """The caller runs the call, and owes one `finish` or `release`."""

    key: bytes


class Running(NamedTuple):
    """The same call runs as `turn` now."""

    turn: TurnId


class Stored(NamedTuple):
    """The same call was answered: `content` is the hash of the response stored in the journal."""

    turn: TurnId
    session: SessionId
    content: str


Claim = Fresh | Running | Stored


@dataclass(slots=True)
class _Entry:
    """`content` is empty while the call runs."""

    body_hash: bytes
    turn: TurnId
    session: SessionId
    content: str
    expires_ns: int


class IdempotencyTable:
    """Who runs what under which key. See the module's docstring."""

    def __init__(self, *, tenant_keys_max: int = TENANT_KEYS_MAX) -> None:
        self._keys_max = tenant_keys_max
        self._tenants: dict[TenantId, OrderedDict[bytes, _Entry]] = {}

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return sum(len(entries) for entries in self._tenants.values())

    def begin(
        self, tenant: TenantId, key: str, body_hash: bytes, turn: TurnId, now_ns: int
    ) -> Claim:
        """Claim the key for a call that would run as `turn`.

        Args:
            tenant: From the credential.
            key: Value of the Idempotency-Key header.
            body_hash: `hash_body` of the call.
            turn: The id under which the call will run if the key is fresh.
            now_ns: Time of the call.

        Raises:
            InvalidRequest: the key is malformed.
            IdempotencyConflict: the key was used with another body or session, answered or not.
        """
        entries = self._tenants.setdefault(tenant, OrderedDict())
        _expire(entries, now_ns)
        hashed = hash_key(key)
        entry = entries.get(hashed)
        if entry is None or (entry.content and entry.expires_ns <= now_ns):
            entries[hashed] = _Entry(body_hash, turn, SessionId(""), "", now_ns + KEEP_NS)
            entries.move_to_end(hashed)
            self._bound(entries)
            return Fresh(hashed)
        if entry.body_hash != body_hash:
            raise IdempotencyConflict(
                f"{KEY_HEADER} was used with another body or session by turn {entry.turn}: "
                "use a new key for a new call.",
                param=KEY_HEADER,
            )
        if not entry.content:
            return Running(entry.turn)
        entries.move_to_end(hashed)
        return Stored(entry.turn, entry.session, entry.content)

    def finish(
        self, tenant: TenantId, claim: Fresh, session: SessionId, content: str, now_ns: int
    ) -> JsonObject:
        """Keep the answer of a call that ran to its end, for 24 hours.

        Args:
            tenant: As in `begin`.
            claim: From `begin`.
            session: Where the turn ran.
            content: Hash of the response, which the caller writes to the journal with the note.
            now_ns: Time of the end.

        Returns:
            Body of the `answered` note to journal for this tenant and session.
        """
        assert content
        entries = self._tenants[tenant]
        entry = entries[claim.key]
        assert not entry.content, f"turn {entry.turn} was answered twice"
        entry.session, entry.content, entry.expires_ns = session, content, now_ns + KEEP_NS
        entries.move_to_end(claim.key)
        return note_body(claim.key, entry.body_hash, entry.turn, content)

    def release(self, tenant: TenantId, claim: Fresh) -> None:
        """Free the key of a call that ended without an answer: the next one runs anew."""
        entry = self._tenants[tenant].pop(claim.key)
        assert not entry.content, f"turn {entry.turn} was answered, its key stays"

    def restore(self, record: Record, now_ns: int) -> None:
        """Fold one journal record, in journal order; what is not an `answered` note passes."""
        expires_ns = record.time_ns + KEEP_NS
        if record.kind != NOTE_KIND or expires_ns <= now_ns:
            return
        body = record.body
        entries = self._tenants.setdefault(TenantId(record.tenant), OrderedDict())
        key = bytes.fromhex(body["key"])
        entries[key] = _Entry(
            bytes.fromhex(body["body"]),
            TurnId(body["turn"]),
            SessionId(record.session),
            body["content"],
            expires_ns,
        )
        entries.move_to_end(key)
        self._bound(entries)

    def _bound(self, entries: OrderedDict[bytes, _Entry]) -> None:
        """Drop the answered key used longest ago; running ones are bounded by core's queues."""
        if len(entries) <= self._keys_max:
            return
        oldest = next((key for key, entry in entries.items() if entry.content), None)
        if oldest is not None:
            del entries[oldest]


def hash_body(path: str, body: bytes, *, session: str = "") -> bytes:
    """Return the hash by which two calls are the same: path, session named, body as received."""
    hashed = blake2b(digest_size=HASH_BYTES)
    for part in (path.encode(), session.encode()):
        hashed.update(len(part).to_bytes(4, "big") + part)
    hashed.update(body)
    return hashed.digest()


def hash_key(key: str) -> bytes:
    """Return the hash of a checked idempotency key.

    Raises:
        InvalidRequest: empty, too long, or not printable ASCII.
    """
    if not 0 < len(key) <= KEY_MAX or not key.isascii() or not key.isprintable():
        raise InvalidRequest(
            f"{KEY_HEADER} must be 1 to {KEY_MAX} printable ASCII characters.", param=KEY_HEADER
        )
    return blake2b(key.encode(), digest_size=HASH_BYTES).digest()


def note_body(key: bytes, body_hash: bytes, turn: TurnId, content: str) -> JsonObject:
    """Return the body of an `answered` note: what `IdempotencyTable.restore` needs."""
    return {"key": key.hex(), "body": body_hash.hex(), "turn": turn, "content": content}


def in_progress(running: Running) -> IdempotencyConflict:
    """Return the 409 for a call whose twin still runs, where the gateway does not attach to it."""
    return IdempotencyConflict(
        f"The same call is running as turn {running.turn}: send it again when that has ended.",
        code="idempotency_in_progress",
        param=KEY_HEADER,
        retry_after_s=1,
    )


def _expire(entries: OrderedDict[bytes, _Entry], now_ns: int) -> None:
    """Drop expired answers from the old end, two a call, so that they go faster than they come."""
    for key in [key for key, _ in zip(entries, range(2), strict=False)]:
        if entries[key].content and entries[key].expires_ns <= now_ns:
            del entries[key]
