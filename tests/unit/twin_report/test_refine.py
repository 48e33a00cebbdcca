from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bedplate.errors import ConfigError
from bedplate.perf import profile_file
from bedplate.perf.profile import LinearCost
from bedplate.perf.profile_file import ProfileFile
from bedplate.twin.refine import refine, refine_file
from bedplate.twin.scenario import built_in_profiles
from tests.unit.twin_report.files import card_profile
from tests.unit.twin_report.recorded import record, site


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


def test_a_file_keeps_what_it_says_and_gets_the_factors(tmp_path: Path) -> None:
    right = card_profile()
    assert isinstance(right.step, LinearCost)
    slow = replace(right, step=replace(right.step, launch_ns=2 * right.step.launch_ns))
    made = profile_file.read(built_in_profiles()["embedded"])
    assert made.calibration is not None
    file = ProfileFile(slow, made.calibration, made.errors)
    found, factors = refine_file(file, record(tmp_path / "j"))
    assert factors.decoding == pytest.approx(0.5, rel=0.05)
    assert found.errors == made.errors
    assert found.calibration is not None
    assert found.calibration.command == made.calibration.command
    *before, note = found.calibration.notes
    assert tuple(before) == made.calibration.notes
    assert note.startswith(f"refined by {tmp_path / 'j'}: prompts × ")
    assert f"decoding × {factors.decoding:.4g}; " in note
    bare, _ = refine_file(ProfileFile(right, None, None), tmp_path / "j")
    assert (bare.calibration, bare.errors) == (None, None)


def test_another_step_cost_is_refused(tmp_path: Path) -> None:
    class Other:
        pair_ns = 0.0
        context_ns = 0.0

        def fixed_ns(self, prompt_tokens: int, sequences: int) -> float:
            return 1e6

    with pytest.raises(ConfigError, match="linear"):
        refine(replace(card_profile(), step=Other()), record(tmp_path / "j"))


@pytest.mark.parametrize("contention", [0.0, 0.5])
def test_what_cards_of_one_host_cost_one_another_is_found(
    tmp_path: Path, contention: float
) -> None:
    right = replace(card_profile(), contention=contention)
    found = refine(card_profile(), record(tmp_path / "j", on=site(2, right)))
    assert found.contention == contention
