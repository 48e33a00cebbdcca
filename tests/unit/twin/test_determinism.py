"""The same seed gives the same digest and the same figures in any process, under any hash seed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bedplate.core.units import SECOND_NS
from bedplate.twin.faults import CardLost, GatewayRestarted, LinkSlow
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import TailSpec, simulate
from tests.unit.twin.sites import POOL, agents, site

ROOT = Path(__file__).parents[3]


def outcome(seed: int) -> Outcome:
    """Run a load with moves, tails, failovers and a restart."""
    tail = TailSpec(share=0.2, scale_ns=3e7, max_ns=3e9)
    return simulate(
        site(
            4, partitions=2, pool=POOL, running_max=4, kv_tokens=4_000, begin_ns=1.5e6, end_ns=3e5
        ),
        agents(30, gap_ms=5),
        seed=seed,
        faults=(
            LinkSlow(at_ns=0, partition="p1", factor=3.0, tail=tail),
            CardLost(at_ns=2 * SECOND_NS, card="c2", back_ns=5 * SECOND_NS),
            GatewayRestarted(at_ns=7 * SECOND_NS, back_ns=8 * SECOND_NS),
        ),
    )


def print_of(seed: int) -> str:
    """Return all that must agree."""
    out = outcome(seed)
    return repr((out.digest, out.events, out.turns, out.cards, out.samples, out.counters))


def digest_in(python: str, hash_seed: str) -> str:
    """Return the hash of all that must agree, as another process finds it.

    The core and the twin need nothing but the standard library, so a bare interpreter will do.
    """
    script = (
        "import hashlib; from tests.unit.twin.test_determinism import print_of;"
        "print(hashlib.sha256(print_of(5).encode()).hexdigest())"
    )
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    done = subprocess.run(
        [python, "-c", script],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_another_process_with_another_hash_seed_comes_to_the_same() -> None:
    assert digest_in(sys.executable, "0") == digest_in(sys.executable, "12345")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_python_at_hand_comes_to_the_same(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    assert digest_in(python, "7") == digest_in(sys.executable, "7")


def interpreter(version: str) -> str | None:
    """Return a Python of this version that runs: on the path, or kept by pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in sorted(kept.glob(f"{version}.*/bin/python"))]
    for python in filter(None, (shutil.which(f"python{version}"), *found)):
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python  # a version manager's stub is on the path and does not run
    return None


def test_another_seed_draws_other_tails() -> None:
    assert print_of(5) != print_of(6)
