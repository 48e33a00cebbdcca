"""Personas: what a session of one kind of agent asks, as data with distributions.

The built-in ones stand in `personas.toml`, with the source of their figures. A mix file may add
others or change some of their fields.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Annotated, Any

import msgspec

from bedplate.core.limits import LANE_NAMES
from bedplate.errors import ConfigError

_NORMAL = NormalDist()
_Z90, _Z99 = _NORMAL.inv_cdf(0.90), _NORMAL.inv_cdf(0.99)
_TAIL = 0.1
"""Share of draws beyond p90."""
_LEAST, _MOST = 1e-9, 1e9
"""Bounds of what is drawn, tokens and seconds: as a workload's file has them."""


class Draw(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A distribution of positive numbers, given by quantiles.

    Lognormal through `p50` and `p99`. With `p90`: lognormal through `p50` and `p90` up to there,
    and beyond it the Pareto distribution that meets it at `p90` and goes through `p99`. Draws are
    cut to `min` and `max`.
    """

    p50: Annotated[float, msgspec.Meta(ge=_LEAST, le=_MOST)]
    p99: Annotated[float, msgspec.Meta(ge=_LEAST, le=_MOST)]
    p90: Annotated[float, msgspec.Meta(ge=0, le=_MOST)] = 0.0
    min: Annotated[float, msgspec.Meta(ge=0, le=_MOST)] = 0.0
    max: Annotated[float, msgspec.Meta(gt=0, le=_MOST)] = _MOST

    def __post_init__(self) -> None:
        marks = [self.p50, self.p90, self.p99] if self.p90 else [self.p50, self.p99]
        if marks != sorted(set(marks)):
            raise ValueError("p50, p90 and p99 rise")
        if not self.min <= self.max:
            raise ValueError("min is above max")

    def quantile(self, share: float) -> float:
        """Return the value that a share of draws (0 < share < 1) is at most."""
        if self.p90 and share > 1 - _TAIL:
            steps = math.log(_TAIL / (1 - share)) / math.log(10)
            value = self.p90 * (self.p99 / self.p90) ** steps
        else:
            far, z = (self.p90, _Z90) if self.p90 else (self.p99, _Z99)
            value = self.p50 * (far / self.p50) ** (_NORMAL.inv_cdf(share) / z)
        return float(min(self.max, max(self.min, value)))

    def draw(self, random: Random) -> float:
        """Return one number."""
        return self.quantile(random.random() or 0.5)


class Persona(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of agent. Sizes in tokens, times in seconds.

    `calls`: model calls of a session. `first`: prompt of the first call; `added`: what tool or
    person adds to each later one; `answer`: length of an answer. A share `tool_share` of the gaps
    is a tool of `tools` and lasts `tool_s`; in the others a person thinks, `person_s`. `curve`
    names the hours of its sessions. `context`: no prompt with its answer is longer; the session
    ends before, 0 for no bound. `next`: the agent whose session its end spawns.
    """

    tenant: str
    lane: str
    curve: str
    calls: Draw
    first: Draw
    added: Draw
    answer: Draw
    tool_share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    tools: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    tool_s: Draw
    person_s: Draw
    context: Annotated[int, msgspec.Meta(ge=0)] = 0
    next: str = ""

    def __post_init__(self) -> None:
        if self.lane not in LANE_NAMES:
            raise ValueError(f"lane {self.lane!r} is none of {', '.join(LANE_NAMES)}")
        if not self.tenant or not all(self.tools):
            raise ValueError("tenant and tools have names")
        if self.context == 1:
            raise ValueError("a context of 1 token holds no call; 0 is no bound")


class Cast(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Personas by name, and the hours of a day by the name of their curve.

    A curve has 24 weights; only their ratio to the largest counts.
    """

    personas: dict[str, Persona]
    curves: dict[str, Annotated[tuple[float, ...], msgspec.Meta(min_length=24, max_length=24)]]

    def __post_init__(self) -> None:
        for name, curve in self.curves.items():
            if not all(0 <= weight < math.inf for weight in curve) or not max(curve) > 0:
                raise ValueError(f"curve {name} has a weight below 0, or none above")
        for name, persona in self.personas.items():
            if persona.curve not in self.curves:
                raise ValueError(f"{name} has curve {persona.curve!r}, which is not given")
            chain = [name]
            while persona.next:
                if persona.next not in self.personas:
                    raise ValueError(f"{chain[-1]} is followed by {persona.next!r}: no persona")
                if persona.next in chain:
                    raise ValueError(f"{' > '.join(chain)} > {persona.next} never ends")
                chain.append(persona.next)
                persona = self.personas[persona.next]

    def heads(self) -> tuple[str, ...]:
        """Return the personas that no other one is followed by."""
        followers = {persona.next for persona in self.personas.values()}
        return tuple(name for name in self.personas if name not in followers)


def built_in() -> dict[str, Any]:
    """Return the contents of `personas.toml`, as a mix file would hold them."""
    text = resources.files(__package__).joinpath("personas.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def cast(changes: Mapping[str, Any] | None = None, *, where: Path | None = None) -> Cast:
    """Return the built-in personas with the fields that `changes` gives in place of theirs.

    Raises:
        ConfigError: a field is unknown, missing or out of range.
    """
    tables = built_in()
    for part in ("personas", "curves"):
        given = (changes or {}).get(part, {})
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where or part}: [{part}] is a table")
        for name, value in given.items():
            known = tables[part].get(name)
            both = isinstance(known, dict) and isinstance(value, Mapping)
            tables[part][name] = {**known, **value} if both else value
    personas: dict[str, Persona] = {}
    for name, table in tables["personas"].items():
        try:
            personas[name] = msgspec.convert(table, Persona)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where or 'personas'}: [personas.{name}] {error}") from error
    try:
        return msgspec.convert({"personas": personas, "curves": tables["curves"]}, Cast)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where or 'personas'}: {error}") from error
