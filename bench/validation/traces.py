"""`bedplate sim` on every trace: each runs to its end, and every session and turn is accounted for.

One built-in site, 384 cards, takes them all: what is shown is that the readers and the twin carry
whole real loads, not that the site is of a good size for any. Sessions whose context no card holds
are refused, and are counted as such.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from bench.harness.claims import Measured
from bench.harness.run import BenchError, Json, Run
from bench.twin.speed import trace

SCENARIO = "supernode-384"
SECONDS = 600
TRACES = (
    ("azure-llm-2023", "dev"),
    ("mooncake-fast25", "dev"),
    ("servegen", "dev"),
    ("claude-code-traces", "dev"),
    ("lmcache-agent-trace", "dev"),
    ("tau-bench-airline", "dev"),
)
"""One of each form that real traces come in; BurstGPT's form has no data set here."""


def measure(run: Run) -> Mapping[str, Measured]:
    """Run each trace by the command that users run, and check its sums."""
    traces = TRACES[-1:] if run.quick else TRACES
    turns = 0
    table: list[Json] = []
    for parts in traces:
        began = time.perf_counter()
        found = _simulated(parts, run.seeds[0])
        took_s = time.perf_counter() - began
        overall = found["overall"]
        _check(parts[0], found)
        turns += overall["turns"]
        row: dict[str, Any] = {
            "trace": parts[0],
            "sessions": overall["sessions"],
            "sessions_done": overall["sessions_done"],
            "turns_offered": overall["turns_offered"],
            "turns_done": overall["turns_done"],
            "good": overall["goodput"]["good"],
            "good_of": overall["goodput"]["offered"],
            "ttft_p95_s": overall["times"]["ttft"]["p95"],
            "session_p95_s": overall["times"]["session"]["p95"],
            "hit_share": overall["tokens"]["hit_share"],
            "seconds": round(took_s, 1),
            "digest": found["digest"],
        }
        table.append(row)
        text = (
            f"{row['sessions']:,} sessions; "
            f"{row['turns_done']:,} of {row['turns_offered']:,} turns; "
            f"TTFT P95 {row['ttft_p95_s']:.2f} s, session P95 {row['session_p95_s']:,.0f} s, "
            f"{row['hit_share']:.0%} of prompt tokens from KV; {took_s:.1f} s"
        )
        run.figure(parts[0], text)
        run.say(f"{parts[0]}: {text}")
    run.rounds["traces"] = table
    return {"traces_simulated": Measured(float(len(table)), turns, f"{turns:,} turns on 384 cards")}


def _simulated(parts: tuple[str, ...], seed: int) -> Any:
    command = [sys.executable, "-m", "bedplate.cli.main", "sim", SCENARIO]
    command += ["--trace", str(trace(*parts)), "--seed", str(seed), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode:
        raise BenchError(f"{parts[0]}: bedplate sim failed: {done.stderr[-300:]}")
    return json.loads(done.stdout)


def _check(name: str, found: Any) -> None:
    """See that nothing is missing: what was offered is done, refused or belongs to ended sessions.

    Raises:
        BenchError: the sums do not fit.
    """
    overall = found["overall"]
    tokens = overall["tokens"]
    sums = (
        overall["sessions_done"] <= overall["sessions"],
        overall["turns_done"] <= overall["turns"] <= overall["turns_offered"],
        sum(lane["turns"] for lane in found["lanes"]) == overall["turns"],
        tokens["cached"] <= tokens["prompt"],
        overall["sessions_done"] < overall["sessions"]
        or overall["turns_done"] == overall["turns_offered"],
    )
    if not all(sums):
        raise BenchError(f"{name}: the sums do not fit: {sums} of {overall}")
