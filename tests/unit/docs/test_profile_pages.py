"""The pages about card profiles say what the code does, and their example is a profile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from bedplate.config.fields import Section
from bedplate.perf import profile_file
from bedplate.perf.catalog import find_model
from bedplate.perf.load import MEMORY_SHARE
from bedplate.perf.profile import LinearCost
from bedplate.perf.profile_file import Calibration, FitError
from tools.repository import ROOT

pytestmark = pytest.mark.quality

REFERENCE = (ROOT / "docs" / "reference" / "profile.md").read_text(encoding="utf-8")
HOW_TO = (ROOT / "docs" / "how-to" / "describe-a-card.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[Section]] = {
    "`[card]`": profile_file._Card,
    "`[batching]`": profile_file._Batching,
    "`[step]`": profile_file._Step,
    "`[store]`": profile_file._Move,
    "`[calibration]`": Calibration,
    "`[error.prefill]`": FitError,
}
TABLES = {"card", "batching", "step", "store", "load", "calibration", "error"}
MEMORY, RATE, FLOPS, HOST = 48e9, 900e9, 150e12, 25e9
"""The card of the example."""


def rows(start: str) -> dict[str, list[str]]:
    """Return the cells of each key in the section whose title starts so."""
    parts = re.split(r"^## ", REFERENCE, flags=re.MULTILINE)
    (section,) = [part for part in parts if part.startswith(start)]
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    return {key: [cell.strip() for cell in rest.split(" | ")] for key, rest in lines}


@pytest.mark.parametrize("start", SECTIONS)
def test_every_key_of_a_section_is_in_the_reference(start: str) -> None:
    fields, written = SECTIONS[start].model_fields, rows(start)
    assert list(written) == list(fields)
    for key, (value, default, _) in written.items():
        assert (default == "required") == fields[key].is_required(), key
        for word in re.findall(r'`"(\w+)"`', value):
            assert word in str(fields[key].annotation), f"{key}: {word}"


def test_every_key_of_the_file_is_in_the_reference() -> None:
    assert set(rows("The file itself")) | TABLES == set(profile_file._Tree.model_fields)


def shares() -> dict[str, float]:
    """Return the shares of a data sheet that the page names, by their letter."""
    found = re.findall(r"^\| \*(\w)\* \|.*\| ([\d.]+) \|$", HOW_TO, re.MULTILINE)
    return {letter: float(share) for letter, share in found}


def test_the_shares_are_those_of_the_fit() -> None:
    path = ROOT / "src" / "bedplate" / "perf" / "data" / "fitted.toml"
    base = tomllib.loads(path.read_text(encoding="utf-8"))["base"]
    names = {"b": "memory_half", "k": "kv", "f": "compute_half", "a": "attention"}
    assert {key: round(base[name], 2) for key, name in names.items()} == shares()
    launch, layer = re.findall(r"`launch_ns` \| ([\d,]+) \+ ([\d,]+) × layers", HOW_TO)[0]
    assert float(launch.replace(",", "")) == pytest.approx(base["step"], rel=0.03)
    assert float(layer.replace(",", "")) == pytest.approx(base["dense"], rel=0.03)
    (begin,) = re.findall(r"^\| `begin_ns` \| ([\d,]+) \|$", HOW_TO, re.MULTILINE)
    assert float(begin.replace(",", "")) == pytest.approx(base["begin"], rel=0.01)


def test_the_example_is_what_its_formulas_give(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(HOW_TO.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    card = profile_file.load(path)
    model = find_model(card.model)
    layers, heads, groups, head = model.full_layers, model.heads, model.kv_heads, model.head_dim
    parameters, inner = 14.8e9, 13.2e9
    assert model.parameters_b_official is not None
    assert parameters == pytest.approx(model.parameters_b_official * 1e9, rel=0.01)
    assert parameters - inner == pytest.approx(2 * model.vocab * model.hidden, rel=0.05)
    assert f"{layers} layers, {heads} heads and {groups} KV heads of {head}" in " ".join(
        HOW_TO.split()
    )
    kv_bytes = 2 * layers * groups * head * 2
    assert card.kv_bytes_per_token == kv_bytes
    assert card.kv_tokens == pytest.approx(
        (MEMORY_SHARE * MEMORY - 2 * parameters) / kv_bytes, rel=0.01
    )
    step, share = card.step, shares()
    assert isinstance(step, LinearCost)
    assert step.weights_ns == pytest.approx(1e9 * 2 * parameters / (share["b"] * RATE), rel=0.01)
    assert step.prompt_ns == pytest.approx(1e9 * 2 * inner / (share["f"] * FLOPS), rel=0.01)
    assert step.sequence_ns == step.prompt_ns
    assert step.pair_ns == pytest.approx(
        1e9 * 4 * layers * heads * head / (share["a"] * FLOPS), rel=0.01
    )
    assert step.context_ns == pytest.approx(1e9 * kv_bytes / (share["k"] * RATE), rel=0.01)
    assert step.launch_ns == pytest.approx(493_000 + 11_600 * layers, rel=0.01)
    assert card.load.byte_ns == pytest.approx(1e9 / HOST)
