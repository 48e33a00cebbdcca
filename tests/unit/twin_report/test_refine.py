from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bedplate.errors import ConfigError
from bedplate.perf.profile import LinearCost
from bedplate.twin.refine import refine
from tests.unit.twin_report.files import card_profile
from tests.unit.twin_report.recorded import record


def test_a_profile_that_is_twice_too_slow_is_put_right(tmp_path: Path) -> None:
    right = card_profile()
    assert isinstance(right.step, LinearCost)
    slow = LinearCost(
        launch_ns=2 * right.step.launch_ns,
        weights_ns=2 * right.step.weights_ns,
        prompt_ns=2 * right.step.prompt_ns,
        sequence_ns=2 * right.step.sequence_ns,
        pair_ns=2 * right.step.pair_ns,
        context_ns=2 * right.step.context_ns,
    )
    found = refine(replace(right, step=slow), record(tmp_path / "j"))
    assert isinstance(found.step, LinearCost)
    assert found.step.launch_ns == pytest.approx(right.step.launch_ns, rel=0.03)
    assert found.step.prompt_ns == pytest.approx(right.step.prompt_ns, rel=0.05)
    assert found.evidence == "fitted"


def test_a_right_profile_stays(tmp_path: Path) -> None:
    right = card_profile()
    assert isinstance(right.step, LinearCost)
    found = refine(right, record(tmp_path / "j"))
    assert isinstance(found.step, LinearCost)
    assert found.step.launch_ns == pytest.approx(right.step.launch_ns, rel=0.01)


def test_another_step_cost_is_refused(tmp_path: Path) -> None:
    class Other:
        pair_ns = 0.0
        context_ns = 0.0

        def fixed_ns(self, prompt_tokens: int, sequences: int) -> float:
            return 1e6

    with pytest.raises(ConfigError, match="linear"):
        refine(replace(card_profile(), step=Other()), record(tmp_path / "j"))
