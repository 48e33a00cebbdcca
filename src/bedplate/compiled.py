"""Import the compiled forms of hot modules, where `make env` could build them.

The source is the program: a compiled module is used only if it was built from the very source
that lies here, so whoever edits a file runs the file. Both forms take the same decisions; the
tests compare their digests. `BEDPLATE_COMPILED=0` leaves the compiled ones aside (ADR 0014).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent
MANIFEST = "manifest.json"


def folder() -> Path:
    """Return where this interpreter's compiled modules lie, if it has any."""
    return Path(sysconfig.get_path("platlib"), "bedplate_compiled")


def fingerprint(sources: Iterable[str]) -> str:
    """Return the SHA-256 of these files, named relative to the package, and of their names."""
    digest = hashlib.sha256()
    for name in sources:
        digest.update(f"{name}\n".encode())
        digest.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return digest.hexdigest()


def use() -> bool:
    """Let later imports find compiled modules; tell whether there are any that fit the source.

    Cost: some two milliseconds, to read and hash the sources.
    """
    if os.environ.get("BEDPLATE_COMPILED") == "0":
        return False
    where = folder()
    try:
        manifest = json.loads((where / MANIFEST).read_bytes())
        fits = bool(manifest["fingerprint"] == fingerprint(manifest["sources"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if fits:
        files = {module: where / file for module, file in manifest["modules"].items()}
        sys.meta_path.insert(0, _Finder(files))
    return fits


class _Finder(MetaPathFinder):
    """Finds the modules of one build."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)
