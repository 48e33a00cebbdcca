from __future__ import annotations

import math

import pytest

from bench.harness.claims import Claim, Measured, Spec, claims_of, meets, rounded


def spec(name: str = "speed", target: str = ">= 400") -> Spec:
    return Spec(name, "×", target, "how fast it is")


@pytest.mark.parametrize(
    ("value", "target", "holds"),
    [
        (400.0, ">= 400", True),
        (399.9, ">= 400", False),
        (1.5, "<= 1.5", True),
        (1.501, "<= 1.5", False),
        (0.0, "<= 12", True),
        (-0.2, "<= 1.5", True),
        (math.nan, ">= 400", False),
        (math.nan, "<= 400", False),
        (math.inf, "<= 400", False),
    ],
)
def test_one_rule_decides_whether_a_claim_holds(value: float, target: str, holds: bool) -> None:
    assert meets(value, target) is holds


@pytest.mark.parametrize(
    "target", ["", "400", "> 400", ">=400", ">= -1", "= 4", ">= 4 x", ">= 4\n"]
)
def test_a_target_that_the_rule_cannot_read_is_refused_at_once(target: str) -> None:
    with pytest.raises(ValueError, match="a target reads"):
        spec(target=target)


@pytest.mark.parametrize(
    ("value", "reported"),
    [(399.96, 400.0), (1.49949, 1.499), (0.0, 0.0), (123456.7, 123457.0), (0.0123456, 0.01235)],
)
def test_values_are_reported_with_four_digits(value: float, reported: float) -> None:
    assert rounded(value) == reported


def test_the_verdict_is_that_of_the_reported_value() -> None:
    claim = Claim(spec(), Measured(399.96, 3))
    assert claim.as_json()["value"] == 400.0
    assert claim.holds


def test_the_json_form_of_a_claim() -> None:
    claim = Claim(spec(target="<= 8"), Measured(7.25, 5, "no gateway: 1.2 ms"))
    assert claim.as_json() == {
        "name": "speed",
        "value": 7.25,
        "unit": "×",
        "target": "<= 8",
        "holds": True,
        "n": 5,
        "against": "no gateway: 1.2 ms",
    }


def test_every_promise_is_measured_and_nothing_else() -> None:
    specs = (spec("a"), spec("b"))
    measured = {"b": Measured(1.0, 1), "a": Measured(2.0, 1)}
    assert [claim.spec.name for claim in claims_of(specs, measured)] == ["a", "b"]
    for wrong in ({"a": Measured(1.0, 1)}, {**measured, "c": Measured(1.0, 1)}):
        with pytest.raises(ValueError, match="promised"):
            claims_of(specs, wrong)
