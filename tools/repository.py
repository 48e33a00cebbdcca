"""The files of this repository, for the checks beside it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE_FOLDERS = ("src", "tests", "tools", "bench")


def tracked(root: Path = ROOT) -> list[Path]:
    """Return the files that are, or would be, committed: tracked or new, and not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    ).stdout.decode()
    paths = (root / name for name in sorted(listing.split("\0")) if name)
    return [path for path in paths if path.is_file()]


def modules(root: Path = ROOT) -> Iterator[Path]:
    """Yield every Python file below the code folders, sorted."""
    for folder in CODE_FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))
