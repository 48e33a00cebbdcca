"""Number formats: what a value of weights or KV takes, and in which arithmetic it is multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from bedplate.errors import InvalidRequest
from bedplate.perf.catalog import Hardware

HALF = "fp16"
"""Arithmetic of attention, and of weights whose own format the hardware cannot multiply."""


@dataclass(frozen=True, slots=True)
class Precision:
    """A format: `weight_bytes` a parameter, `arithmetic` as `Hardware.tflops` names it.

    `kv_bytes`: a value of KV unless told otherwise, 1 where weights are 8 bits or fewer.
    """

    name: str
    weight_bytes: float
    arithmetic: str
    kv_bytes: float


PRECISIONS = {
    entry.name: entry
    for entry in (
        Precision("fp64", 8, "fp64", 8),
        Precision("fp32", 4, "fp32", 4),
        Precision("fp16", 2, "fp16", 2),
        Precision("bf16", 2, "bf16", 2),
        Precision("fp8", 1, "fp8", 1),
        Precision("int8", 1, "int8", 1),
        Precision("fp4", 0.5625, "fp4", 1),
        Precision("int4", 0.5, HALF, 1),
        Precision("w4a8", 0.5, "int8", 1),
    )
}
"""By name. FP4 carries one 8-bit scale for sixteen values; INT4 is of weights only."""

ALIASES = {
    "float64": "fp64",
    "float32": "fp32",
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "w8a8": "int8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "w4a16": "int4",
}


def find_precision(name: str) -> Precision:
    """Return a format by name or alias, in any case.

    Raises:
        InvalidRequest: there is none of this name.
    """
    word = name.lower()
    found = PRECISIONS.get(ALIASES.get(word, word))
    if found is None:
        known = ", ".join([*PRECISIONS, *ALIASES])
        raise InvalidRequest(
            f"{name!r} is no precision; there is: {known}", code="unknown_precision"
        )
    return found


def arithmetic_rate(card: Hardware, arithmetic: str) -> float:
    """Return dense operations a second, in 16 bits where the card lacks the arithmetic itself.

    Weights are then unpacked before they are multiplied. FP16 and BF16 stand in for one another.

    Raises:
        InvalidRequest: the card's rate is unknown, or it has no 16-bit arithmetic either.
    """
    for name in dict.fromkeys((arithmetic, HALF, "bf16")):
        rate = card.rate(name)
        if rate:
            return rate
    raise InvalidRequest(
        f"{card.name} has neither {arithmetic} nor 16-bit arithmetic", code="unknown_value"
    )
