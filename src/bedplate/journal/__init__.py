"""The append-only, tamper-evident journal: every event, and every note that explains one.

Reading order: `record` (what is stored, byte for byte), `tree` and `checkpoint` (why a change
shows), `storage` (SQL), `store` (the writer), `reader`, `verify` with `verify_run` and
`verify_process`. docs/reference/journal.md has the format.
"""

from __future__ import annotations

from bedplate.journal.reader import Reader
from bedplate.journal.record import Content, Record, content_hash
from bedplate.journal.store import Journal
from bedplate.journal.verify import Report, verify

__all__ = ["Content", "Journal", "Reader", "Record", "Report", "content_hash", "verify"]
