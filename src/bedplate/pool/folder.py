"""Where the pool lives: choosing the folder, checking whose it is, and locking it.

KV is a tenant's context in another form, so the folder is as private as the prompts: owned by the
user who runs the service, closed to everyone else, used by one process at a time.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import NamedTuple

from bedplate.errors import PoolError

SHARED_MEMORY = Path("/dev/shm")
LOCK_NAME = "pool.lock"
_MEMORY_TYPES = frozenset({"tmpfs", "ramfs"})


class Place(NamedTuple):
    """A folder that is ready for use. `warning` says why it is not the one that was wanted."""

    folder: Path
    on_disk: bool
    warning: str | None


def choose(
    folder: Path | None,
    *,
    name: str,
    size_bytes_max: int,
    fallback: Path,
    shared_memory: Path = SHARED_MEMORY,
) -> Place:
    """Return the private folder to use, made if it is missing.

    Args:
        folder: A folder from the configuration, or None for shared memory.
        name: Names the pool in shared memory: `bedplate-<uid>-<name>`.
        size_bytes_max: Cap of the pool; shared memory with less room than this is passed over.
        fallback: Folder on disk, for when shared memory cannot be used.
        shared_memory: Mount point of the memory file system.

    Raises:
        PoolError: The folder cannot be made, is not ours, or others may write to it.
    """
    if folder is not None:
        make_private(folder)
        return Place(folder, not in_memory(folder), _room_warning(folder, size_bytes_max))
    wanted = shared_memory / f"bedplate-{os.geteuid()}-{name}"
    problem = _memory_problem(wanted, size_bytes_max)
    if problem is None:
        make_private(wanted)
        return Place(wanted, False, None)
    make_private(fallback)
    warning = f"{problem}; the KV pool is on disk in {fallback}, which is slower"
    room = _room_warning(fallback, size_bytes_max)
    return Place(fallback, not in_memory(fallback), f"{warning}; {room}" if room else warning)


def make_private(folder: Path) -> None:
    """Make the folder with mode 0700, or check that it is ours and closed to others.

    Raises:
        PoolError: It is a link or no folder, of another user, or writable by others.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise PoolError(f"pool folder {folder} is not a folder; name another one")
        if found.st_uid != os.geteuid():
            raise PoolError(
                f"pool folder {folder} belongs to user {found.st_uid}, not to user"
                f" {os.geteuid()} who runs the service; remove it or name another one"
            )
        if found.st_mode & 0o022:
            raise PoolError(
                f"pool folder {folder} is writable by other users"
                f" (mode {stat.S_IMODE(found.st_mode):04o}); make it 0700 or name another one"
            )
        folder.chmod(0o700)
    except OSError as error:
        raise PoolError(f"pool folder {folder} cannot be used: {error.strerror}") from error


def lock(folder: Path) -> int:
    """Take the folder for this process; return the descriptor that holds the lock.

    The lock ends with the process, however it ends. The descriptor is not passed to programs that
    this process starts.

    Raises:
        PoolError: Another process has it; the message names that process.
    """
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PoolError(f"pool lock {path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise PoolError(
            f"pool folder {folder} is in use by process {holder};"
            " stop that service or give this one another pool folder or name"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise PoolError(f"pool lock {path} cannot be taken: {error.strerror}") from error
    return descriptor


def in_memory(folder: Path) -> bool:
    """Say whether the folder is on a memory file system, where a sync to disk means nothing."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == wanted:
            return right.split()[0] in _MEMORY_TYPES
    return False


def _memory_problem(wanted: Path, size_bytes_max: int) -> str | None:
    """Say why shared memory cannot hold this pool, or None when it can."""
    parent = wanted.parent
    if not parent.is_dir():
        return f"{parent} does not exist"
    if not in_memory(parent):
        return f"{parent} is not a memory file system"
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"{parent} is not writable"
    room = _room_bytes(wanted)
    if room < size_bytes_max:
        return f"{parent} has room for {room} bytes of the pool's {size_bytes_max}"
    return None


def _room_warning(folder: Path, size_bytes_max: int) -> str | None:
    room = _room_bytes(folder)
    if room >= size_bytes_max:
        return None
    return f"{folder} has room for {room} bytes of the pool's {size_bytes_max}"


def _room_bytes(folder: Path) -> int:
    """Return the bytes that files in `folder` hold or may still take."""
    mount = folder if folder.is_dir() else folder.parent
    figures = os.statvfs(mount)
    room = figures.f_bavail * figures.f_frsize
    if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
        room += sum(item.stat(follow_symlinks=False).st_size for item in os.scandir(folder))
    return room
