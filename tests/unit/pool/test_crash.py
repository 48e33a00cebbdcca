"""A pool killed at any point, or without space: an entry is whole or not there."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bedplate.core.ids import EntryId, TenantId
from bedplate.pool import KvPool

BANK = TenantId("bank")

PRELUDE = """
import os, signal, sys
from pathlib import Path
from bedplate.errors import PoolError
from bedplate.pool import Fingerprint, KvPool, Owner

made = Fingerprint("m", "f16", "l", "e", 1, "h")
owner = Owner("bank", "s", 0)
pool = KvPool.open(Path(sys.argv[1]), name="t", size_bytes_max=10**9, fallback=Path("/"))

def store(entry, data, meta=b"meta"):
    pending = pool.begin(entry, owner)
    try:
        pending.path.write_bytes(data)
    except OSError:
        pool.abort(pending)
        raise
    return pool.commit(pending, made, meta)
"""

KILL_AT = """
store(1, b"first" * 100)
calls = 0
watched = {"open", "rename", "unlink", "remove", "fsync", "write"}
target = int(sys.argv[2])

def watch(name, real):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == target:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call

for name in sorted(watched):
    setattr(os, name, watch(name, getattr(os, name)))
pool.on_disk = True  # so that every sync is a point to be killed at
store(2, b"second" * 100)
pool.drop(1)
print(calls, flush=True)
"""


def run(
    script: str, *args: str, limit_bytes: int | None = None
) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        assert limit_bytes is not None
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-c", PRELUDE + script, *args],
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=limit if limit_bytes is not None else None,
    )


def reopened(folder: Path) -> dict[int, bytes]:
    """Open the folder as after a restart; return all entries, each verified."""
    pool = KvPool.open(folder, name="t", size_bytes_max=10**9, fallback=Path("/"))
    try:
        assert pool.used_bytes == pool.file_bytes, "a leftover was not dropped, or not counted"
        return {
            info.entry: pool.open_entry(EntryId(info.entry), None, BANK).path.read_bytes()
            for info in pool.entries()
        }
    finally:
        pool.close()


def test_killed_at_every_system_call_an_entry_is_whole_or_not_there(tmp_path: Path) -> None:
    whole = run(KILL_AT, str(tmp_path / "whole"), "0")
    assert whole.returncode == 0, whole.stderr
    points = int(whole.stdout)
    assert points >= 8, "the store and the drop must pass several points"
    seen = set()
    for point in range(1, points + 1):
        folder = tmp_path / str(point)
        killed = run(KILL_AT, str(folder), str(point))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        found = reopened(folder)
        assert all(
            data == {1: b"first" * 100, 2: b"second" * 100}[entry] for entry, data in found.items()
        )
        seen.add(tuple(sorted(found)))
    assert seen == {(1,), (1, 2), (2,)}, "kills must fall before, between and after"


def test_no_room_for_the_meta_file_leaves_nothing_half_done(tmp_path: Path) -> None:
    script = """
try:
    store(1, b"x" * 1000, meta=b"m" * 5000)
except PoolError as error:
    print(error.message)
print(pool.file_bytes, pool.used_bytes, len(pool.entries()))
store(1, b"x" * 1000, meta=b"m")
"""
    result = run(script, str(tmp_path / "pool"), limit_bytes=4096)
    assert result.returncode == 0, result.stderr
    message, counts = result.stdout.splitlines()
    assert "entry 1 cannot be stored" in message
    assert "File too large" in message
    assert counts == "0 0 0"
    assert reopened(tmp_path / "pool") == {1: b"x" * 1000}


def can_mount() -> bool:
    return os.geteuid() == 0 and Path("/usr/bin/mount").exists() and sys.platform == "linux"


@pytest.mark.skipif(not can_mount(), reason="mounting a small file system needs root")
def test_a_full_memory_file_system_stores_nothing_and_recovers(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True
    )
    if done.returncode != 0:
        pytest.skip("this system does not let root mount a tmpfs")
    script = """
assert not pool.on_disk
for size, meta in ((100_000, 10), (60_000, 10_000)):
    try:
        store(1, b"x" * size, meta=b"m" * meta)
    except (PoolError, OSError) as error:
        print(type(error).__name__, error)
    print(pool.file_bytes, pool.used_bytes)
store(1, b"x" * 10_000)
"""
    try:
        result = run(script, str(mount / "pool"))
        assert result.returncode == 0, result.stderr
        by_engine, first, by_pool, second = result.stdout.splitlines()
        assert "No space left" in by_engine
        assert by_pool.startswith("PoolError")
        assert "No space left" in by_pool
        assert first == second == "0 0"
        assert reopened(mount / "pool") == {1: b"x" * 10_000}
    finally:
        subprocess.run(["umount", str(mount)], check=True)
