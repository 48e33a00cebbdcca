"""Which core decided: other code may decide otherwise, so a journal names what wrote it."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata, resources

from bedplate.core import CORE_VERSION


@cache
def core_version() -> str:
    """Return CORE_VERSION and 12 hex digits over the core's sources; a changed line shows."""
    sources = sorted(
        (item.name, item.read_bytes())
        for item in resources.files("bedplate.core").iterdir()
        if item.name.endswith(".py")
    )
    assert sources, "the core's sources are part of every installation"
    digest = hashlib.sha256()
    for name, text in sources:
        digest.update(f"{name} {len(text)}\n".encode())
        digest.update(text)
    return f"{CORE_VERSION}-{digest.hexdigest()[:12]}"


def bedplate_version() -> str:
    """Return the installed version of Bedplate, `source` when it runs from a source tree."""
    try:
        return metadata.version("bedplate")
    except metadata.PackageNotFoundError:
        return "source"
