"""The command: `python -m bench list`, `python -m bench run NAME [--json] [--quick]`.

NAME may be `all`: every bench in turn, with `--json` one document a line.

A missed target is reported and is no failure. A part that cannot be measured is: it is named, what
the other parts found is still printed and kept, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson

from bench.harness import registry, results
from bench.harness.claims import Claim, claims_of
from bench.harness.processes import end_on_sigterm
from bench.harness.report import as_json, as_text, listing
from bench.harness.run import Bench, BenchError, Run

CACHE = Path.home() / ".cache" / "bedplate-bench"
ALL = "all"
USER_ERROR = 2
FAILURE = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    if not __debug__:
        sys.stderr.write("bench: refuses to run with assertions off; start it without -O\n")
        return USER_ERROR
    given = _parser().parse_args(arguments)
    if given.command == "list":
        benches = [registry.load(name) for name in registry.NAMES]
        if given.json:
            document = [
                {
                    "bench": bench.name,
                    "claims": [
                        {"name": spec.name, "unit": spec.unit, "target": spec.target}
                        for spec in bench.specs
                    ],
                }
                for bench in benches
            ]
            sys.stdout.write(orjson.dumps(document).decode() + "\n")
        else:
            sys.stdout.write(listing(benches) + "\n")
        return 0
    try:
        benches = [registry.load(name) for name in _names(given.name)]
        chosen = [_chosen(bench, given.part) for bench in benches]
    except KeyError as error:
        sys.stderr.write(f"bench: {error.args[0]}\n")
        return USER_ERROR
    return max(_run(bench, parts, given) for bench, parts in zip(benches, chosen, strict=True))


def _run(bench: Bench, parts: Sequence[str], given: argparse.Namespace) -> int:
    began, start = datetime.now(UTC), time.monotonic()
    given.cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=given.cache))
    run = Run(
        quick=given.quick,
        peers=not given.no_peers,
        cache=given.cache,
        scratch=scratch,
        seeds=bench.seeds,
    )
    claims: list[Claim] = []
    failures: dict[str, str] = {}
    took: dict[str, float] = {}
    try:
        for part in bench.parts:
            if part.name not in parts:
                continue
            part_start = time.monotonic()
            try:
                claims += claims_of(part.specs, part.measure(run))
            except Exception as error:  # noqa: BLE001 - the other parts still count; told below
                if not isinstance(error, BenchError):
                    traceback.print_exc()
                failures[part.name] = f"{type(error).__name__}: {error}"
                run.say(f"{part.name} failed: {failures[part.name]}")
            took[part.name] = time.monotonic() - part_start
        done = results.Finished(
            bench=bench.name,
            command=shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
            began=began,
            seconds=time.monotonic() - start,
            part_seconds=took,
            claims=claims,
            failures=failures,
        )
        folder = results.write(run, done)
    finally:
        if not given.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    if given.json:
        sys.stdout.write(orjson.dumps(as_json(bench.name, claims)).decode() + "\n")
    else:
        sys.stdout.write(as_text(claims, run.figures) + "\n\n")
    sys.stderr.write(f"Results: {folder}\n")
    for name, text in failures.items():
        sys.stderr.write(f"bench: part {name} was not measured: {text}\n")
    return FAILURE if failures else 0


def _names(name: str) -> tuple[str, ...]:
    return registry.NAMES if name == ALL else (name,)


def _chosen(bench: Bench, names: Sequence[str]) -> list[str]:
    known = [part.name for part in bench.parts]
    for name in names:
        if name not in known:
            raise KeyError(f"bench {bench.name} has no part {name!r}; there is: {', '.join(known)}")
    return list(names) or known


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Print figures again.")
    commands = parser.add_subparsers(dest="command", required=True)
    lister = commands.add_parser("list", help="show every bench and its claims")
    lister.add_argument("--json", action="store_true", help="print one JSON document")
    runner = commands.add_parser("run", help="run a bench and print its claims")
    runner.add_argument("name", metavar="NAME", help="as `list` shows it, or all")
    runner.add_argument("--json", action="store_true", help="print the claims as one JSON document")
    runner.add_argument(
        "--quick", action="store_true", help="small sizes: shows that it runs, proves no figure"
    )
    runner.add_argument(
        "--part", action="append", default=[], metavar="PART", help="only this part; repeat"
    )
    runner.add_argument("--no-peers", action="store_true", help="leave the peers out")
    runner.add_argument(
        "--cache",
        type=Path,
        default=CACHE,
        help="folder for peers and scratch (default: %(default)s)",
    )
    runner.add_argument(
        "--keep", action="store_true", help="keep the run's scratch folder: logs, journal"
    )
    return parser


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
