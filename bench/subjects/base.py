"""A subject: something that takes chat completions and gives them to one engine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.harness.processes import Process


class Site(NamedTuple):
    """Where a subject is to run, and which engine it has behind it."""

    engine_url: str
    core: int
    folder: Path


class Target(NamedTuple):
    """A subject that runs; `process` is None where there is none of its own."""

    name: str
    port: int
    keys: list[str]
    process: Process | None


class Subject(Protocol):
    """A way to be measured."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def running(self, site: Site) -> AbstractContextManager[Target]:
        """Start it on its core, ready when the context begins; stop it at the end."""
        ...
