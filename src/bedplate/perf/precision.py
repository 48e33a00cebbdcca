"""Number formats: what a value of weights or KV takes, and in which arithmetic it is multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from bedplate.errors import InvalidRequest
from bedplate.perf.catalog import Hardware

HALF = "fp16"
"""Arithmetic of attention, and of weights whose own format the hardware cannot multiply."""
HALVES = (HALF, "bf16")


@dataclass(frozen=True, slots=True)
class Precision:
    """A format: `weight_bytes` a parameter, `arithmetic` as `Hardware.tflops` names it.

    `kv_bytes`: a value of KV that is kept in this format, or in 8 bits for formats of weights only.
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


def find_kv(name: str, weights: Precision) -> Precision:
    """Return the format of KV; without a name what engines have by default.

    That is the format of activations: 16 bits, also behind weights of fewer, or the weights' own
    where they have more.

    Raises:
        InvalidRequest: there is none of this name, or no engine keeps KV in it.
    """
    if not name:
        half = PRECISIONS[HALF]
        return weights if weights.weight_bytes >= half.weight_bytes else half
    found = find_precision(name)
    if found.weight_bytes < 1:
        raise InvalidRequest(
            f"{name!r} is a format of weights; KV is kept in fp16, bf16, fp8 or int8",
            code="unknown_precision",
        )
    return found


def arithmetic_used(card: Hardware, arithmetic: str) -> str:
    """Return the arithmetic itself, or that of 16 bits where the card lacks it.

    Weights are then unpacked before they are multiplied. FP16 and BF16 stand in for one another.

    Raises:
        InvalidRequest: a rate is unknown, or the card has no 16-bit arithmetic either.
    """
    for name in dict.fromkeys((arithmetic, HALF, "bf16")):
        if card.rate(name):
            return name
    raise InvalidRequest(
        f"{card.name} has neither {arithmetic} nor 16-bit arithmetic", code="unknown_value"
    )


def is_unpacked(card: Hardware, precision: Precision) -> bool:
    """Tell whether weights are multiplied in 16 bits because the card lacks their arithmetic."""
    used = arithmetic_used(card, precision.arithmetic)
    return used in HALVES and precision.arithmetic not in HALVES
