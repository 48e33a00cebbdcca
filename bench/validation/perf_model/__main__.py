"""The command: `python -m bench.validation.perf_model fit | table | rows`.

`fit` fits the constants, leaves each model out in turn, and writes `data/fitted.toml`. `table` does
the same, prints the errors by model, engine and card, and writes nothing. `rows` says which rows of
`measured.csv` are usable, and why others are not.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from bench.validation.perf_model.result import measured, validate
from bench.validation.perf_model.rows import read, tally
from bench.validation.perf_model.table import by_group, summary
from bench.validation.perf_model.write import FITTED, as_toml


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.validation.perf_model", description="Fit and validate."
    )
    parser.add_argument("command", choices=("fit", "table", "rows"))
    given = parser.parse_args()
    if given.command == "rows":
        _print_rows()
        return 0
    outcome = validate()
    print(summary(outcome))
    if given.command == "table":
        print(by_group(outcome))
    else:
        FITTED.write_text(as_toml(outcome), encoding="utf-8")
        print(f"wrote {FITTED}")
    return 0


def _print_rows() -> None:
    rows, reasons = read(measured())
    print(f"{len(rows)} of {len(rows) + len(reasons)} rows are usable:")
    for (kind, engine, family), count in sorted(
        Counter((row.kind, row.engine, row.family) for row in rows).items()
    ):
        print(f"  {count:4d}  {kind}, {engine}, {family}")
    print("not usable:")
    for reason, count in tally(reasons):
        print(f"  {count:4d}  {reason}")


if __name__ == "__main__":
    sys.exit(main())
