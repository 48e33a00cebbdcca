"""The readers on the real data sets, against what is known of these: counts, sizes, shared blocks.

What prompts share is counted again here, from the files and without the readers.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.native import check
from bedplate.twin.workload.read import read_workload
from bedplate.twin.workload.statistics import Spread, statistics
from tests.fakes.datasets import dataset


def near(spread: Spread, mean: float, p50: float, p99: float) -> bool:
    """Compare with figures that were rounded, and whose percentiles may be interpolated."""
    found = (spread.mean, spread.p50, spread.p99)
    return found == pytest.approx((mean, p50, p99), rel=2e-3, abs=0.6)


def turns(workload: Workload) -> int:
    return sum(len(session.turns) for session in workload.sessions)


def test_azure() -> None:
    found = read_workload(dataset("azure-llm-2023", "dev"))
    check(found)
    told = statistics(found)
    assert (told.turns, told.roots) == (19_366, 19_366)
    assert near(told.prompt_tokens, 1_155, 1_020, 4_142)
    assert near(told.out_tokens, 211, 129, 601)
    assert told.starts_cv == pytest.approx(1.09, abs=0.006)
    assert told.span_s == pytest.approx(58 * 60, rel=0.01)
    assert told.starts_per_s == pytest.approx(19_365 / told.span_s)


def test_mooncake() -> None:
    path = dataset("mooncake-fast25", "dev", "conversation_trace.jsonl")
    found = read_workload(path)
    check(found)
    told = statistics(found)
    assert told.turns == 12_031
    assert near(told.prompt_tokens, 12_035, 6_909, 85_400)
    assert near(told.out_tokens, 343, 350, 1_119)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    seen: set[int] = set()
    again = blocks = 0
    for row in rows:
        blocks += len(row["hash_ids"])
        again += len(seen.intersection(row["hash_ids"]))
        seen.update(row["hash_ids"])
    assert again / blocks == pytest.approx(0.366, abs=0.0005)
    # Sessions find most of it; what all prompts begin with, and answers, make the difference.
    answers = sum(row["output_length"] for row in rows) / sum(row["input_length"] for row in rows)
    assert 0.88 * again / blocks < told.reusable_share < again / blocks + answers
    # Every request is in exactly one session, with its own sizes.
    sizes = Counter((row["input_length"], row["output_length"]) for row in rows)
    assert prompts(found) == sizes


def prompts(workload: Workload) -> Counter[tuple[int, int]]:
    """Return (prompt, output) of all turns, by the definition of the form."""
    sizes: Counter[tuple[int, int]] = Counter()
    for session in workload.sessions:
        context = 0
        for turn in session.turns:
            keep = context if turn.keep_tokens < 0 else min(context, turn.keep_tokens)
            sizes[keep + turn.new_tokens, turn.out_tokens] += 1
            context = keep + turn.new_tokens + turn.out_tokens
    return sizes


def claude_requests() -> list[list[dict[str, Any]]]:
    """Return the requests of each session and each sub-agent."""
    lines = []
    for path in sorted(dataset("claude-code-traces", "dev").glob("*.json")):
        requests = json.loads(path.read_text())["requests"]
        lines.append([request for request in requests if request["type"] != "subagent"])
        lines += [request["requests"] for request in requests if request["type"] == "subagent"]
    return lines


def test_claude_code() -> None:
    found = read_workload(dataset("claude-code-traces", "dev"))
    check(found)
    told = statistics(found)
    assert (told.turns, told.roots, told.sessions) == (2_561, 61, 71)
    assert near(told.prompt_tokens, 95_355, 79_358, 371_326)
    assert near(told.out_tokens, 432, 223, 3_831) or told.out_tokens.p99 == 3_850
    lines = claude_requests()
    assert prompts(found) == Counter((r["in"], r["out"]) for line in lines for r in line)
    leading = blocks = 0
    for line in lines:
        blocks += sum(len(request["hash_ids"]) for request in line)
        for before, request in pairwise(line):
            pairs = zip(before["hash_ids"], request["hash_ids"], strict=False)
            leading += next(
                (n for n, (one, other) in enumerate(pairs) if one != other),
                min(len(before["hash_ids"]), len(request["hash_ids"])),
            )
    assert leading / blocks == pytest.approx(0.948, abs=0.0005)
    answers = sum(r["out"] for line in lines for r in line) / sum(
        r["in"] for line in lines for r in line
    )
    assert leading / blocks - 0.001 < told.reusable_share < leading / blocks + answers


def test_claude_code_gaps_are_those_recorded() -> None:
    """A pause counts from an answer whose end is known, so where the call before has api_time."""
    found = read_workload(dataset("claude-code-traces", "dev"))
    lines = [
        [request for request in json.loads(path.read_text())["requests"] if "in" in request]
        for path in sorted(dataset("claude-code-traces", "dev").glob("*.json"))
    ]
    mains = [session for session in found.sessions if session.spawn is None]
    other = compared = 0
    for session, line in zip(mains, lines, strict=True):
        for turn, (before, request) in zip(session.turns[1:], pairwise(line), strict=True):
            if "api_time" in before and "think_time" in request:
                compared += 1
                other += abs(turn.gap_ns / 1e9 - request["think_time"]) > 0.001
    assert compared > 1_900
    assert other == 4  # these wait for sub-agents, and their gaps count from the last one's end
    told = statistics(found)
    assert told.tool_gap_s.p50 == pytest.approx(8, rel=0.15)
    assert told.tool_gap_s.p90 == pytest.approx(74, rel=0.15)
    assert told.tool_gap_s.p99 == pytest.approx(1_716, rel=0.05)
    agents = [session for session in found.sessions if session.spawn is not None]
    assert len(agents) == 10
    for agent in agents:
        assert agent.spawn is not None
        assert agent.spawn.joins
        assert agent.start_ns < 2 * 10**9  # a sub-agent begins at once


def test_lmcache() -> None:
    found = read_workload(dataset("lmcache-agent-trace", "dev"))
    check(found)
    told = statistics(found)
    assert (told.turns, told.roots) == (934, 36)
    runs = Counter(
        session.key.partition("/")[0] for session in found.sessions for _ in session.turns
    )
    assert sorted(runs.values()) == sorted(
        len(path.read_text().splitlines())
        for path in dataset("lmcache-agent-trace", "dev").iterdir()
    )
    # A coding agent is one line; its first prompt is in all that follow.
    coding = [session for session in found.sessions if session.kind == "miniswe"]
    assert len(coding) == 12
    assert all(turn.keep_tokens == -1 for session in coding for turn in session.turns)
    assert told.reusable_share > 0.8


def lmcache_fit(kind: str, *, begins: bool) -> tuple[float, float]:
    """Fit the time between calls to the lengths of a call's output and input.

    The time is that to the next call where `timestamp` is when a call begins, else that since the
    call before. The longest 5 % are left out.

    Returns:
        (milliseconds for each character of output, R²).
    """
    sizes, times = [], []
    for path in sorted(dataset("lmcache-agent-trace", "dev").glob(f"{kind}__*")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows.sort(key=lambda row: int(row["timestamp"]))
        for number in range(1, len(rows) - 1):
            one, other = (number, number + 1) if begins else (number - 1, number)
            times.append((rows[other]["timestamp"] - rows[one]["timestamp"]) / 1e3)
            sizes.append((len(rows[number]["output"]), len(rows[number]["input"]), 1))
    y, x = np.array(times), np.array(sizes, dtype=float)
    x, y = x[y < np.quantile(y, 0.95)], y[y < np.quantile(y, 0.95)]
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    unexplained = ((y - x @ found) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return float(found[0]), float(1 - unexplained)


def test_lmcache_timestamps_are_beginnings() -> None:
    slope, explained = lmcache_fit("miniswe", begins=True)
    assert explained > 0.7
    assert lmcache_fit("miniswe", begins=False)[1] < 0.1
    assert slope == pytest.approx(1.41, rel=0.02)
    assert lmcache_fit("magagent", begins=True)[0] == pytest.approx(1.67, rel=0.02)
    assert lmcache_fit("taubench", begins=True)[0] == pytest.approx(0.57, rel=0.02)


def test_claude_code_answers_take_21_ms_a_token() -> None:
    timed = [r for line in claude_requests() for r in line if r.get("api_time")]
    mean_s = sum(r["api_time"] for r in timed) / sum(r["out"] for r in timed)
    assert mean_s == pytest.approx(0.021, rel=0.02)


def test_tau_bench() -> None:
    path = dataset("tau-bench-airline", "dev", "gpt-4o-airline.json")
    found = read_workload(path)
    check(found)
    runs = json.loads(path.read_text())
    calls = [sum(message["role"] == "assistant" for message in run["traj"]) for run in runs]
    assert [len(session.turns) for session in found.sessions] == calls
    tools = sum(message["role"] == "tool" for run in runs for message in run["traj"])
    named = sum(turn.tool != "" for session in found.sessions for turn in session.turns)
    assert 0.95 * tools <= named <= tools  # a run may end with a tool's result


def test_servegen_rates_and_lengths_are_those_of_the_windows() -> None:
    path = dataset("servegen", "dev", "language__m-large__chunk-34-trace.csv")
    found = read_workload(path, limit=12_000)
    check(found)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    counts = Counter(session.start_ns // (600 * 10**9) for session in found.sessions)
    for window in range(2):
        # Within four standard deviations of a count whose gaps have this coefficient of variation.
        expected = 600 * float(rows[window][1])
        assert abs(counts[window] - expected) < 4 * float(rows[window][2]) * expected**0.5
    entry = json.loads(path.with_name("language__m-large__chunk-34-dataset.json").read_text())["0"]
    weights = {
        int(pair.partition(":")[0]): float(pair.partition(":")[2])
        for pair in entry["output_tokens"].strip("{}").split(",")
    }
    mean = sum(value * weight for value, weight in weights.items()) / sum(weights.values())
    assert statistics(found).out_tokens.mean == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize(
    "name",
    ["azure-llm-2023", "mooncake-fast25", "claude-code-traces", "lmcache-agent-trace", "servegen"],
)
def test_each_set_is_recognised_as_itself(name: str) -> None:
    folder = dataset(name, "dev")
    first = min(path for path in Path(folder).iterdir() if path.is_file())
    found = read_workload(first, limit=3)
    assert found.name in name
