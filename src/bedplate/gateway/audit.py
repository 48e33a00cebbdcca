"""Notes about calls that were turned away: journaled, and never at the pace of who sends them.

The first call of a kind is noted at once. Those that follow within a second are counted, and one
note tells how many: a flood of bad keys costs one record a second, not one each. Notes hold the
tenant, the code, one peer address and the number; no secret, no prompt text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from bedplate.errors import BedplateError, JournalError

REFUSED = "refused"
CLIENT_ERROR = "client_error"
WINDOW_SECONDS = 1.0
KINDS_MAX = 1024
"""Different (kind, tenant, code) counted in one window; what is beyond shares one entry."""

Note = Callable[[str, str, str, dict[str, Any]], object]

log = logging.getLogger("bedplate.gateway")


class TurnedAway:
    """Counts calls that were turned away and notes them, at most once a window for each kind."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._held: dict[tuple[str, str, str], list[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, kind: str, tenant: str, error: BedplateError, peer: str) -> None:
        """Count one call: REFUSED for credentials and scopes, CLIENT_ERROR for the rest."""
        key = (kind, tenant, error.code)
        held = self._held.get(key)
        if held is None and len(self._held) >= KINDS_MAX:
            key = (kind, "", "others")
            held = self._held.get(key)
        if held is not None:
            held[0] += 1
            held[1] = peer
            return
        self._held[key] = [0, peer]
        self._write(key, 1, peer)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what was counted in this window; a kind that goes on stays held for another."""
        self._timer = None
        before, self._held = self._held, {}
        for key, (count, peer) in before.items():
            if count:
                self._held[key] = [0, peer]
                self._write(key, count, peer)
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_SECONDS, self.flush)

    def close(self) -> None:
        """Write what is left and stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key, (count, peer) in self._held.items():
            if count:
                self._write(key, count, peer)
        self._held = {}

    def _write(self, key: tuple[str, str, str], count: int, peer: str) -> None:
        kind, tenant, code = key
        try:
            self._note(kind, tenant, "", {"code": code, "count": count, "peer": peer})
        except JournalError as error:
            # The answer to the client is an error already; it must not wait for a broken journal.
            log.error("could not note %s code=%s count=%d: %s", kind, code, count, error)
