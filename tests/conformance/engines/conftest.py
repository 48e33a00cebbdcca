"""One started engine for each test and case; a case whose engine is not built is skipped."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.engines.cases import CASES, Case


@pytest.fixture(params=sorted(CASES))
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    module = CASES[request.param]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no case for engine {request.param} yet")
    async with importlib.import_module(module).open_case(tmp_path) as opened:
        yield opened
