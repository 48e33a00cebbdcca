"""Fixtures that several integration tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.openai_engine import Behaviour, FakeEngine, ThreadedEngine
from tests.fakes.tiny_gguf import write
from tests.integration.served import Served, endpoint, tiny_cards


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny random model, written once a session."""
    return write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def served_tiny(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Served]:
    """Run one service with two embedded cards for all tests that leave it as they found it."""
    with Served(tmp_path_factory.mktemp("served"), tiny_cards(tiny_model)) as served:
        yield served


@pytest.fixture(scope="session")
def fake_engine() -> Iterator[FakeEngine]:
    """Run the endpoint behind `served_fake`; use it through `upstream`."""
    threaded = ThreadedEngine(FakeEngine())
    with threaded:
        yield threaded.engine


@pytest.fixture
def upstream(fake_engine: FakeEngine) -> FakeEngine:
    """Return the endpoint as if new: nothing scripted, an empty log."""
    fake_engine.default = Behaviour(chunks=3)
    fake_engine.log.clear()
    return fake_engine


@pytest.fixture(scope="session")
def served_fake(
    tmp_path_factory: pytest.TempPathFactory, fake_engine: FakeEngine
) -> Iterator[Served]:
    """Run one service in front of the endpoint; one turn at a time, so that a second one waits."""
    engine = endpoint(fake_engine.url, slots=4, running_max=1)
    with Served(tmp_path_factory.mktemp("served"), engine) as served:
        yield served
