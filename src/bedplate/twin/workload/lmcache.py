"""LMCache's agent traces: one file a run, one JSON line a call with its whole prompt as text.

Fields: timestamp (microseconds since 1970), input, output, session_id. Lines come in any order and
are sorted first.

What the recording does not say is estimated, and `Workload.source` repeats it:

- Sizes are estimated from the texts (`tokens`).
- `timestamp` is when the call began: over the mini-swe-agent runs the time to the next call grows
  with the length of this call's output (R² 0.73), the time since the call before does not (0.06).
  The same fit gives how long a call took for each character of its output; the rest of the time to
  the next call is the gap. `tests/integration/test_workload_traces.py` fits them again.
- Which calls belong together is read from the prompts: a call goes on from the line whose newest
  prompt it begins with, or shares more than half of its own text with. One run of several agents
  thus becomes several sessions, spawned by one another (`branches`).
- The runs were recorded one after the other over a week, so their starts say nothing of load, and
  are drawn.
- A recording of which no prompt holds an answer that came before has them left out; the agent sent
  them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from bedplate.core.limits import SHARED
from bedplate.core.units import MICROSECOND_NS
from bedplate.twin.workload import branches
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.source import (
    Family,
    Format,
    Options,
    assemble,
    bad,
    decode_lines,
)
from bedplate.twin.workload.tokens import estimate_tokens

_CHARACTER_NS = {"miniswe": 1_410_000, "magagent": 1_670_000, "taubench": 570_000}
"""Time of a call for each character of its output, fitted for each agent of the data set."""
_CHARACTER_NS_DEFAULT = 1_410_000


class _Row(msgspec.Struct):
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=10**18)]
    input: str
    output: str
    session_id: str


_DECODER = msgspec.json.Decoder(_Row)


class _Line(NamedTuple):
    key: str
    calls: list[branches.Call]
    newest: _Row


def matches(head: str) -> bool:
    """Tell a file of this form by the keys of its first line."""
    return head.startswith('{"timestamp"') and '"input": "' in head[:100]


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Read one run a file; the limit takes the first files."""
    families: list[Family] = []
    for path in paths[: options.limit]:
        families += _run(path)
    source = f"LMCache agent traces, {len(paths[: options.limit])} runs; tokens and gaps estimated"
    return assemble("lmcache", source, families)


def _run(path: Path) -> list[Family]:
    """Return the sessions of one file."""
    rows: list[_Row] = []
    for number, row in decode_lines(path, _DECODER):
        rows.append(row)
        if row.session_id != rows[0].session_id:
            raise bad(path, number, "the file holds more than one session_id; split it")
    rows.sort(key=lambda row: row.timestamp)
    kind = path.name.partition("__")[0] if "__" in path.name else "lmcache"
    answers_kept = any(
        row.output.strip() and row.output.strip() in later.input for row, later in pairwise(rows)
    )
    lines: list[_Line] = []
    for row in rows:
        index, shared = _longest(lines, row.input)
        start_ns = row.timestamp * MICROSECOND_NS
        out = max(1, estimate_tokens(row.output))
        took_ns = len(row.output) * _CHARACTER_NS.get(kind, _CHARACTER_NS_DEFAULT)
        if index is None:
            key = f"{rows[0].session_id}/{len(lines)}"
            new = max(1, estimate_tokens(row.input))
            call = branches.Call(start_ns, start_ns + took_ns, "", -1, new, out)
            lines.append(_Line(key, [call], row))
        else:
            line = lines[index]
            keep, new = _kept(line.newest, row, shared, answers_kept=answers_kept)
            call = branches.Call(start_ns, start_ns + took_ns, "tool", keep, new, out)
            line.calls.append(call)
            lines[index] = line._replace(newest=row)
    return branches.families(
        [branches.Line(line.key, kind, line.calls) for line in lines], tenant=kind, lane=SHARED
    )


def _longest(lines: Sequence[_Line], prompt: str) -> tuple[int | None, int]:
    """Return the line that a prompt goes on from, None if none, and the characters they share."""
    best, shared = None, 0
    for index, line in enumerate(lines):
        newest = line.newest.input
        common = _common(newest, prompt)
        if common > shared and (common == len(newest) or 2 * common > len(prompt)):
            best, shared = index, common
    return best, shared


def _common(one: str, other: str) -> int:
    """Return how many leading characters two texts share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _kept(before: _Row, row: _Row, shared: int, *, answers_kept: bool) -> tuple[int, int]:
    """Return (keep_tokens, new_tokens) of a call that goes on from another."""
    if shared < len(before.input):
        return estimate_tokens(row.input[:shared]), max(1, estimate_tokens(row.input[shared:]))
    rest = row.input[shared:]
    if not answers_kept:
        return -1, max(1, estimate_tokens(rest))
    answer = before.output.strip()
    place = rest.find(answer, 0, len(answer) + 64) if answer else -1
    if place >= 0:
        return -1, max(1, estimate_tokens(rest[place + len(answer) :]))
    return estimate_tokens(before.input), max(1, estimate_tokens(rest))


FORMAT = Format(
    "lmcache",
    "JSON lines with timestamp, input, output and session_id, one file a run",
    matches,
    read,
    starts=False,
)
