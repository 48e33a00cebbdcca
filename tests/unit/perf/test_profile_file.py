from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bedplate.errors import ConfigError
from bedplate.perf.profile import Batching, CardProfile, LinearCost, MoveCost
from bedplate.perf.profile_file import Calibration, Errors, FitError, dump, load, read

PROFILE = CardProfile(
    name="embedded",
    model="gemma-3-270m",
    evidence="fitted",
    kv="full",
    can_cut=False,
    slots=8,
    running_max=2,
    kv_tokens=16_384,
    context_tokens=16_384,
    kv_bytes_per_token=18_432,
    batching=Batching(token_budget=128, order="slot"),
    step=LinearCost(1.5e6, 3e7, 8_123_456.789, 4.4e7, 1 / 3, 1234.5),
    store=MoveCost(4e6, 0.125, stalls=True),
    load=MoveCost(2e6, 1e-3, stalls=False),
    begin_ns=2.5e6,
    end_ns=5e5,
)
CALIBRATION = Calibration(
    made="2026-11-30T13:00:00Z",
    command='bedplate calibrate --out "a b.toml"',
    machine='Linux "test" \\ x86\x7f',
    cpus=2,
    load=0.25,
    engine="xllamacpp 1",
    cards=2,
    seconds=61.5,
    timer_ns=1,
    seed=0,
    rounds=3,
    points=40,
    notes=("one", "两"),
)
ERRORS = Errors(prefill=FitError(points=12, mean=0.031, median=0.02, p90=0.06))


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """Write the profile's file with one part of its text in another way."""
    path = tmp_path / "card.toml"
    dump(PROFILE, path, calibration=CALIBRATION, errors=ERRORS)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return path


def test_a_file_gives_the_same_profile_again(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    dump(PROFILE, path, calibration=CALIBRATION, errors=ERRORS)
    found = read(path)
    assert found.profile == PROFILE
    assert found.calibration == CALIBRATION
    assert found.errors == ERRORS
    assert load(path) == PROFILE


def test_a_card_that_keeps_its_kv_itself_has_no_moves(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    nothing = MoveCost(0.0, 0.0, stalls=False)
    profile = replace(PROFILE, kv="hints", store=nothing, load=nothing)
    dump(profile, path)
    assert "[store]" not in path.read_text()
    assert load(path) == profile
    assert read(path).calibration is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("launch_ns", "lunch_ns", 'unknown key "step.lunch_ns"; the nearest is "step.launch_ns"'),
        ("[error.prefill]", "[error.prefil]", 'the nearest is "error.prefill"'),
        ("stalls = true", "", "store.stalls: is missing"),
        ("slots = 8", "slots = -8", "card.slots: "),
        ("launch_ns = 1500000.0", "launch_ns = -1.0", "step.launch_ns: "),
        ("launch_ns = 1500000.0", "launch_ns = nan", "step.launch_ns: "),
        ("launch_ns = 1500000.0", "launch_ns = 1e18", "step.launch_ns: "),
        ("slots = 8", "slots = 1099511627776", "card.slots: "),
        ("slots = 8", f"slots = {'9' * 5_000}", "is not TOML"),
        ('order = "slot"', 'order = "slots"', "batching.order: "),
        ("format = 1", "format = 2", "format: "),
        ('kv = "full"', "kv = full", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_key(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = changed(tmp_path, old, new)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_a_card_that_moves_kv_needs_the_times_of_both(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    dump(PROFILE, path)
    head, _, tail = path.read_text().partition("[load]")
    path.write_text(head)
    assert "stalls = false" in tail
    with pytest.raises(ConfigError, match="load: is missing"):
        load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be written"):
        dump(PROFILE, tmp_path / "none" / "card.toml")


class Roofline:
    """A step cost that is no row of constants."""

    pair_ns = 1.0
    context_ns = 1.0

    def fixed_ns(self, prompt_tokens: int, sequences: int) -> float:
        return float(prompt_tokens + sequences)


def test_a_step_cost_that_no_file_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Roofline cannot be written"):
        dump(replace(PROFILE, step=Roofline()), tmp_path / "card.toml")
