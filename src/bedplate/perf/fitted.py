"""The fitted constants of `data/fitted.toml`, put together for a card family and an engine.

The file has a base set and, for each engine and each card family that was measured, factors on it.
`python -m bench.validation.perf_model fit` writes it: the constants from all rows, the error from
rows of models that the fit had not seen. A family or engine without rows has the base alone, and
its evidence is `roofline`: peaks are its own, efficiencies are those of others.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from bedplate.errors import InvalidRequest
from bedplate.perf.catalog import Hardware
from bedplate.perf.constants import Constants

EFFICIENCY_MAX = 0.97
"""Nothing reaches more of its peak than this."""
LAUNCHES = ("mixer", "latent", "linear", "dense", "experts")
ENGINE_FACTORS = (
    "launch",
    "step",
    "sequence",
    "communication",
    "reduce",
    "interference",
    "begin",
    "queue",
)
FAMILY_FACTORS = ("memory", "compute", "kv", "launch", "communication", "reduce")
WIDTHS = ("half", "byte", "nibble")


class Error(NamedTuple):
    """Relative errors on rows of models that the fit had not seen."""

    rows: int
    mean: float
    median: float


def engines() -> tuple[str, ...]:
    """Return the engines that were measured."""
    return tuple(_file()["engine"])


def default_engine(card: Hardware) -> str:
    """Return the engine that is assumed where none is named: what such cards were measured with."""
    if card.vendor != "Huawei":
        return "vllm"
    return "vllm-ascend" if card.family == "ascend-a2" else "vllm-ascend-graph"


def constants(card: Hardware, engine: str) -> Constants:
    """Return the constants of a card with an engine.

    Raises:
        InvalidRequest: no such engine was measured.
    """
    return _constants(card.family, engine)


def errors(card: Hardware) -> dict[str, Error]:
    """Return the error of each quantity for cards of this vendor: tpot and ttft."""
    found = _file()["error"]["ascend" if card.vendor == "Huawei" else "nvidia"]
    return {name: Error(**values) for name, values in found.items()}


@cache
def _constants(family: str, engine: str) -> Constants:
    file = _file()
    if engine not in file["engine"]:
        raise InvalidRequest(
            f"there is no engine {engine!r}; there is: {', '.join(file['engine'])}",
            code="unknown_engine",
        )
    factors = file["family"].get(family)
    evidence = "roofline" if factors is None else "fitted"
    return combine(file["base"], file["engine"][engine], factors or {}, evidence=evidence)


def combine(
    base: Mapping[str, float],
    engine: Mapping[str, float],
    family: Mapping[str, float],
    *,
    evidence: str,
) -> Constants:
    """Return the constants that a base and factors on it make; a missing factor is 1.

    `host` of an engine is no factor but a time in ns.
    """

    def efficiency(name: str, factor: str) -> float:
        return min(EFFICIENCY_MAX, base[name] * family.get(factor, 1.0))

    launch = engine.get("launch", 1.0) * family.get("launch", 1.0)
    scaled = {
        name: base[name] * engine.get(name, 1.0) * family.get(name, 1.0)
        for name in ENGINE_FACTORS
        if name != "launch"
    }
    memory = {width: efficiency(f"memory_{width}", "memory") for width in WIDTHS}
    compute = {width: efficiency(f"compute_{width}", "compute") for width in WIDTHS}
    return Constants(
        evidence=evidence,
        memory={**memory, "wide": memory["half"]},
        compute={**compute, "wide": compute["half"]},
        kv=efficiency("kv", "kv"),
        attention=efficiency("attention", "compute"),
        expert_memory=base["expert_memory"],
        expert_compute=base["expert_compute"],
        host=engine.get("host", 0.0),
        **{name: base[name] * launch for name in LAUNCHES},
        **scaled,
    )


@cache
def _file() -> dict[str, Any]:
    text = files("bedplate.perf").joinpath("data", "fitted.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
