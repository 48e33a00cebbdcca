"""Fixtures that several integration tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.tiny_gguf import write


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny random model, written once a session."""
    return write(tmp_path_factory.mktemp("model") / "tiny.gguf")
