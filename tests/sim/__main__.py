"""Run seeds by hand: `python -m tests.sim --seeds 100000 --start 0`; stops at the first failure."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from tests.sim.fuzz import run_seed


def main() -> int:
    """Run the seeds asked for; print digests when asked, and what failed with how to repeat it."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--digests", action="store_true", help="print one line a seed")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    args = parser.parse_args()
    began, failed, steps = time.monotonic(), 0, 0
    for seed in range(args.start, args.start + args.seeds):
        try:
            result = run_seed(seed)
        except Exception as error:
            failed += 1
            print(f"seed {seed} FAILED: {type(error).__name__}: {error}", flush=True)
            if not args.keep_going:
                print(f"commit {commit()}; repeat: python -m tests.sim --seeds 1 --start {seed}")
                raise
            continue
        steps += result.steps
        if args.digests:
            print(seed, result.digest, result.steps, result.turns, result.served, flush=True)
    took = time.monotonic() - began
    print(f"{args.seeds} seeds, {failed} failed, {steps} steps, {took:.1f} s", file=sys.stderr)
    return 1 if failed else 0


def commit() -> str:
    """Return the commit under test, for the report of a failure."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "none"


if __name__ == "__main__":
    sys.exit(main())
