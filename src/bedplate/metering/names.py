"""Names that clients gave their sessions, as the journal tells them.

Rows, contents and erasures know a session by its id; the name of `X-Session-Id` is in the note of
each answered call. A name may be used again after its session has ended: then it has several ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bedplate.journal import Record

NAMES_KIND = "recognised"
"""Kind of the notes that tell names."""


class Named(NamedTuple):
    """A session that its client gave a name."""

    tenant: str
    session: str
    name: str


def session_names(records: Iterable[Record]) -> dict[str, Named]:
    """Return the sessions that have a name, by id. Memory grows with their number."""
    return {
        record.session: Named(record.tenant, record.session, record.body["name"])
        for record in records
        if record.kind == NAMES_KIND and record.body["name"]
    }
