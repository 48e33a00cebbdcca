"""API keys: who calls, and what they may do.

A key reads `bp_<key id>_<secret>`. The id is public and names the key in lists, logs and bills; the
secret is 32 random bytes, shown once and never stored. What is stored is SHA-256 of the secret: a
slow password hash protects passwords that can be guessed, and 256 random bits cannot, at any speed,
so it would only slow down each call. Hashes are compared in constant time.

Keys live in one SQLite file (mode 0600). A running gateway sees what the CLI changes in another
process: at most every 0.5 s `authenticate` looks whether the file is another one now and asks
SQLite for its change counter, and reads the table again only if that moved. Else a check is one
dictionary look-up and one SHA-256. While the file cannot be read, nobody is let in: what it would
say may be that a key is revoked. Times are wall-clock nanoseconds and come from the caller. Nothing
is written per call.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from bedplate.core.ids import ModelId, TenantId
from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import MILLISECOND_NS
from bedplate.errors import BedplateError, ConfigError, NotAuthenticated

REREAD_NS = 500 * MILLISECOND_NS
KEYS_MAX = 100_000
SERVICE_LABEL = "operator"
"""Label of the key that a running service makes for itself."""
NAME_MAX = 64
MODELS_MAX = 64

_PREFIX = "bp"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    key_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    label TEXT NOT NULL,
    lanes TEXT NOT NULL,
    models TEXT NOT NULL,
    admin INTEGER NOT NULL,
    created_ns INTEGER NOT NULL,
    expires_ns INTEGER NOT NULL,
    revoked_ns INTEGER NOT NULL,
    hash BLOB NOT NULL,
    old_hash BLOB NOT NULL,
    old_until_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID
"""


log = logging.getLogger("bedplate.gateway")


class KeysUnavailable(BedplateError):
    """The keys cannot be read now, so nobody knows which are valid."""

    code = "keys_unavailable"
    http_status = 503
    retryable = True


@dataclass(frozen=True, slots=True)
class Credential:
    """What a valid key allows.

    `lanes` are ranks, the first is the default. `models` empty means all. `expires_ns` 0: never.
    """

    key_id: str
    tenant: TenantId
    lanes: tuple[int, ...]
    models: tuple[ModelId, ...]
    admin: bool
    expires_ns: int


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key as `list` shows it.

    `revoked_ns` 0: not revoked. `old_until_ns`: until when the secret before a rotation works.
    """

    credential: Credential
    label: str
    created_ns: int
    revoked_ns: int
    old_until_ns: int

    def state(self, now_ns: int) -> str:
        """Return valid | expired | revoked."""
        if self.revoked_ns:
            return "revoked"
        expires_ns = self.credential.expires_ns
        return "expired" if expires_ns and expires_ns <= now_ns else "valid"


class NewKey(NamedTuple):
    """A secret, to be shown once."""

    key_id: str
    secret: str


class _Held(NamedTuple):
    """One row as the hot path needs it."""

    info: KeyInfo
    hash: bytes
    old_hash: bytes


class KeyStore:
    """The keys of one service, shared with other processes through its file."""

    def __init__(self, path: Path, *, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """Open the file, created with mode 0600.

        Raises:
            ConfigError: the file cannot be opened, or others may read it.
        """
        self._random = random
        self._path = path
        self._held: dict[str, _Held] = {}
        self._read_ns: int | None = None
        self._readable = True
        self._version = -1
        self._db = _open(path)
        self._file = _file_of(path)
        self._refresh()

    def __enter__(self) -> KeyStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(
        self,
        tenant: str,
        *,
        now_ns: int,
        lanes: Sequence[int] = (0, 1, 2),
        models: Sequence[str] = (),
        label: str = "",
        admin: bool = False,
        expires_ns: int = 0,
    ) -> NewKey:
        """Make a key.

        Args:
            tenant: Who pays for its calls.
            now_ns: Wall clock.
            lanes: Ranks it may use, default first.
            models: Served names it may call; empty means all.
            label: What people know the key by; may be empty.
            admin: Whether it may see and close sessions of all tenants.
            expires_ns: When it stops to work; 0 means never.

        Raises:
            ConfigError: a name, lane or time that cannot be; the message says which.
        """
        _check_name("tenant", tenant)
        if label:
            _check_name("label", label)
        if not lanes or len(set(lanes)) != len(lanes) or not set(lanes) <= {0, 1, 2}:
            raise ConfigError(f"Lanes must be one to three of {', '.join(LANE_NAMES)}, each once.")
        if len(models) > MODELS_MAX or any(not m or "\n" in m or len(m) > 256 for m in models):
            raise ConfigError(f"Models must be at most {MODELS_MAX} names of 1 to 256 characters.")
        if expires_ns and expires_ns <= now_ns:
            raise ConfigError("The key would be expired already: give a later time.")
        self._refresh()
        if len(self._held) >= KEYS_MAX:
            raise ConfigError(f"There are {KEYS_MAX} keys, the most there may be.")
        key_id, secret = self._random(6).hex(), self._random(32).hex()
        row = (
            key_id, tenant, label, ",".join(map(str, lanes)), "\n".join(models), int(admin),
            now_ns, expires_ns, 0, _hash(secret), b"", 0,
        )  # fmt: skip
        self._write(f"INSERT INTO keys VALUES ({','.join('?' * len(row))})", row)
        return NewKey(key_id, _spell(key_id, secret))

    def list(self) -> tuple[KeyInfo, ...]:
        """Return all keys, by tenant, then age."""
        self._refresh()
        infos = [held.info for held in self._held.values()]
        return tuple(
            sorted(infos, key=lambda i: (i.credential.tenant, i.created_ns, i.credential.key_id))
        )

    def tenants(self) -> tuple[TenantId, ...]:
        """Return the tenants that keys name, valid or not, but for the service's own key."""
        infos = (info for info in self.list() if info.label != SERVICE_LABEL)
        return tuple(sorted({info.credential.tenant for info in infos}))

    def revoke(self, key_id: str, *, now_ns: int) -> None:
        """End a key for good, its old secret too.

        Raises:
            ConfigError: no such key.
        """
        self._find(key_id)
        self._write(
            "UPDATE keys SET revoked_ns = ? WHERE key_id = ? AND revoked_ns = 0", (now_ns, key_id)
        )

    def expire(self, key_id: str, *, at_ns: int) -> None:
        """Set when a key stops to work; 0 means never, a time that has passed means now.

        Raises:
            ConfigError: no such key, or it is revoked.
        """
        self._find_live(key_id)
        self._write("UPDATE keys SET expires_ns = ? WHERE key_id = ?", (at_ns, key_id))

    def rotate(self, key_id: str, *, now_ns: int, grace_ns: int) -> NewKey:
        """Give a key a new secret; the old one works until now + grace. One before that ends now.

        Raises:
            ConfigError: no such key, or it is revoked.
        """
        assert grace_ns >= 0
        self._find_live(key_id)
        secret = self._random(32).hex()
        self._write(
            "UPDATE keys SET old_hash = hash, old_until_ns = ?, hash = ? WHERE key_id = ?",
            (now_ns + grace_ns, _hash(secret), key_id),
        )
        return NewKey(key_id, _spell(key_id, secret))

    def authenticate(self, secret: str, now_ns: int) -> Credential:
        """Return what the key allows now.

        Raises:
            NotAuthenticated: unknown, revoked, expired or malformed; one message for all.
            KeysUnavailable: the file can no longer be read, so nobody knows what was revoked.

        Cost: about 4 us, and 20 us each 0.5 s; a change made elsewhere is seen by then.
        """
        if self._read_ns is None or now_ns - self._read_ns >= REREAD_NS or now_ns < self._read_ns:
            self._read_ns = now_ns
            self._look_again()
        if not self._readable:
            raise KeysUnavailable(
                "The service cannot read its keys, so it lets nobody in. Tell its operator."
            )
        key_id, hashed = _take_apart(secret)
        held = self._held.get(key_id)
        if held is not None and _matches(held, hashed, now_ns):
            return held.info.credential
        raise NotAuthenticated(
            "The API key is not valid. Send it as 'Authorization: Bearer bp_...'; "
            "ask the operator of the service for a valid one."
        )

    def _find(self, key_id: str) -> KeyInfo:
        self._refresh()
        held = self._held.get(key_id)
        if held is None:
            raise ConfigError(f"No key {key_id!r} in {self._path}: `bedplate key list` shows them.")
        return held.info

    def _find_live(self, key_id: str) -> None:
        if self._find(key_id).revoked_ns:
            raise ConfigError(f"Key {key_id} is revoked: add a new one.")

    def _write(self, statement: str, values: Sequence[object]) -> None:
        try:
            with self._db:
                self._db.execute(statement, tuple(values))
        except sqlite3.Error as error:
            raise ConfigError(f"Cannot change the keys in {self._path}: {error}") from error
        self._version = -1  # SQLite counts the changes of others only
        self._refresh()

    def _look_again(self) -> None:
        """Refresh; while that fails, nobody is let in, and the log says once why."""
        before, self._readable = self._readable, False
        try:
            self._refresh()
        except ConfigError as error:
            if before:
                log.error("nobody is let in until the keys can be read: %s", error.message)
            return
        self._readable = True
        if not before:
            log.warning("the keys in %s can be read again", self._path)

    def _refresh(self) -> None:
        """Read the table if another process, or this one, changed it, or the file is a new one."""
        try:
            if self._file != _file_of(self._path):
                self._version = -1
                replaced = _open(self._path, create=False)
                self._db.close()
                self._db, self._file = replaced, _file_of(self._path)
            version = int(self._db.execute("PRAGMA data_version").fetchone()[0])
            if version == self._version:
                return
            rows = self._db.execute("SELECT * FROM keys").fetchall()
            self._held = {row[0]: _held(row) for row in rows}
        except (OSError, sqlite3.Error, ValueError) as error:
            self._version = -1  # whatever the file says next, it is read whole
            raise ConfigError(f"Cannot read the keys in {self._path}: {error}") from error
        self._version = version


def _file_of(path: Path) -> tuple[int, int]:
    """Return what tells one file from another that has its name."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _open(path: Path, *, create: bool = True) -> sqlite3.Connection:
    try:
        creating = os.O_CREAT if create else 0
        os.close(os.open(path, os.O_RDWR | creating | os.O_CLOEXEC, 0o600))
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"Others may read {path}: run `chmod 600 {path}`.")
        database = sqlite3.connect(path, timeout=5.0)
        database.execute(_SCHEMA)
        database.commit()
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"Cannot open the keys in {path}: {error}") from error
    return database


def _held(row: Sequence[object]) -> _Held:
    (key_id, tenant, label, lanes, models, admin, created, expires, revoked, now, old, until) = row
    credential = Credential(
        key_id=str(key_id),
        tenant=TenantId(str(tenant)),
        lanes=tuple(int(lane) for lane in str(lanes).split(",")),
        models=tuple(ModelId(model) for model in str(models).split("\n") if model),
        admin=bool(admin),
        expires_ns=_int(expires),
    )
    info = KeyInfo(credential, str(label), _int(created), _int(revoked), _int(until))
    if not isinstance(now, bytes) or not isinstance(old, bytes):
        raise ValueError("a hash is no bytes")
    return _Held(info, now, old)


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError("a time is no number")
    return value


def _matches(held: _Held, hashed: bytes, now_ns: int) -> bool:
    current = hmac.compare_digest(held.hash, hashed)
    former = hmac.compare_digest(held.old_hash, hashed) and now_ns < held.info.old_until_ns
    return (current or former) and held.info.state(now_ns) == "valid"


def _spell(key_id: str, tail: str) -> str:
    return f"{_PREFIX}_{key_id}_{tail}"


def _take_apart(secret: str) -> tuple[str, bytes]:
    """Return id and hash; what does not have the form of a key has an id that no key has."""
    prefix, _, rest = secret.partition("_")
    key_id, _, tail = rest.partition("_")
    return (key_id if prefix == _PREFIX else ""), _hash(tail)


def _hash(tail: str) -> bytes:
    return sha256(tail.encode("utf-8", "replace")).digest()


def _check_name(what: str, name: str) -> None:
    if len(name) > NAME_MAX or _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"The {what} {name[:NAME_MAX]!r} must be 1 to {NAME_MAX} letters, digits or . _ -, "
            "and begin with a letter or digit."
        )
