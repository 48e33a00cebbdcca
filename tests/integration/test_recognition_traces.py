"""Recognition on recorded agent traffic: nobody told the agents' clients to name a session.

The recordings say which file a call is of, one run of one agent system each. A call must land in a
session of its own file: a new one where it goes on from no answer of ours, never in another file's.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bedplate.core.ids import ModelId, TenantId, TurnId
from bedplate.engines.base import ChatRequest
from bedplate.gateway.recognition import Placement, Recogniser
from tests.fakes.datasets import dataset

TENANT, MODEL = TenantId("bank"), ModelId("m")


class Call(NamedTuple):
    """One recorded call; `expected` is the kind of placement that is due, empty if not known."""

    start_ns: int
    end_ns: int
    file: str
    messages: tuple[dict[str, Any], ...]
    answer: dict[str, Any]
    expected: str


def folder(name: str) -> Path:
    return dataset(name, "dev")


def say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def replay(calls: list[Call]) -> tuple[collections.Counter[str], int]:
    """Feed all calls in time order; return how they were placed and how many met another file."""
    ids = itertools.count()
    recogniser = Recogniser(lambda: f"{next(ids):032x}")
    home: dict[str, str] = {}
    kinds: collections.Counter[str] = collections.Counter()
    strangers = 0
    running: list[tuple[int, int, Placement, Call]] = []
    for number, call in enumerate(sorted(calls, key=lambda c: (c.start_ns, c.file))):
        while running and running[0][0] <= call.start_ns:
            _, _, placement, ended = heapq.heappop(running)
            recogniser.turn_ended(placement, ended.answer, ended.end_ns)
        placement = recogniser.match(
            TENANT,
            MODEL,
            ChatRequest(model=MODEL, messages=call.messages),
            None,
            call.start_ns,
            turn=TurnId(str(number)),
        )
        kinds[placement.kind] += 1
        kinds["as expected"] += not call.expected or placement.kind == call.expected
        strangers += home.setdefault(placement.session, call.file) != call.file
        heapq.heappush(running, (call.end_ns, number, placement, call))
    return kinds, strangers


def rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(found, key=lambda row: int(row["timestamp"]))


def coding_agent_calls() -> Iterator[Call]:
    """mini-swe-agent: one growing history, put together again with the answers between."""
    for path in sorted(folder("lmcache-agent-trace").glob("miniswe__*")):
        before, messages = "", []
        for row in rows(path):
            assert row["input"].startswith(before)
            messages.append(say("user", row["input"][len(before) :]))
            start = int(row["timestamp"]) * 1000
            answer = say("assistant", row["output"])
            expected = "extend" if before else "new"
            yield Call(start, start + 1, path.name, tuple(messages), answer, expected)
            messages.append(answer)
            before = row["input"]


def agent_team_calls() -> Iterator[Call]:
    """Several agents and an orchestrator; histories as text with a role before each message."""
    mark = re.compile(r"(?:^|\n\n)(user|assistant|system|tool): ")
    for path in sorted(folder("lmcache-agent-trace").glob("magagent__*")):
        for row in rows(path):
            _, *parts = mark.split(row["input"])
            messages = tuple(
                say(role, text.strip()) for role, text in zip(parts[::2], parts[1::2], strict=True)
            )
            start = int(row["timestamp"]) * 1000
            answer = say("assistant", row["output"].strip())
            yield Call(start, start + 1, path.name, messages, answer, "")


def block_calls() -> Iterator[Call]:
    """Claude Code: prompts as hashes of 64-token blocks, with the times of calls and sub-agents.

    A call goes on from the ended call of its file with the most blocks that all begin its own.
    """
    for path in sorted(folder("claude-code-traces").glob("*.json")):
        trace = json.loads(path.read_text())
        history: list[tuple[list[int], Call]] = []
        heads: set[int] = set()
        for request in flat(trace["requests"]):
            start = int(request["t"] * 1e9)
            end = start + max(1, int(request.get("api_time", 0) * 1e9))
            blocks: list[int] = request["hash_ids"]
            parent = max(
                (
                    (len(old), at)
                    for at, (old, call) in enumerate(history)
                    if call.end_ns <= start and old and blocks[: len(old)] == old
                ),
                default=None,
            )
            past: tuple[dict[str, Any], ...] = ()
            seen = 0
            expected = "new"
            if parent is not None:
                old, call = history[parent[1]]
                past, seen = (*call.messages, call.answer), len(old)
                expected = "extend" if parent[1] in heads else "fork"
                heads.discard(parent[1])
            text = f"{path.name} {blocks[seen:]}"
            messages = (*past, say("user" if parent is None else "tool", text))
            answer = say("assistant", f"{path.name} answer {len(history)}")
            call = Call(start, end, path.name, messages, answer, expected)
            heads.add(len(history))
            history.append((blocks, call))
            yield call


def flat(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all calls, those of sub-agents among them, in time order."""
    found: list[dict[str, Any]] = []
    for request in requests:
        if request["type"] == "subagent":
            found += flat(request["requests"])
        else:
            found.append(request)
    return sorted(found, key=lambda request: float(request["t"]))


def test_coding_agents_each_stay_in_one_session() -> None:
    calls = list(coding_agent_calls())
    kinds, strangers = replay(calls)
    print(len(calls), dict(kinds))
    files = len({call.file for call in calls})
    assert strangers == 0
    assert kinds["new"] == files
    assert kinds["extend"] == len(calls) - files


def test_a_team_of_agents_never_meets_another_team() -> None:
    calls = list(agent_team_calls())
    kinds, strangers = replay(calls)
    print(len(calls), dict(kinds))
    assert strangers == 0
    assert kinds["extend"] + kinds["fork"] > 0


def test_coding_sessions_with_sub_agents_land_where_their_prefix_is() -> None:
    calls = list(block_calls())
    kinds, strangers = replay(calls)
    print(len(calls), dict(kinds))
    assert strangers == 0
    assert kinds["as expected"] >= 0.99 * len(calls)
