"""Opening the pool: what survives a restart, what is dropped, whose folder it may be."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bedplate.core.ids import BranchId, EntryId, SessionId, TenantId
from bedplate.errors import PoolError
from bedplate.pool import Fingerprint, KvPool, Owner
from bedplate.pool import folder as folders

BANK = TenantId("bank")
OWNER = Owner(BANK, SessionId("s1"), BranchId(3))
MADE = Fingerprint("sha256:abc", "f16", "gemma3/26", "llama.cpp 1", 100, "hash-of-100")
MISSING = Path("/nonexistent")


def open_pool(folder: Path | None, size_bytes_max: int = 1_000_000) -> KvPool:
    return KvPool.open(folder, name="test", size_bytes_max=size_bytes_max, fallback=MISSING)


def store(pool: KvPool, entry: int, data: bytes = b"kv" * 500) -> int:
    pending = pool.begin(EntryId(entry), OWNER)
    pending.path.write_bytes(data)
    return pool.commit(pending, MADE, b"meta")


def test_entries_survive_a_restart(tmp_path: Path) -> None:
    pool = open_pool(tmp_path / "pool")
    store(pool, 3)
    store(pool, 1)
    before, used = pool.entries(), pool.used_bytes
    pool.close()

    again = open_pool(tmp_path / "pool")
    assert again.entries() == before
    assert [info.owner for info in before] == [OWNER, OWNER]
    assert again.used_bytes == used == again.file_bytes
    assert again.open_entry(EntryId(3), MADE, BANK).path.read_bytes() == b"kv" * 500
    again.close()


def test_leftovers_are_dropped_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    pool = open_pool(folder)
    for entry in (1, 2, 3, 4):
        store(pool, entry, data=bytes([entry]) * 100)
    stems = {
        info.entry: pool.open_entry(info.entry, None, BANK).name.removesuffix(".kv")
        for info in pool.entries()
    }
    pool.close()
    (folder / f"{stems[EntryId(2)]}.kv").unlink()
    os.truncate(folder / f"{stems[EntryId(3)]}.kv", 99)
    os.truncate(folder / f"{stems[EntryId(4)]}.meta", 40)
    (folder / f"{'a' * 32}.kv").write_bytes(b"data without meta")
    (folder / f"{'b' * 32}.tmp").write_bytes(b"meta never renamed")
    (folder / "notes.txt").write_text("not the pool's")

    again = open_pool(folder)

    assert [info.entry for info in again.entries()] == [1]
    stem = stems[EntryId(1)]
    assert {path.name for path in folder.iterdir()} == {
        f"{stem}.kv",
        f"{stem}.meta",
        "notes.txt",
        "pool.lock",
    }
    assert again.used_bytes == again.file_bytes
    again.close()


def test_two_files_that_claim_one_entry_leave_one(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    pool = open_pool(folder)
    store(pool, 1)
    stem = pool.open_entry(EntryId(1), None, BANK).name[:-3]
    pool.close()
    for suffix in ("kv", "meta"):
        (folder / f"{'f' * 32}.{suffix}").write_bytes((folder / f"{stem}.{suffix}").read_bytes())
    again = open_pool(folder)
    assert len(again.entries()) == 1
    assert len(list(folder.glob("*.kv"))) == 1
    again.open_entry(EntryId(1), MADE, BANK)
    again.close()


def test_a_smaller_cap_keeps_what_is_there_and_takes_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = open_pool(tmp_path / "pool")
    size = store(pool, 1)
    pool.close()
    with caplog.at_level(logging.WARNING):
        small = open_pool(tmp_path / "pool", size_bytes_max=size - 1)
    assert "the cap is now" in caplog.text
    small.open_entry(EntryId(1), MADE, BANK)
    with pytest.raises(PoolError, match="does not fit"):
        store(small, 2, data=b"x")
    small.close()


def test_one_folder_serves_one_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from bedplate.pool import KvPool;"
        "KvPool.open(Path(sys.argv[1]), name='t', size_bytes_max=10, fallback=Path('/'));"
        "print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "pool")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(PoolError, match=f"in use by process {other.pid}"):
            open_pool(tmp_path / "pool")
        other.kill()
    open_pool(tmp_path / "pool").close()


def test_the_lock_is_not_passed_to_started_programs(tmp_path: Path) -> None:
    pool = open_pool(tmp_path / "pool")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as card:
        pool.close()
        open_pool(tmp_path / "pool").close()
        card.kill()


def test_a_failed_open_gives_the_lock_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pool: KvPool) -> None:
        raise PoolError("broken")

    monkeypatch.setattr(KvPool, "_load", fail)
    with pytest.raises(PoolError, match="broken"):
        open_pool(tmp_path / "pool")
    monkeypatch.undo()
    open_pool(tmp_path / "pool").close()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool").chmod(mode)
    with pytest.raises(PoolError, match="writable by other users"):
        open_pool(tmp_path / "pool")


def test_a_folder_of_our_own_is_closed_to_readers(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool").chmod(0o755)
    open_pool(tmp_path / "pool").close()
    assert (tmp_path / "pool").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir(mode=0o700)
    os.chown(tmp_path / "pool", 12345, -1)
    with pytest.raises(PoolError, match="belongs to user 12345"):
        open_pool(tmp_path / "pool")


def test_a_link_or_a_file_is_no_pool_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(PoolError, match="is not a folder"):
            open_pool(tmp_path / name)


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir(mode=0o700)
    (tmp_path / "victim").write_text("keep")
    (tmp_path / "pool" / "pool.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(PoolError, match="pool lock"):
        open_pool(tmp_path / "pool")
    assert (tmp_path / "victim").read_text() == "keep"


def test_a_size_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="must be above 0"):
        open_pool(tmp_path / "pool", size_bytes_max=0)


needs_shared_memory = pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or not folders.in_memory(Path("/dev/shm")),
    reason="this system has no /dev/shm in memory",
)


@needs_shared_memory
def test_shared_memory_is_the_default_and_is_named_by_user_and_pool(tmp_path: Path) -> None:
    name = f"unit-{os.getpid()}"
    place = folders.choose(None, name=name, size_bytes_max=1, fallback=tmp_path / "disk")
    try:
        assert place.folder == Path(f"/dev/shm/bedplate-{os.geteuid()}-{name}")
        assert not place.on_disk
        assert place.warning is None
    finally:
        place.folder.rmdir()


def test_without_shared_memory_the_pool_is_on_disk_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders.choose, "__kwdefaults__", {"shared_memory": tmp_path / "no-shm"})
    with caplog.at_level(logging.WARNING):
        pool = KvPool.open(None, name="t", size_bytes_max=1000, fallback=tmp_path / "disk")
    assert pool.folder == tmp_path / "disk"
    assert pool.warning is not None
    assert "does not exist" in pool.warning
    assert pool.warning in caplog.text
    pool.close()


def test_shared_memory_that_is_no_memory_is_passed_over(tmp_path: Path) -> None:
    if folders.in_memory(tmp_path):
        pytest.skip("the temporary folder is itself in memory")
    (tmp_path / "shm").mkdir()
    place = folders.choose(
        None,
        name="t",
        size_bytes_max=1,
        fallback=tmp_path / "disk",
        shared_memory=tmp_path / "shm",
    )
    assert place.on_disk
    assert place.warning is not None
    assert "not a memory file system" in place.warning


@needs_shared_memory
def test_shared_memory_that_is_too_small_is_passed_over(tmp_path: Path) -> None:
    place = folders.choose(None, name="big", size_bytes_max=1 << 60, fallback=tmp_path / "disk")
    assert place.folder == tmp_path / "disk"
    assert place.warning is not None
    assert "has room for" in place.warning
    assert not Path(f"/dev/shm/bedplate-{os.geteuid()}-big").exists()
