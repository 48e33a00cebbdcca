"""Recorded Claude Code sessions: one JSON document a session, prompts as hashes of 64-token blocks.

A request has t (seconds since the session began), in, out (tokens), hash_ids, api_time (seconds the
server took) and think_time (seconds the client let pass before it: tool and approval where the
input has a tool_result, else a person). Requests of type `subagent` hold the requests of a
sub-agent, whose t counts from the sub-agent's beginning. Its own t is when it *ended*: t less
duration_ms is half a second behind the end of the parent's call, in all ten of the data set.

Where a request has no api_time, the next one's think_time reaches back to an older request and says
nothing; its end is taken from its output then.

The prefix that a request keeps is what its leading blocks share with the request before. Where that
is all of them, the answer is kept too if the new prompt has room for it, and either a tool loop
goes on or the answer held no reasoning, which is cut from the history when a person speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from bedplate.core.limits import SHARED
from bedplate.core.units import MILLISECOND_NS, SECOND_NS
from bedplate.twin.workload import branches
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.source import (
    TIME_MAX_S,
    TOKENS_MAX,
    Family,
    Format,
    Options,
    assemble,
    bad,
    decode_document,
)

_OUT_TOKEN_NS = 21 * MILLISECOND_NS
"""Time of a call for each output token where it has no api_time: the mean over those that do,
of the whole data set (`tests/integration/test_workload_traces.py` takes it again)."""

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=TIME_MAX_S)]
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]


class _Request(msgspec.Struct):
    t: _Seconds
    type: str
    prompt: _Tokens = msgspec.field(name="in", default=0)
    out: _Tokens = 0
    hash_ids: list[int] = []
    input_types: list[str] = []
    output_types: list[str] = []
    api_time: _Seconds | None = None
    think_time: _Seconds | None = None
    requests: list[_Request] = []
    agent_id: str = ""
    subagent_type: str = ""
    duration_ms: Annotated[int, msgspec.Meta(ge=0, le=int(TIME_MAX_S * 1000))] = 0


class _Trace(msgspec.Struct):
    id: str
    block_size: Annotated[int, msgspec.Meta(ge=1)]
    requests: list[_Request]


_DECODER = msgspec.json.Decoder(_Trace)


def matches(head: str) -> bool:
    """Tell a file of this form by the keys of its document."""
    return head.startswith("{") and '"hash_id_scope"' in head[:1024]


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Read one session a file; the limit takes the first files."""
    families: list[Family] = []
    chosen = paths[: options.limit]
    for path in chosen:
        trace = decode_document(path, _DECODER)
        main = [request for request in trace.requests if request.type != "subagent"]
        lines = [_line(path, trace, trace.id, main, kind="claude-code", begun_ns=0)]
        for agent in trace.requests:
            if agent.type == "subagent":
                begun_ns = _ns(agent.t) - agent.duration_ms * MILLISECOND_NS
                key = f"{trace.id}/{agent.agent_id}"
                kind = f"claude-code/{agent.subagent_type}"
                lines.append(_line(path, trace, key, agent.requests, kind=kind, begun_ns=begun_ns))
        families += branches.families(lines, tenant="claude-code", lane=SHARED)
    source = f"Claude Code sessions, {len(chosen)} with their sub-agents"
    return assemble("claude-code", source, families)


def _line(
    path: Path, trace: _Trace, key: str, requests: Sequence[_Request], *, kind: str, begun_ns: int
) -> branches.Line:
    if not requests:
        raise bad(path, 0, f"{key} holds no request")
    calls: list[branches.Call] = []
    for number, request in enumerate(requests):
        if not request.prompt or not request.out:
            raise bad(path, 0, f"request {number} of {key} has no prompt or no output")
        start_ns = begun_ns + _ns(request.t)
        if calls and start_ns < calls[-1].start_ns:
            raise bad(path, 0, f"request {number} of {key} begins before the one above it")
        following = requests[number + 1] if number + 1 < len(requests) else None
        if request.api_time is None:
            end_ns = start_ns + request.out * _OUT_TOKEN_NS
        elif following is not None and following.think_time is not None:
            end_ns = begun_ns + _ns(following.t) - _ns(following.think_time)
        else:
            end_ns = start_ns + _ns(request.api_time)
        keep, new = -1, request.prompt
        if number:
            keep, new = _kept(requests[number - 1], request, trace.block_size)
        tool = "tool" if number and "tool_result" in request.input_types else ""
        calls.append(branches.Call(start_ns, max(start_ns, end_ns), tool, keep, new, request.out))
    return branches.Line(key, kind, calls)


def _kept(before: _Request, request: _Request, block_tokens: int) -> tuple[int, int]:
    """Return (keep_tokens, new_tokens) of a request behind the one before."""
    shared = 0
    for one, other in zip(before.hash_ids, request.hash_ids, strict=False):
        if one != other:
            break
        shared += 1
    if shared < len(before.hash_ids):
        keep = min(shared * block_tokens, request.prompt - 1)
        return keep, request.prompt - keep
    context = before.prompt + before.out
    answer_kept = "tool_result" in request.input_types or "thinking" not in before.output_types
    if answer_kept and request.prompt > context:
        return -1, request.prompt - context
    keep = min(before.prompt, request.prompt - 1)
    return keep, request.prompt - keep


def _ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)


FORMAT = Format(
    "claude-code",
    'JSON documents with "hash_id_scope" and "requests", one file a session',
    matches,
    read,
    starts=False,
)
