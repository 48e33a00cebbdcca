"""Mooncake's traces of the FAST 2025 paper: one JSON line a request, prompts as hashes of blocks.

Fields: timestamp (milliseconds since the start), input_length and output_length (tokens), hash_ids
(one id for each 512 tokens of the prompt; equal leading ids mean an equal prefix).

Sessions are put together from the blocks: a request goes on from the newest request whose whole
blocks, two or more, all begin its own prompt, unless that one's answer cannot have ended yet. The
first block is the same in all prompts, so prompts of under two whole blocks leave no trace, and
their sessions end there. A session's tenant is not known.

When answers ended was not recorded. It is taken as 20 ms for each token of an answer after the
arrival, which matters little: half of the gaps are longer than two minutes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from bedplate.core.limits import INTERACTIVE
from bedplate.core.units import MILLISECOND_NS
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
    decode_lines,
)

BLOCK_TOKENS = 512
_WHOLE_MIN = 2
"""Whole blocks of a prompt that others can be seen to go on from."""
_OUT_TOKEN_NS = 20 * MILLISECOND_NS

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]


class _Row(msgspec.Struct):
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=int(TIME_MAX_S * 1000))]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: list[int]


_DECODER = msgspec.json.Decoder(_Row)


class _Session:
    """A session as far as it is known: its calls and the length of its newest prompt."""

    __slots__ = ("calls", "prompt")

    def __init__(self) -> None:
        self.calls: list[branches.Call] = []
        self.prompt = 0


class _Ending:
    """Sessions whose newest prompts have the same whole blocks: answered ones, newest first."""

    __slots__ = ("answered", "running")

    def __init__(self) -> None:
        self.answered: list[tuple[int, _Session]] = []
        self.running: list[tuple[int, int, _Session]] = []

    def add(self, number: int, session: _Session) -> None:
        """Add a session by the number of its newest request, which no other has."""
        heapq.heappush(self.running, (session.calls[-1].end_ns, number, session))

    def take(self, now_ns: int) -> _Session | None:
        """Take out the newest one that is answered; None if there is none. Time never falls."""
        while self.running and self.running[0][0] <= now_ns:
            _, number, session = heapq.heappop(self.running)
            heapq.heappush(self.answered, (-number, session))
        return heapq.heappop(self.answered)[1] if self.answered else None


def matches(head: str) -> bool:
    """Tell a file of this form by the keys of its first line."""
    first = head.partition("\n")[0]
    return first.startswith("{") and all(
        f'"{key}"' in first for key in ("timestamp", "input_length", "hash_ids")
    )


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Read one file, or several on one clock."""
    rows: list[_Row] = []
    for path in paths:
        for number, row in decode_lines(path, _DECODER):
            if len(row.hash_ids) != -(-row.input_length // BLOCK_TOKENS):
                raise bad(
                    path,
                    number,
                    f"{len(row.hash_ids)} hash_ids for {row.input_length} tokens; one for each "
                    f"{BLOCK_TOKENS} is expected",
                )
            if row.input_length and row.output_length:
                rows.append(row)
    rows.sort(key=lambda row: row.timestamp)
    families: list[Family] = []
    for number, session in enumerate(_sessions(rows), 1):
        line = branches.Line(f"mooncake-{number}", "mooncake", session.calls)
        families += branches.families([line], tenant="mooncake", lane=INTERACTIVE)
    source = f"Mooncake trace, {len(rows)} requests in {len(families)} sessions by their prefixes"
    return assemble("mooncake", source, families)


def _sessions(rows: Sequence[_Row]) -> list[_Session]:
    """Return sessions in the order of their starts.

    Cost: O(blocks + rows log rows).
    """
    sessions: list[_Session] = []
    tree: dict[tuple[int, int], int] = {}  # (prefix, next block) to the longer prefix; 0 is none
    ending: dict[int, _Ending] = {}
    for number, row in enumerate(rows):
        start_ns = row.timestamp * MILLISECOND_NS
        session = _goes_on_from(tree, ending, row, start_ns)
        keep, new = -1, row.input_length
        if session is None:
            session = _Session()
            sessions.append(session)
        else:
            before = session.prompt + session.calls[-1].out_tokens
            if row.input_length > before:
                new = row.input_length - before
            else:
                keep = min(session.prompt, row.input_length - 1)
                new = row.input_length - keep
        end_ns = start_ns + row.output_length * _OUT_TOKEN_NS
        session.calls.append(branches.Call(start_ns, end_ns, "", keep, new, row.output_length))
        session.prompt = row.input_length
        whole = row.hash_ids[: row.input_length // BLOCK_TOKENS]
        if len(whole) >= _WHOLE_MIN:
            prefix = 0
            for block in whole:
                prefix = tree.setdefault((prefix, block), len(tree) + 1)
            ending.setdefault(prefix, _Ending()).add(number, session)
    return sessions


def _goes_on_from(
    tree: Mapping[tuple[int, int], int], ending: Mapping[int, _Ending], row: _Row, start_ns: int
) -> _Session | None:
    """Take the newest session with the longest prompt that this one begins with, None if none."""
    prefixes: list[int] = [0]
    for block in row.hash_ids:
        longer = tree.get((prefixes[-1], block))
        if longer is None:
            break
        prefixes.append(longer)
    for prefix in reversed(prefixes[_WHOLE_MIN:]):
        found = ending[prefix].take(start_ns) if prefix in ending else None
        if found is not None:
            return found
    return None


FORMAT = Format(
    "mooncake",
    "JSON lines with timestamp, input_length, output_length and hash_ids",
    matches,
    read,
    starts=True,
)
