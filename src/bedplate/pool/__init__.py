"""The KV pool: shared memory behind the cards, as files in one folder.

An entry is one stored KV copy of one branch of a session. It is two files with one random stem:
`<stem>.kv`, which an engine writes and reads itself, and `<stem>.meta`, which the pool writes. The
meta file appears by one rename after everything else is in place, so an entry exists if and only
if its meta file does, whenever the process is killed:

    begin    <stem>.kv (empty, 0600)                         killed here: leftover, dropped on open
      engine writes <stem>.kv                                killed here: leftover
    commit   checksum, <stem>.tmp, rename to <stem>.meta     after the rename: an entry
    drop     unlink <stem>.meta, then <stem>.kv              between: leftover

Reading order: `types` (the words), `meta` (the format), `folder` (where, whose, locked),
`files` (reading, writing), `store`.
"""

from bedplate.pool.store import KvPool
from bedplate.pool.types import EntryInfo, Fingerprint, Opened, Owner, Pending

__all__ = ["EntryInfo", "Fingerprint", "KvPool", "Opened", "Owner", "Pending"]
