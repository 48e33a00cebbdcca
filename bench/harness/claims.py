"""Claims: a figure, its target, and the one rule that says whether the target is met.

A target reads `>= 400` or `<= 8`. The value is rounded as it is printed and then compared, so that
anybody who reads the JSON comes to the same verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

SIGNIFICANT_DIGITS = 4

_TARGET = re.compile(r"(>=|<=) (\d+(?:\.\d+)?)", re.ASCII)


class ClaimJson(TypedDict):
    """One claim as `--json` prints it."""

    name: str
    value: float
    unit: str
    target: str
    holds: bool
    n: int
    against: str


@dataclass(frozen=True, slots=True)
class Spec:
    """What a bench promises to print: a name that never changes, a unit, a target, a meaning."""

    name: str
    unit: str
    target: str
    meaning: str

    def __post_init__(self) -> None:
        """Refuse a target that the rule cannot read.

        Raises:
            ValueError: the target is not `>= NUMBER` or `<= NUMBER`.
        """
        _parse(self.target)


class Measured(NamedTuple):
    """A value of a claim, over how many measurements, and against what it was compared."""

    value: float
    n: int
    against: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A promise with what was measured."""

    spec: Spec
    measured: Measured

    @property
    def value(self) -> float:
        """The value as it is reported."""
        return rounded(self.measured.value)

    @property
    def holds(self) -> bool:
        """True when the reported value meets the target."""
        return meets(self.value, self.spec.target)

    def as_json(self) -> ClaimJson:
        """Return the claim in the form that `--json` prints."""
        return {
            "name": self.spec.name,
            "value": self.value,
            "unit": self.spec.unit,
            "target": self.spec.target,
            "holds": self.holds,
            "n": self.measured.n,
            "against": self.measured.against,
        }


def meets(value: float, target: str) -> bool:
    """Return whether a value meets a target; the bound itself does, what is no number does not."""
    relation, bound = _parse(target)
    return value >= bound if relation == ">=" else value <= bound


def rounded(value: float) -> float:
    """Return the value with four significant digits, whole numbers above that untouched."""
    if not math.isfinite(value) or value == 0:
        return value
    digits = SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value)))
    return float(round(value, max(digits, 0)))


def claims_of(specs: tuple[Spec, ...], measured: Mapping[str, Measured]) -> list[Claim]:
    """Join promises and measurements.

    Raises:
        ValueError: something was promised and not measured, or measured and not promised.
    """
    names = [spec.name for spec in specs]
    if set(names) != set(measured):
        raise ValueError(f"promised are {sorted(names)}, measured were {sorted(measured)}")
    return [Claim(spec, measured[spec.name]) for spec in specs]


def _parse(target: str) -> tuple[str, float]:
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ValueError(f"a target reads '>= 400' or '<= 8', not {target!r}")
    return match[1], float(match[2])
