"""The words of the pool: who owns an entry, what it was made from, what the pool hands out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bedplate.core.ids import BranchId, EntryId, SessionId, TenantId


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What stored KV was made from; KV made otherwise must never be loaded (F21).

    `model_digest`, `kv_type`, `layout` and `engine` must be equal for a load. `tokens` and
    `tokens_hash` describe the stored context; the adapter compares them with its own record.
    """

    model_digest: str
    kv_type: str
    layout: str
    engine: str
    tokens: int
    tokens_hash: str


@dataclass(frozen=True, slots=True)
class Owner:
    """The branch that an entry belongs to, and who pays for it."""

    tenant: TenantId
    session: SessionId
    branch: BranchId


@dataclass(frozen=True, slots=True)
class Pending:
    """A store that has begun: the engine writes `path`, then `commit` or `abort` ends it.

    `name` is the file's flat name inside the pool's folder (llama.cpp takes no slash).
    """

    entry: EntryId
    owner: Owner
    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One entry of the index. `size_bytes` counts the data file and the meta file."""

    entry: EntryId
    owner: Owner
    fingerprint: Fingerprint
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A verified entry, ready to be read by an engine.

    It stays readable until the entry is dropped. Several loads may hold the same entry.
    `meta` is what the adapter gave to `commit`.
    """

    name: str
    path: Path
    fingerprint: Fingerprint
    meta: bytes
    size_bytes: int
