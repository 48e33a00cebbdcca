"""The real core under faults: many seeds, each must hold every check and drain.

A failure prints the seed and the command that repeats it. Seeds that once failed are in `seeds.txt`
for ever. Nightly: `python -m tests.sim --seeds 100000 --start N`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.__main__ import commit
from tests.sim.fuzz import run_seed

SEEDS = 200
CHUNK = 10
SEEDS_FILE = Path(__file__).with_name("seeds.txt")
ROOT = Path(__file__).parents[2]


def kept_seeds() -> list[int]:
    """Read the seeds that once failed: one number a line, then a word on what it found."""
    lines = SEEDS_FILE.read_text(encoding="ascii").splitlines()
    return [int(line.split()[0]) for line in lines if line.strip() and line[0] != "#"]


def run(seed: int) -> None:
    """Run a seed; on failure say how to repeat it."""
    try:
        result = run_seed(seed)
    except AssertionError as error:
        repeat = f"python -m tests.sim --seeds 1 --start {seed}"
        pytest.fail(f"seed {seed}, commit {commit()}, repeat: {repeat}\n{error!r}")
    assert result.steps > 0


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_new_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run(seed)


@pytest.mark.parametrize("seed", kept_seeds())
def test_seeds_that_once_failed(seed: int) -> None:
    run(seed)


def test_same_seed_same_digest_in_another_process() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seeds", "4", "--start", "7", "--digests"]
    printed = []
    for hash_seed in ("1", "4242"):
        paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 4
    assert len(set(printed[0].splitlines())) == 4


def test_seeds_serve_what_they_claim_to_test() -> None:
    """The load is neither trivial nor hopeless: most turns of many seeds reach a card and end."""
    results = [run_seed(seed) for seed in range(1000, 1020)]
    assert sum(result.served for result in results) > 300
    assert sum(result.turns for result in results) < 10 * sum(r.served for r in results)
