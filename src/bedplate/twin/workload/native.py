"""The project's own workload file: JSON lines, one session a line (docs/reference/workload.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from bedplate.core.limits import LANE_NAMES
from bedplate.errors import InvalidRequest
from bedplate.twin.workload.form import Session, Spawn, Turn, Workload
from bedplate.twin.workload.source import (
    TIME_MAX_S,
    TOKENS_MAX,
    Format,
    Options,
    bad,
    lines,
)

T = TypeVar("T")
VERSION = 1
_NS_MAX = int(TIME_MAX_S) * 10**9


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    bedplate_workload: int
    name: str
    source: str


class _Session(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    tenant: str
    lane: str
    kind: str
    start_ns: Annotated[int, msgspec.Meta(ge=0, le=_NS_MAX)]
    spawn: Spawn | None
    turns: Annotated[tuple[Turn, ...], msgspec.Meta(min_length=1)]
    prefix: str = ""
    prefix_tokens: int = 0


_TWICE = "a session above it has the same key"
_HEAD = msgspec.json.Decoder(_Head)
_SESSION = msgspec.json.Decoder(_Session)


def problem(session: Session) -> str:
    """Return what is wrong with a session's values, empty if nothing."""
    if not 0 <= session.lane < len(LANE_NAMES):
        return f"lane {session.lane} is no rank"
    if not session.key or not session.tenant:
        return "a session has a key and a tenant"
    if not 0 <= session.start_ns <= _NS_MAX:
        return f"start_ns {session.start_ns} is out of range"
    if not session.turns:
        return "a session has at least one turn"
    if session.turns[0].gap_ns:
        return "the first turn has a gap; it belongs into start_ns"
    for number, turn in enumerate(session.turns):
        sizes = (turn.new_tokens, turn.out_tokens)
        if not 0 <= turn.gap_ns <= _NS_MAX:
            return f"turn {number} has gap_ns {turn.gap_ns}"
        if not all(1 <= size <= TOKENS_MAX for size in sizes):
            return f"turn {number} has {sizes[0]} new and {sizes[1]} output tokens; 1 to 10^9 each"
        if not -1 <= turn.keep_tokens <= TOKENS_MAX or not 0 <= turn.limit_tokens <= TOKENS_MAX:
            return f"turn {number} keeps {turn.keep_tokens} tokens, limit {turn.limit_tokens}"
    if bool(session.prefix) != bool(session.prefix_tokens):
        return "an opening has a prefix and prefix_tokens, or neither"
    if not 0 <= session.prefix_tokens < session.turns[0].new_tokens:
        return f"prefix_tokens {session.prefix_tokens}: the first prompt must be longer"
    return ""


def order_problem(sessions: Sequence[Session], index: int, root_ns: int) -> str:
    """Return what is wrong with a session's place among those before it, empty if nothing.

    `root_ns` is the start of the newest root before it.
    """
    spawn = sessions[index].spawn
    if spawn is None:
        if sessions[index].start_ns < root_ns:
            return "begins before the root above it; sort root sessions by start_ns"
        return ""
    if not 0 <= spawn.session < index:
        return f"is spawned by session {spawn.session}, which does not come before it"
    last = len(sessions[spawn.session].turns) - 1
    if not 0 <= spawn.turn <= last:
        return f"is spawned by turn {spawn.turn} of session {spawn.session}, which has no such turn"
    if spawn.joins and spawn.turn == last:
        return "joins a turn that does not exist: its parent ends with the turn that spawns it"
    return ""


def check(workload: Workload) -> None:
    """Raise InvalidRequest if the workload is not of the form that `form` describes, or empty.

    Cost: O(turns).
    """
    if not workload.sessions:
        raise InvalidRequest(f"{workload.name} has no sessions; ask for more, or for longer")
    root_ns = 0
    keys: set[str] = set()
    for index, session in enumerate(workload.sessions):
        wrong = problem(session) or order_problem(workload.sessions, index, root_ns)
        if wrong or session.key in keys:
            wrong = wrong or _TWICE
            raise InvalidRequest(f"session {index} ({session.key}) of {workload.name}: {wrong}")
        keys.add(session.key)
        if session.spawn is None:
            root_ns = session.start_ns


def dump(workload: Workload) -> Iterator[bytes]:
    """Yield the lines of a workload's file, each with its newline."""
    encode = msgspec.json.Encoder().encode
    yield encode(_Head(VERSION, workload.name, workload.source)) + b"\n"
    for session in workload.sessions:
        line = _Session(**{**session._asdict(), "lane": LANE_NAMES[session.lane]})
        yield encode(line) + b"\n"


def write(workload: Workload, path: Path) -> None:
    """Write a workload to a file, in one step.

    Raises:
        InvalidRequest: the file cannot be written, or the workload could not be read again.
    """
    check(workload)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.writelines(dump(workload))
        part.replace(path)
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error.strerror}") from error


def matches(head: str) -> bool:
    """Tell a file of this form by its first line."""
    return head.startswith('{"bedplate_workload":')


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Read one workload file."""
    (path, *others) = paths
    if others:
        raise bad(others[0], 0, "is a second workload file; name one")
    found = lines(path)
    number, data = next(found, (1, b""))
    head = _decoded(_HEAD, data, path, number)
    if head.bedplate_workload != VERSION:
        raise bad(path, number, f"version {head.bedplate_workload}; this reads version {VERSION}")
    sessions: list[Session] = []
    root_ns = 0
    keys: set[str] = set()
    for number, data in found:
        row = _decoded(_SESSION, data, path, number)
        if row.lane not in LANE_NAMES:
            raise bad(path, number, f"lane {row.lane!r} is none of {', '.join(LANE_NAMES)}")
        values = {name: getattr(row, name) for name in Session._fields}
        session = Session(**{**values, "lane": LANE_NAMES.index(row.lane)})
        sessions.append(session)
        wrong = problem(session) or order_problem(sessions, len(sessions) - 1, root_ns)
        if wrong or row.key in keys:
            raise bad(path, number, f"session {row.key!r}: {wrong or _TWICE}")
        keys.add(row.key)
        if row.spawn is None:
            root_ns = row.start_ns
    return Workload(head.name, head.source, tuple(sessions))


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes, path: Path, number: int) -> T:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise bad(path, number, f"{error}; the line may be cut off") from error


FORMAT = Format(
    "bedplate",
    'JSON lines that begin with {"bedplate_workload": 1, …} (bedplate workload make)',
    matches,
    read,
    starts=True,
)
