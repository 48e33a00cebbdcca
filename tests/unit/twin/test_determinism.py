"""The same seed gives the same digest and the same figures in any process, under any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_another_process_with_another_hash_seed_comes_to_the_same() -> None:
    script = (
        "from tests.unit.twin.test_determinism import print_of;"
        "import hashlib; print(hashlib.sha256(print_of(5).encode()).hexdigest())"
    )
    digests = set()
    for hash_seed in ("0", "12345"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_another_seed_draws_other_tails() -> None:
    assert print_of(5) != print_of(6)
