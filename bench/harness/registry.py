"""The one registry: the benches by name, one file each in `bench/benches/`.

A bench's file has `BENCH`, a `bench.harness.run.Bench` of the same name. It is imported only when
it is listed or run, and importing it starts nothing.
"""

from __future__ import annotations

from importlib import import_module

from bench.harness.run import Bench

NAMES = (
    "spine",
    "perf-model",
    "links",
    "twin-speed",
    "twin-fidelity",
    "twin-traces",
    "schedule-real",
    "schedule-twin",
)
"""Every bench, in the order in which they were added."""


def load(name: str) -> Bench:
    """Return a bench.

    Raises:
        KeyError: there is none of this name.
    """
    if name not in NAMES:
        raise KeyError(f"there is no bench {name!r}; there is: {', '.join(NAMES)}")
    bench = import_module(f"bench.benches.{name.replace('-', '_')}").BENCH
    assert isinstance(bench, Bench)
    assert bench.name == name, f"bench/benches/{name}.py holds bench {bench.name}"
    return bench
