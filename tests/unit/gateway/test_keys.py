"""API keys: what is stored, who is let in, and what another process changes."""

from __future__ import annotations

import itertools
import sqlite3
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from bedplate.errors import ConfigError, NotAuthenticated
from bedplate.gateway.keys import REREAD_NS, KeyStore, KeysUnavailable

NOW = 10**18
HOUR = 3600 * 10**9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def store(path: Path) -> Iterator[KeyStore]:
    with KeyStore(path) as opened:
        yield opened


def refused(store: KeyStore, secret: str, now: int = NOW) -> str:
    with pytest.raises(NotAuthenticated) as caught:
        store.authenticate(secret, now)
    assert caught.value.http_status == 401
    return caught.value.message


def test_a_key_tells_tenant_lanes_and_models(store: KeyStore) -> None:
    key = store.add("bank", now_ns=NOW, lanes=(1, 2), models=("a", "b"), admin=True)
    credential = store.authenticate(key.secret, NOW)
    assert credential.key_id == key.key_id
    assert credential.tenant == "bank"
    assert (credential.lanes, credential.models) == ((1, 2), ("a", "b"))
    assert (credential.admin, credential.expires_ns) == (True, 0)


def test_defaults_are_all_lanes_all_models_no_admin(store: KeyStore) -> None:
    credential = store.authenticate(store.add("bank", now_ns=NOW).secret, NOW)
    assert (credential.lanes, credential.models, credential.admin) == ((0, 1, 2), (), False)


def test_the_secret_names_its_key_and_is_256_bits(store: KeyStore) -> None:
    key = store.add("bank", now_ns=NOW)
    prefix, key_id, tail = key.secret.split("_")
    assert (prefix, key_id) == ("bp", key.key_id)
    assert len(bytes.fromhex(tail)) == 32


def test_the_file_is_private_and_holds_no_secret(path: Path, store: KeyStore) -> None:
    key = store.add("bank", now_ns=NOW)
    tail = key.secret.split("_")[2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    raw = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert tail.encode() not in raw
    assert bytes.fromhex(tail) not in raw
    assert sha256(tail.encode()).digest() in raw
    assert tail not in repr(store.list())


def test_a_file_that_others_may_read_is_refused(path: Path) -> None:
    path.touch(mode=0o600)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        KeyStore(path)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(b"not a database, but long enough to be looked at as one" * 40)
    with pytest.raises(ConfigError, match=r"keys\.db"):
        KeyStore(path)


def test_every_refusal_says_the_same(store: KeyStore) -> None:
    good = store.add("bank", now_ns=NOW)
    revoked = store.add("bank", now_ns=NOW)
    store.revoke(revoked.key_id, now_ns=NOW)
    expired = store.add("bank", now_ns=NOW - HOUR, expires_ns=NOW)
    said = {
        refused(store, secret)
        for secret in (
            "",
            "bp",
            "bp_",
            "bp__",
            f"bp_{good.key_id}_",
            good.secret[:-1],
            good.secret + "0",
            good.secret.upper(),
            f"xx{good.secret[2:]}",
            f"bp_000000000000_{'0' * 64}",
            "\ud800",
            "\xff_\x00",
            revoked.secret,
            expired.secret,
        )
    }
    assert len(said) == 1
    assert good.secret not in said.pop()
    assert store.authenticate(good.secret, NOW)


def test_a_key_expires_at_its_time(store: KeyStore) -> None:
    key = store.add("bank", now_ns=NOW, expires_ns=NOW + HOUR)
    assert store.authenticate(key.secret, NOW + HOUR - 1)
    refused(store, key.secret, NOW + HOUR)
    store.expire(key.key_id, at_ns=0)
    assert store.authenticate(key.secret, NOW + HOUR)
    store.expire(key.key_id, at_ns=NOW)
    refused(store, key.secret, NOW + HOUR)


def test_rotation_keeps_the_old_secret_for_the_grace_period(store: KeyStore) -> None:
    old = store.add("bank", now_ns=NOW, label="app")
    new = store.rotate(old.key_id, now_ns=NOW, grace_ns=HOUR)
    assert new.key_id == old.key_id
    assert new.secret != old.secret
    for secret in (old.secret, new.secret):
        assert store.authenticate(secret, NOW + HOUR - 1).tenant == "bank"
    refused(store, old.secret, NOW + HOUR)
    assert store.authenticate(new.secret, NOW + HOUR)


def test_rotation_without_grace_ends_the_old_secret_at_once(store: KeyStore) -> None:
    old = store.add("bank", now_ns=NOW)
    new = store.rotate(old.key_id, now_ns=NOW, grace_ns=0)
    refused(store, old.secret)
    newer = store.rotate(old.key_id, now_ns=NOW, grace_ns=HOUR)
    refused(store, old.secret)
    assert store.authenticate(new.secret, NOW)
    assert store.authenticate(newer.secret, NOW)


def test_revoking_ends_both_secrets_for_good(store: KeyStore) -> None:
    old = store.add("bank", now_ns=NOW)
    new = store.rotate(old.key_id, now_ns=NOW, grace_ns=HOUR)
    store.revoke(old.key_id, now_ns=NOW + 1)
    store.revoke(old.key_id, now_ns=NOW + 2)
    for secret in (old.secret, new.secret):
        refused(store, secret, NOW + 3)
    assert [info.revoked_ns for info in store.list()] == [NOW + 1]
    with pytest.raises(ConfigError, match="revoked"):
        store.rotate(old.key_id, now_ns=NOW, grace_ns=0)
    with pytest.raises(ConfigError, match="revoked"):
        store.expire(old.key_id, at_ns=0)


def test_list_shows_keys_by_tenant_and_age_with_their_state(store: KeyStore) -> None:
    store.add("fund", now_ns=NOW, label="b")
    late = store.add("bank", now_ns=NOW + 2, label="late")
    store.add("bank", now_ns=NOW, label="early", expires_ns=NOW + 3)
    store.revoke(late.key_id, now_ns=NOW + 3)
    found = [(i.credential.tenant, i.label, i.state(NOW + 3)) for i in store.list()]
    assert found == [
        ("bank", "early", "expired"),
        ("bank", "late", "revoked"),
        ("fund", "b", "valid"),
    ]


def test_another_process_takes_effect_within_half_a_second(path: Path, store: KeyStore) -> None:
    mine = store.add("bank", now_ns=NOW)
    assert store.authenticate(mine.secret, NOW)
    with KeyStore(path) as other:
        added = other.add("fund", now_ns=NOW)
        other.revoke(mine.key_id, now_ns=NOW)
        refused(store, added.secret, NOW + REREAD_NS - 1)
        assert store.authenticate(added.secret, NOW + REREAD_NS).tenant == "fund"
        refused(store, mine.secret, NOW + REREAD_NS)
        new = other.rotate(added.key_id, now_ns=NOW + REREAD_NS, grace_ns=0)
        assert store.authenticate(new.secret, NOW + 2 * REREAD_NS)
        refused(store, added.secret, NOW + 2 * REREAD_NS)


def unavailable(store: KeyStore, secret: str, now: int) -> None:
    with pytest.raises(KeysUnavailable) as caught:
        store.authenticate(secret, now)
    assert caught.value.http_status == 503


def test_nobody_is_let_in_while_the_file_holds_no_keys(
    path: Path, store: KeyStore, caplog: pytest.LogCaptureFixture
) -> None:
    secret = store.add("bank", now_ns=NOW).secret
    good = path.read_bytes()
    path.write_bytes(b"garbage, not a database " * 500)
    for at in (NOW, NOW + 1, NOW + REREAD_NS, NOW + REREAD_NS + 1):
        unavailable(store, secret, at)
    assert caplog.text.count(path.name) == 1
    path.write_bytes(good)
    unavailable(store, secret, NOW + 2 * REREAD_NS - 1)
    assert store.authenticate(secret, NOW + 2 * REREAD_NS)


def test_nobody_is_let_in_while_the_file_is_gone(path: Path, store: KeyStore) -> None:
    secret = store.add("bank", now_ns=NOW).secret
    kept = path.rename(path.with_name("kept"))
    unavailable(store, secret, NOW)
    assert not path.exists()
    kept.rename(path)
    assert store.authenticate(secret, NOW + REREAD_NS)


def test_a_row_that_makes_no_sense_lets_nobody_in(path: Path, store: KeyStore) -> None:
    secret = store.add("bank", now_ns=NOW).secret
    with sqlite3.connect(path) as database:
        database.execute("UPDATE keys SET lanes = 'all'")
    database.close()
    unavailable(store, secret, NOW)
    unavailable(store, secret, NOW + 1)


def test_a_file_put_in_its_place_is_the_one_that_counts(path: Path, store: KeyStore) -> None:
    mine = store.add("bank", now_ns=NOW)
    assert store.authenticate(mine.secret, NOW)
    with KeyStore(path.with_name("other.db")) as other:
        theirs = other.add("fund", now_ns=NOW)
    path.with_name("other.db").replace(path)
    refused(store, mine.secret, NOW + REREAD_NS)
    assert store.authenticate(theirs.secret, NOW + REREAD_NS).tenant == "fund"
    for_all = path.with_name("for-all.db")
    for_all.write_bytes(path.read_bytes())
    for_all.chmod(0o644)
    for_all.replace(path)
    unavailable(store, theirs.secret, NOW + 2 * REREAD_NS)


def test_nothing_is_read_again_while_nothing_changed(path: Path) -> None:
    statements: list[str] = []
    with KeyStore(path) as store:
        secret = store.add("bank", now_ns=NOW).secret
        store._db.set_trace_callback(statements.append)
        for step in range(100):
            store.authenticate(secret, NOW + step * REREAD_NS // 10)
    assert set(statements) == {"PRAGMA data_version"}
    assert len(statements) == 10


def test_keys_outlive_the_process(path: Path) -> None:
    with KeyStore(path) as store:
        secret = store.add("bank", now_ns=NOW, lanes=(2,), models=("m",), label="x").secret
        before = store.list()
    with KeyStore(path) as again:
        assert again.list() == before
        assert again.authenticate(secret, NOW).lanes == (2,)


@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 65, "-a", "a/b", "a\n"])
def test_a_malformed_tenant_is_refused(store: KeyStore, name: str) -> None:
    with pytest.raises(ConfigError, match="tenant"):
        store.add(name, now_ns=NOW)


@pytest.mark.parametrize(
    ("lanes", "models", "label", "expires_ns"),
    [
        ((), (), "", 0),
        ((0, 0), (), "", 0),
        ((3,), (), "", 0),
        ((0,), ("",), "", 0),
        ((0,), ("a\nb",), "", 0),
        ((0,), ("m",) * 65, "", 0),
        ((0,), (), "a b", 0),
        ((0,), (), "", NOW),
    ],
)
def test_what_cannot_be_is_refused(
    store: KeyStore, lanes: tuple[int, ...], models: tuple[str, ...], label: str, expires_ns: int
) -> None:
    with pytest.raises(ConfigError):
        store.add(
            "bank", now_ns=NOW, lanes=lanes, models=models, label=label, expires_ns=expires_ns
        )
    assert store.list() == ()


def test_an_unknown_key_is_named(store: KeyStore) -> None:
    for change in (
        lambda: store.revoke("abc", now_ns=NOW),
        lambda: store.rotate("abc", now_ns=NOW, grace_ns=0),
        lambda: store.expire("abc", at_ns=0),
    ):
        with pytest.raises(ConfigError, match="abc"):
            change()


def test_ids_come_from_the_random_source(path: Path) -> None:
    count = itertools.count(1)
    with KeyStore(path, random=lambda size: bytes([next(count)]) * size) as store:
        key = store.add("bank", now_ns=NOW)
    assert key.secret == f"bp_{'01' * 6}_{'02' * 32}"


def test_the_table_is_strict(path: Path, store: KeyStore) -> None:
    store.add("bank", now_ns=NOW)
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        database.execute("UPDATE keys SET expires_ns = 'soon'")
    database.close()
