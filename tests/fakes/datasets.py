"""Where the real data sets lie: in the folder that BEDPLATE_DATA names, or beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def dataset(*parts: str) -> Path:
    """Return a file or folder of the data sets; skip the test, saying so, where it is absent."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    path = Path(os.environ.get("BEDPLATE_DATA", beside)).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no data set {'/'.join(parts)} at {path}; set BEDPLATE_DATA to its folder")
    return path
