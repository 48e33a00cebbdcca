from __future__ import annotations

import tomllib

from bedplate.config.explain import Sources, keys
from bedplate.config.load import validated
from bedplate.twin.scenario_tree import ScenarioConfig
from tools.config_reference import row
from tools.repository import ROOT
from tools.scenario_reference import HEADINGS, SHARED, TARGET, page


def test_the_reference_is_what_the_tree_says() -> None:
    assert TARGET.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_key_is_explained_and_in_a_section() -> None:
    found = [key for key in keys(ScenarioConfig) if not key.path.startswith(SHARED)]
    assert len(found) > 50
    for key in found:
        assert all(row(key)[at] for at in (0, 1, 3)), key.path
        assert key.path.rpartition(".")[0] in HEADINGS, key.path


def test_its_example_is_a_scenario() -> None:
    text = page().split("```toml\n")[1].split("```")[0]
    assert tomllib.loads(text)["cards"][0]["count"] == 8
    validated(ScenarioConfig, tomllib.loads(text), Sources("page"), folder=ROOT)
