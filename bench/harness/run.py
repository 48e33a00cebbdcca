"""A run: what a part of a bench is given, and where it leaves what it found beside its claims."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.harness.claims import Measured, Spec

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class BenchError(Exception):
    """A measurement that cannot be trusted or made: wrong answers, a process that died."""


class Figure(NamedTuple):
    """Something measured beside the claims, without a target."""

    name: str
    text: str


@dataclass(slots=True)
class Run:
    """One run of a bench.

    `cache` outlives runs (peers, models); `scratch` is a folder on disk, removed after the run.
    `config` and `rounds` land in the results: what was set, and the repeats one by one.
    """

    quick: bool
    peers: bool
    cache: Path
    scratch: Path
    seeds: tuple[int, ...]
    figures: list[Figure] = field(default_factory=list)
    config: dict[str, Json] = field(default_factory=dict)
    rounds: dict[str, Json] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Tell the user what goes on, on stderr."""
        sys.stderr.write(f"[{time.monotonic() - self._began:6.1f} s] {text}\n")
        sys.stderr.flush()

    def figure(self, name: str, text: str) -> None:
        """Report something beside the claims."""
        self.figures.append(Figure(name, text))


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bench that can run alone: its promises, and what measures them all."""

    name: str
    specs: tuple[Spec, ...]
    measure: Callable[[Run], Mapping[str, Measured]]


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench: `summary` is one line, `seeds` are what its parts draw from."""

    name: str
    summary: str
    parts: tuple[Part, ...]
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Every promise, in order."""
        return tuple(spec for part in self.parts for spec in part.specs)
