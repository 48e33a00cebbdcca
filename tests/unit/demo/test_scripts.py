"""The demonstration's texts: complete, of the promised size, and consistent with their tools."""

from __future__ import annotations

import json
import re

import pytest

from bedplate.core.limits import LANE_NAMES
from bedplate.demo.scripts import Script, departments

SCRIPTS = [script for department in departments() for script in department.scripts]
CHINESE = re.compile(r"[一-鿿]")


def tokens(text: str) -> float:
    """Estimate tokens as common vocabularies have them; within 15 % of Gemma's on these texts."""
    chinese = sum(not char.isascii() for char in text)
    digits = sum(char.isdigit() for char in text)
    return 0.75 * chinese + digits + (len(text) - chinese - digits) / 4.2


def test_four_tenants_have_three_sessions_of_five_turns_each() -> None:
    shape = {d.tenant: [1 + len(s.steps) for s in d.scripts] for d in departments()}
    assert sorted(shape) == ["compliance", "fraud", "service", "wealth"]
    assert set(map(tuple, shape.values())) == {(5, 5, 5)}


def test_all_lanes_are_used_and_named_as_configured() -> None:
    assert {d.lane for d in departments()} == set(LANE_NAMES)


def test_each_tenant_speaks_english_and_chinese() -> None:
    for department in departments():
        chinese = [bool(CHINESE.search(script.question)) for script in department.scripts]
        assert sorted(chinese) == [False, False, True]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.id)
def test_first_turns_are_near_700_tokens_and_later_ones_add_near_200(script: Script) -> None:
    first = tokens(script.system) + tokens(json.dumps(script.tools)) + tokens(script.question)
    later = [tokens(step.result) for step in script.steps]
    assert 500 < first < 900
    assert all(80 < size < 320 for size in later)
    assert 120 < sum(later) / len(later) < 250


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.id)
def test_results_come_from_tools_of_the_list_or_from_a_colleague(script: Script) -> None:
    names = [tool["function"]["name"] for tool in script.tools]
    *found, last = [step.tool for step in script.steps]
    assert set(found) <= set(names)
    assert last in {"adviser", "analyst", "officer", "colleague"}


def test_no_two_sessions_share_a_name_or_a_question() -> None:
    assert len({(s.tenant, s.id) for s in SCRIPTS}) == 12
    assert len({s.question for s in SCRIPTS}) == 12


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.id)
def test_the_client_of_a_session_is_the_same_in_question_and_results(script: Script) -> None:
    number = re.compile(r"\b[KFSC]-\d{4,5}\b")
    asked = set(number.findall(script.question))
    assert len(asked) == 1
    for step in script.steps:
        assert set(number.findall(step.result)) <= asked


def test_tools_are_functions_with_closed_required_lists() -> None:
    for script in SCRIPTS:
        for tool in script.tools:
            parameters = tool["function"]["parameters"]
            assert parameters["required"] == sorted(parameters["properties"])
