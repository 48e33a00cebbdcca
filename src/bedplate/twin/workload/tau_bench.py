"""tau-bench trajectories: a JSON list of runs, each a list of OpenAI-form messages.

An assistant message is one call of the model; its prompt is all messages before it. Sizes are
estimated from the texts (`tokens`); the schemas of the tools, which a prompt also holds, are not in
the file and not counted. Nothing was timed: gaps are drawn, a tool's and a person's, from the
persona `customer_service`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from bedplate.core.limits import INTERACTIVE
from bedplate.core.units import SECOND_NS
from bedplate.twin.workload.form import Session, Turn, Workload
from bedplate.twin.workload.personas import Persona, cast
from bedplate.twin.workload.source import (
    Family,
    Format,
    Options,
    assemble,
    bad,
    decode_document,
)
from bedplate.twin.workload.tokens import estimate_tokens


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    role: str
    content: str | None = None
    name: str = ""
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Run(msgspec.Struct):
    task_id: int
    traj: list[_Message]
    trial: int = 0


_DECODER: msgspec.json.Decoder[list[_Run]] = msgspec.json.Decoder(list[_Run])
_MESSAGE_TOKENS = 4
"""Tokens of a chat template around one message: role and two marks."""


def matches(head: str) -> bool:
    """Tell a file of this form by the keys of its first run."""
    return head.lstrip().startswith("[") and '"task_id"' in head and '"reward"' in head


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Read one or more files; the limit takes the first runs."""
    families: list[Family] = []
    person = cast().personas["customer_service"]
    for path in paths:
        runs: list[_Run] = decode_document(path, _DECODER)
        for index, run in enumerate(runs):
            if options.limit is not None and len(families) >= options.limit:
                break
            key = f"tau-{run.task_id}-{run.trial}"
            turns = _turns(run.traj, person, Random(f"{options.seed}/{key}"))
            if not turns:
                raise bad(path, 0, f"run {index} holds no assistant message")
            families.append([Session(key, "tau-bench", INTERACTIVE, "tau-bench", 0, None, turns)])
    source = f"tau-bench, {len(families)} runs; tokens estimated, gaps drawn, seed {options.seed}"
    return assemble("tau-bench", source, families)


def _turns(messages: Sequence[_Message], person: Persona, random: Random) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    new, tool = 0, ""
    for message in messages:
        if message.role != "assistant":
            new += estimate_tokens(message.content or "") + _MESSAGE_TOKENS
            if message.role == "tool":
                tool = message.name or "tool"
            continue
        gap_s = 0.0
        if turns:
            gap_s = (person.tool_s if tool else person.person_s).draw(random)
        out = max(1, estimate_tokens(_answer(message)))
        gap_ns = round(gap_s * SECOND_NS)
        turns.append(Turn(gap_ns, tool if turns else "", -1, max(1, new), out))
        new, tool = 0, ""
    return tuple(turns)


def _answer(message: _Message) -> str:
    calls = [call.function for call in message.tool_calls or []]
    if message.function_call is not None:
        calls.append(message.function_call)
    text = message.content or ""
    return text + "".join(f"{call.name} {call.arguments}" for call in calls)


FORMAT = Format(
    "tau-bench",
    "a JSON list of runs with task_id, reward and traj (messages)",
    matches,
    read,
    starts=False,
)
