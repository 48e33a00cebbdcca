"""Long real text: the demo's fixtures, one after the other, from a place that a seed chooses."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

DOMAINS = ("wealth", "fraud", "compliance", "service")
STRIDE = 7_919
"""Characters between the starts of two seeds; prime, so that they fall everywhere."""


def long_text(seed: int, size: int) -> str:
    """Return `size` characters of the fixtures' text; the fixtures follow one another in a ring."""
    ring = _ring()
    start = seed * STRIDE % len(ring)
    turns = (start + size) // len(ring) + 1
    return (ring * turns)[start : start + size]


@cache
def _ring() -> str:
    folder = files("bedplate.demo") / "fixtures"
    texts: list[str] = []
    for name in DOMAINS:
        loaded = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
        texts.extend(_strings(loaded))
    return "\n".join(texts)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value.strip()
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
