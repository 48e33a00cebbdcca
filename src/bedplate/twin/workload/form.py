"""The one form of a workload: sessions of turns with gaps, replayed causally.

A turn never arrives at a recorded instant. The first turn of a session arrives at the session's
start, each later one `gap_ns` after the end of the one before, so that a slower base is asked later
and not more at once.
"""

from __future__ import annotations

from typing import NamedTuple


class Turn(NamedTuple):
    """One model call and the gap before it. Sizes in tokens.

    `gap_ns` passes after the previous turn's end (in the first turn of a session: 0), while `tool`
    runs; "" when a person thinks, or nobody knows. The prompt is the first `keep_tokens` tokens of
    the context so far (the previous turn's prompt and answer) and `new_tokens` more. `keep_tokens`
    −1 keeps all of it; less is history that was edited, cut or summarised. `out_tokens` is how long
    the answer will be, `limit_tokens` the limit that the client states, 0 if none.
    """

    gap_ns: int
    tool: str
    keep_tokens: int
    new_tokens: int
    out_tokens: int
    limit_tokens: int = 0


class Spawn(NamedTuple):
    """Where a sub-agent's session begins: `gap_ns` after turn `turn` of session `session` ended.

    `joins`: the parent's next turn waits for the end of this session, and its gap counts from then.
    """

    session: int
    turn: int
    joins: bool


class Session(NamedTuple):
    """One session; at least one turn.

    `start_ns` counts from the beginning of the workload, or, with `spawn`, from the end of the turn
    that spawned it. `lane` is a rank of `core.limits`; `kind` names persona or source. Its first
    prompt begins with `prefix_tokens` tokens that are the same in all sessions of its tenant with
    the same `prefix`; "" for none.
    """

    key: str
    tenant: str
    lane: int
    kind: str
    start_ns: int
    spawn: Spawn | None
    turns: tuple[Turn, ...]
    prefix: str = ""
    prefix_tokens: int = 0


class Workload(NamedTuple):
    """Sessions in the order of their roots' starts; a spawned session comes after its parent.

    `source` says where it comes from, for reports.
    """

    name: str
    source: str
    sessions: tuple[Session, ...]


def opened(session: Session, prefix: str, tokens: int) -> Session:
    """Return the session with an opening, or with none where its first prompt is not longer."""
    if not 0 < tokens < session.turns[0].new_tokens:
        prefix, tokens = "", 0
    return session._replace(prefix=prefix, prefix_tokens=tokens)


def prompt_tokens(turn: Turn, context_tokens: int) -> tuple[int, int]:
    """Return (prompt tokens, leading ones equal to the context) behind a context of so many."""
    keep = context_tokens if turn.keep_tokens < 0 else min(turn.keep_tokens, context_tokens)
    return keep + turn.new_tokens, keep
