"""Fit the constants of links and print how far they are off; with --write, store them.

python -m bench.validation.links            # the table of errors
python -m bench.validation.links --write    # and src/bedplate/perf/data/links_fit.toml anew
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from bedplate.perf.links_classes import FittedClass
from bench.validation.links.fit import SIZES, TERMS, errors, fit
from bench.validation.links.held_out import KINDS, LEFT_OUT, Errors, in_sample, left_out, measured
from bench.validation.links.stated import (
    EXCHANGE_CLASS,
    MESH_CLASS,
    TOKEN_BYTES,
    exchange,
    mesh_efficiency,
)

TARGET = Path(__file__).parents[3] / "src" / "bedplate" / "perf" / "data" / "links_fit.toml"
COMMAND = "python -m bench.validation.links --write"


def main(arguments: list[str]) -> int:
    """Fit, print, and write when asked to."""
    if arguments not in ([], ["--write"]):
        print("usage: python -m bench.validation.links [--write]", file=sys.stderr)
        return 2
    data = measured()
    found = {"in sample": in_sample(data)} | {
        f"left out: {how}": left_out(data, how) for how in LEFT_OUT
    }
    classes = {}
    for name, fitted in fit(data).items():
        mine = errors({name: fitted}, [row for row in data if row.link_class == name])
        classes[name] = replace(fitted, error=statistics.median(mine))
    shown = "".join(f"{kind:>17}" for kind in KINDS)
    print(f"{'error of time':22} {'median':>8} {'90 %':>8} {'points':>7} {'rows':>5}{shown}")
    for name, e in found.items():
        shown = "".join(f"{e.of(kind):17.1%}" for kind in KINDS)
        print(f"{name:22} {e.median:8.1%} {e.p90:8.1%} {len(e.values):7} {e.rows:5}{shown}")
    print(f"\n{'class (in sample)':30} {'median':>8} {'rows':>5}")
    for name, fitted in classes.items():
        print(f"{name:30} {fitted.error:8.1%} {fitted.rows:5}")
    efficiency = mesh_efficiency()
    print(f"\n{MESH_CLASS}, rate of large messages {efficiency.error:8.1%} {efficiency.rows:5}")
    for op in TOKEN_BYTES:
        print(f"{EXCHANGE_CLASS}, {op:26} {exchange(op).error:8.1%}")
    if arguments:
        TARGET.write_text("\n".join(_document(classes, found)) + "\n", encoding="utf-8")
        print(f"\nwrote {TARGET.name}")
    return 0


def _document(classes: Mapping[str, FittedClass], found: Mapping[str, Errors]) -> Iterator[str]:
    yield f"# Written by `{COMMAND}`, from links.csv beside it. Do not edit."
    yield "#"
    yield "# Constants of link classes in ns and ns a byte, factors of operations without unit:"
    yield "# what they mean stands in perf/links.py. `error`: median of |predicted ÷ measured - 1|."
    yield "\n[error]"
    yield f"sizes_bytes = {list(SIZES)}"
    for name, e in found.items():
        key = name.replace(": ", "_").replace(" ", "_")
        yield f"{key} = {{ median = {e.median:.4f}, p90 = {e.p90:.4f}, rows = {e.rows} }}"
    written = set()
    for fitted in classes.values():
        family = "network" if fitted.between_nodes else "node"
        if family not in written:
            written.add(family)
            yield f"\n[factors.{family}]"
            for op, factors in fitted.factors.items():
                yield f"{op} = {{ {_inline(asdict(factors))} }}"
    for name, fitted in classes.items():
        yield f"\n[class.{name}]"
        yield f'link = "{fitted.link}"'
        yield f"between_nodes = {str(fitted.between_nodes).lower()}"
        yield f"ranks_max = {fitted.ranks_max}"
        for term in TERMS:
            yield f"{term}_ns = {getattr(fitted, f'{term}_ns'):.5g}"
        yield f"crowding = {fitted.crowding:.4f}"
        yield f"rows = {fitted.rows}"
        yield f"error = {fitted.error:.4f}"
    efficiency = mesh_efficiency()
    yield f"\n[stated.{MESH_CLASS}]"
    yield f"# {efficiency.rows} rows, median error {efficiency.error:.4f}"
    yield f"efficiency = {efficiency.value:.4f}"
    for op in TOKEN_BYTES:
        yield f"\n[stated.{EXCHANGE_CLASS}.exchange.{op}]"
        for key, value in asdict(exchange(op)).items():
            yield f"{key} = {value:.5g}" if isinstance(value, float) else f"{key} = {value}"


def _inline(values: Mapping[str, float]) -> str:
    return ", ".join(f"{key} = {value:.5g}" for key, value in values.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
