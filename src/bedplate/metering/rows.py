"""Usage rows: what one turn used, as the journal's `usage` notes tell it.

A row is written in the same group as the event that ended its turn, so a crash cannot part them.
Its body is `core.actions.Settled` with `price_version` (the price list in force) and `event_seq`
(the record that caused it). Three kinds of rows exist:

- of a turn: `turn` is set;
- of a branch's last gap: `turn` is empty and no tokens were used, only KV was kept;
- of an embedding call: `turn` and `session` are empty, `prompt_tokens` are what it took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_type_hints

from bedplate.core.actions import Settled
from bedplate.core.codec import body_of
from bedplate.errors import JournalError
from bedplate.journal import Record

USAGE = "usage"
"""Kind of the notes that hold rows."""


class UsageRow(NamedTuple):
    """One row; fields from `turn` to `exact` as in `core.actions.Settled`.

    `seq` and `time_ns` are its own record's. `exact` is False when the tokens are an estimate.
    """

    seq: int
    time_ns: int
    event_seq: int
    price_version: str
    turn: str
    session: str
    branch: int
    tenant: str
    lane: int
    model: str
    card: str
    status: str
    prompt_tokens: int
    cached_tokens: int
    out_tokens: int
    queue_ns: int
    slot_ns: int
    tool_ns: int
    kv_card_token_ns: int
    kv_pool_token_ns: int
    attempts: int
    exact: bool

    @property
    def is_call(self) -> bool:
        """True for a call that is no turn; not for KV that was kept outside any."""
        return not self.turn and not self.session and self.status != "closed"

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that were computed."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def tokens(self) -> int:
        """All tokens: the whole prompt and the output."""
        return self.prompt_tokens + self.out_tokens


_TYPES = {name: str if hint is str else int for name, hint in get_type_hints(UsageRow).items()}
_BODY_FIELDS = frozenset(UsageRow._fields[2:])


def usage_body(settled: Settled, *, event_seq: int, price_version: str) -> dict[str, Any]:
    """Return the body of a `usage` note."""
    return {**body_of(settled), "event_seq": event_seq, "price_version": price_version}


def row_of(record: Record) -> UsageRow:
    """Read the row of a `usage` note.

    Raises:
        JournalError: a field is missing, unknown or of the wrong type, or the numbers cannot be.
    """
    body = record.body
    if body.keys() != _BODY_FIELDS:
        odd = sorted(body.keys() ^ _BODY_FIELDS)
        raise JournalError(f"usage record {record.seq}: fields missing or unknown: {odd}")
    for name, value in body.items():
        if type(value) is not _TYPES[name]:
            raise JournalError(f"usage record {record.seq}: {name} is {value!r}")
        if type(value) is int and value < 0:
            raise JournalError(f"usage record {record.seq}: {name} is negative")
    row = UsageRow(seq=record.seq, time_ns=record.time_ns, **{**body, "exact": bool(body["exact"])})
    if row.cached_tokens > row.prompt_tokens:
        raise JournalError(f"usage record {record.seq}: more tokens cached than in the prompt")
    if (row.tenant, row.session) != (record.tenant, record.session):
        raise JournalError(f"usage record {record.seq}: it is filed under another session")
    return row


def fold(records: Iterable[Record]) -> Iterator[UsageRow]:
    """Yield the rows among journal records, in order."""
    return (row_of(record) for record in records if record.kind == USAGE)
