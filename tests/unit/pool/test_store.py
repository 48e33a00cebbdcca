"""The pool's promises on real files: ownership, checks before use, one cap, nothing half done."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bedplate.core.ids import BranchId, EntryId, SessionId, TenantId
from bedplate.errors import PoolError
from bedplate.pool import Fingerprint, KvPool, Owner

BANK, RIVAL = TenantId("bank"), TenantId("rival")
OWNER = Owner(BANK, SessionId("s1"), BranchId(0))
MADE = Fingerprint("sha256:abc", "f16", "gemma3/26", "llama.cpp 1", 100, "hash-of-100")


def open_pool(folder: Path, size_bytes_max: int = 1_000_000) -> KvPool:
    return KvPool.open(
        folder, name="test", size_bytes_max=size_bytes_max, fallback=folder.parent / "disk"
    )


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[KvPool]:
    opened = open_pool(tmp_path / "pool")
    yield opened
    opened.close()


def store(
    pool: KvPool, entry: int, *, owner: Owner = OWNER, data: bytes = b"kv" * 500, meta: bytes = b"m"
) -> int:
    pending = pool.begin(EntryId(entry), owner)
    pending.path.write_bytes(data)
    return pool.commit(pending, MADE, meta)


def files(pool: KvPool, suffix: str) -> list[Path]:
    return sorted(pool.folder.glob(f"*.{suffix}"))


def test_a_stored_entry_comes_back_whole(pool: KvPool) -> None:
    size = store(pool, 7, data=b"state" * 1000, meta=b"\x00ids\xff")

    opened = pool.open_entry(EntryId(7), MADE, BANK)

    assert opened.path.read_bytes() == b"state" * 1000
    assert opened.path.parent == pool.folder
    assert opened.path.name == opened.name
    assert "/" not in opened.name
    assert opened.meta == b"\x00ids\xff"
    assert opened.fingerprint == MADE
    assert opened.size_bytes == size == pool.used_bytes == pool.file_bytes


def test_an_entry_may_be_opened_by_several_loads_at_once(pool: KvPool) -> None:
    store(pool, 1)
    first = pool.open_entry(EntryId(1), MADE, BANK)
    second = pool.open_entry(EntryId(1), MADE, BANK)
    assert first == second


def test_tokens_of_the_fingerprint_are_the_adapters_business(pool: KvPool) -> None:
    store(pool, 1)
    pool.open_entry(EntryId(1), replace(MADE, tokens=3, tokens_hash="other"), BANK)
    pool.open_entry(EntryId(1), None, BANK)


@pytest.mark.parametrize("field", ["model_digest", "kv_type", "layout", "engine"])
def test_kv_made_otherwise_is_refused_by_name(pool: KvPool, field: str) -> None:
    store(pool, 1)
    changed: dict[str, Any] = {field: "changed"}
    with pytest.raises(PoolError, match=field):
        pool.open_entry(EntryId(1), replace(MADE, **changed), BANK)


def test_a_foreign_entry_answers_like_a_missing_one(pool: KvPool) -> None:
    store(pool, 1)
    with pytest.raises(PoolError) as foreign:
        pool.open_entry(EntryId(1), MADE, RIVAL)
    pool.drop(EntryId(1))
    with pytest.raises(PoolError) as missing:
        pool.open_entry(EntryId(1), MADE, RIVAL)
    assert foreign.value.message == missing.value.message


def test_ownership_is_checked_before_anything_that_would_tell_of_the_entry(pool: KvPool) -> None:
    store(pool, 1)
    with pytest.raises(PoolError) as error:
        pool.open_entry(EntryId(1), replace(MADE, kv_type="q8_0"), RIVAL)
    assert "kv_type" not in error.value.message


@pytest.mark.parametrize("position", [0, 499, 999])
def test_one_flipped_bit_of_data_is_found(pool: KvPool, position: int) -> None:
    store(pool, 1)
    (path,) = files(pool, "kv")
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(PoolError, match="entry 1 is corrupt"):
        pool.open_entry(EntryId(1), MADE, BANK)


def test_a_truncated_file_is_named_so(pool: KvPool) -> None:
    store(pool, 1)
    (path,) = files(pool, "kv")
    os.truncate(path, 999)
    with pytest.raises(PoolError, match="truncated: 999 bytes of 1000"):
        pool.open_entry(EntryId(1), MADE, BANK)


def test_a_missing_data_file_is_an_error_of_the_pool(pool: KvPool) -> None:
    store(pool, 1)
    files(pool, "kv")[0].unlink()
    with pytest.raises(PoolError, match="entry 1 cannot be read"):
        pool.open_entry(EntryId(1), MADE, BANK)


def test_a_data_file_swapped_for_a_link_is_not_followed(pool: KvPool, tmp_path: Path) -> None:
    store(pool, 1)
    (path,) = files(pool, "kv")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PoolError):
        pool.open_entry(EntryId(1), MADE, BANK)


def test_every_flipped_bit_of_the_meta_file_is_found(pool: KvPool) -> None:
    store(pool, 1, meta=b"ids")
    (path,) = files(pool, "meta")
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        path.write_bytes(bad)
        with pytest.raises(PoolError, match="entry 1"):
            pool.open_entry(EntryId(1), MADE, BANK)


def test_swapped_meta_files_are_found(pool: KvPool) -> None:
    store(pool, 1, owner=OWNER)
    store(pool, 2, owner=Owner(RIVAL, SessionId("s2"), BranchId(0)))
    first, second = files(pool, "meta")
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    with pytest.raises(PoolError, match="changed from outside"):
        pool.open_entry(EntryId(1), MADE, BANK)


def test_the_cap_counts_data_and_meta_and_refuses_what_passes_it(tmp_path: Path) -> None:
    probe = open_pool(tmp_path / "probe")
    each = store(probe, 1, meta=b"x" * 300)
    probe.close()
    assert each > 1300

    pool = open_pool(tmp_path / "pool", size_bytes_max=2 * each)
    store(pool, 1, meta=b"x" * 300)
    store(pool, 2, meta=b"x" * 300)
    with pytest.raises(PoolError, match="does not fit"):
        store(pool, 3, meta=b"")
    assert pool.used_bytes == pool.file_bytes == 2 * each
    assert pool.drop(EntryId(1)) == each
    store(pool, 3, meta=b"x" * 300)
    assert [info.entry for info in pool.entries()] == [2, 3]
    pool.close()


def test_bytes_are_counted_by_tenant(pool: KvPool) -> None:
    rival = Owner(RIVAL, SessionId("s9"), BranchId(0))
    mine = store(pool, 1) + store(pool, 2)
    theirs = store(pool, 3, owner=rival)
    assert pool.bytes_by_tenant() == {BANK: mine, RIVAL: theirs}
    pool.drop(EntryId(3))
    assert pool.bytes_by_tenant() == {BANK: mine}


def test_an_id_in_use_cannot_begin_again(pool: KvPool) -> None:
    pending = pool.begin(EntryId(1), OWNER)
    with pytest.raises(PoolError, match="exists already"):
        pool.begin(EntryId(1), OWNER)
    pool.abort(pending)
    store(pool, 1)
    with pytest.raises(PoolError, match="exists already"):
        pool.begin(EntryId(1), OWNER)


def test_abort_leaves_nothing_and_may_be_called_twice(pool: KvPool) -> None:
    pending = pool.begin(EntryId(1), OWNER)
    pending.path.write_bytes(b"half")
    pool.abort(pending)
    pool.abort(pending)
    assert pool.file_bytes == 0
    assert not pending.path.exists()
    with pytest.raises(PoolError, match="not being stored"):
        pool.commit(pending, MADE, b"")


def test_an_engine_that_wrote_nothing_stored_nothing(pool: KvPool) -> None:
    pending = pool.begin(EntryId(1), OWNER)
    with pytest.raises(PoolError, match="empty"):
        pool.commit(pending, MADE, b"")
    assert list(pool.folder.glob("*.kv")) == []
    assert pool.entries() == []


def test_an_engine_whose_file_lacks_its_tail_stored_nothing(pool: KvPool) -> None:
    pending = pool.begin(EntryId(1), OWNER)
    pending.path.write_bytes(b"x" * 4096)
    with pytest.raises(PoolError, match="wrote 5000 bytes, the file holds 4096"):
        pool.commit(pending, MADE, b"", written_bytes=5000)
    assert pool.file_bytes == 0


def test_drop_is_idempotent_and_collect_keeps_only_what_lives(pool: KvPool) -> None:
    for entry in range(1, 6):
        store(pool, entry)
    assert pool.drop(EntryId(5)) > 0
    assert pool.drop(EntryId(5)) == 0
    assert pool.collect({EntryId(2), EntryId(4), EntryId(99)}) == 2
    assert [info.entry for info in pool.entries()] == [2, 4]
    assert len(files(pool, "kv")) == len(files(pool, "meta")) == 2


def test_collect_finds_a_late_file_of_a_card_and_spares_a_running_store(pool: KvPool) -> None:
    running = pool.begin(EntryId(1), OWNER)
    running.path.write_bytes(b"still being written")
    late = pool.folder / f"{'0' * 32}.kv"
    late.write_bytes(b"from a card that outlived its gateway")
    assert pool.collect(()) == 0
    assert not late.exists()
    assert running.path.exists()
    assert pool.commit(running, MADE, b"") > 0


def test_files_are_private_to_the_user(pool: KvPool) -> None:
    store(pool, 1)
    assert stat.S_IMODE(pool.folder.stat().st_mode) == 0o700
    for path in pool.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_what_cannot_be_deleted_stays_counted(
    pool: KvPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = store(pool, 1)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(PoolError, match="entry 1 cannot be deleted"):
        pool.drop(EntryId(1))
    monkeypatch.undo()
    assert pool.used_bytes == size
    assert pool.drop(EntryId(1)) == size
