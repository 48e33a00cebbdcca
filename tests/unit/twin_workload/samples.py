"""Small sources of every format, written by hand, and what is expected of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:50.2,879,55\n"
    "2023-11-16 18:15:51,12,0\n"
)

BURST_1 = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,230,1317,Conversation log\n"
    "118,GPT-4,417,0,417,API log\n"
)

BURST_2 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "19440110.0,a,43,GPT-4,906,446,1352,Conversation log\n"
    "19440161.0,b,2,ChatGPT,36,29,65,Conversation log\n"
    "19440200.0,a,8,GPT-4,1400,123,1523,Conversation log\n"
    "19440220.5,,3,ChatGPT,935,178,1113,API log\n"
    "19440300.0,a,5,GPT-4,200,10,210,Conversation log\n"
)


def mooncake_row(timestamp: int, tokens: int, out: int, blocks: list[int]) -> str:
    row = {"timestamp": timestamp, "input_length": tokens, "output_length": out, "hash_ids": blocks}
    return json.dumps(row) + "\n"


MOONCAKE = (
    mooncake_row(0, 1500, 100, [0, 1, 2])
    + mooncake_row(0, 1200, 50, [0, 5, 6])
    + mooncake_row(1000, 1700, 10, [0, 1, 3, 4])  # the first one's answer takes until 2 s
    + mooncake_row(30_000, 1650, 80, [0, 1, 7, 8])  # goes on from it: whole blocks 0 and 1
    + mooncake_row(60_000, 600, 20, [0, 9])
    + mooncake_row(90_000, 1000, 20, [0, 9])  # under two whole blocks: nothing to go on from
)


def claude_trace() -> dict[str, Any]:
    def call(t: float, size: int, out: int, blocks: list[int], **fields: Any) -> dict[str, Any]:
        return {
            "t": t,
            "type": "n",
            "in": size,
            "out": out,
            "hash_ids": blocks,
            "input_types": ["text"],
            "output_types": ["text", "tool_use"],
            **fields,
        }

    tool = {"input_types": ["tool_result"]}
    return {
        "id": "trace_1",
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [
            call(0.0, 640, 60, list(range(10)), api_time=10.0, think_time=0.0),
            {
                "t": 40.0,
                "type": "subagent",
                "agent_id": "agent_001",
                "subagent_type": "Explore",
                "duration_ms": 29_500,
                "requests": [
                    call(0.0, 320, 20, list(range(50, 55)), api_time=2.0, think_time=0.0),
                    call(5.0, 400, 30, list(range(50, 56)), api_time=4.0, think_time=3.0, **tool),
                ],
            },
            call(
                50.0,
                900,
                70,
                [*range(10), *range(20, 24)],
                api_time=20.0,
                think_time=40.0,
                output_types=["thinking", "text"],
                **tool,
            ),
            call(100.0, 960, 40, [*range(10), *range(20, 25)], think_time=30.0),
            call(200.0, 500, 10, [0, 1, 2, 3, 90, 91, 92], api_time=3.0, think_time=90.0),
        ],
    }


def claude_text() -> str:
    return json.dumps(claude_trace(), separators=(",", ":"))


def lmcache_row(at_us: int, prompt: str, output: str, session: str = "s") -> str:
    row = {"timestamp": at_us, "input": prompt, "output": output, "session_id": session}
    return json.dumps(row) + "\n"


TAU = json.dumps(
    [
        {
            "task_id": 3,
            "trial": 1,
            "reward": 1.0,
            "info": {},
            "traj": [
                {"role": "system", "content": "You help customers of an airline."},
                {"role": "user", "content": "Cancel my flight."},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "1", "function": {"name": "find_user", "arguments": '{"a": 1}'}}
                    ],
                },
                {"role": "tool", "name": "find_user", "content": "not found"},
                {"role": "assistant", "content": "Who are you?", "tool_calls": None},
                {"role": "user", "content": "Never mind."},
            ],
        }
    ]
)

SERVEGEN_TRACE = (
    "0,2.0,1.0,Gamma,1.0,0.5\n600,4.0,1.5,Weibull,0.7,0.2\n1200,0,0,,0,0\n1800,1.0,1,,0,0\n"
)
SERVEGEN_DATASET = json.dumps(
    {
        "0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{3: 1.0}"},
        "600": {"input_tokens": "{100: 1.0}", "output_tokens": "{7: 0.25, 8: 0.75}"},
        "1200": {"input_tokens": "{}", "output_tokens": "{}"},
    }
)

MIX = """
[mix]
sessions_per_hour = 120
start = 2026-12-01T09:00:00
[mix.shares]
customer_service = 3
loan_parser = 1
"""


def lmcache_text() -> str:
    return lmcache_row(1_000_000, "Fix the bug.", "ls") + lmcache_row(
        3_000_000, "Fix the bug.\n\na.py", "cat a.py"
    )


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path
