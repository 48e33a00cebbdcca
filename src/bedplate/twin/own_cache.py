"""The KV cache of an engine that keeps its own (`kv` = hints): what ran last stays longest."""

from __future__ import annotations

from bedplate.core.ids import SessionId


class OwnCache:
    """Leading tokens of sessions that a card could reuse, beside those that run.

    Running turns take the room that they reserve; what is left holds the sessions that ran last.
    """

    __slots__ = ("_kept", "_kept_tokens", "_room_tokens", "_running_tokens")

    def __init__(self, room_tokens: int) -> None:
        self._room_tokens = room_tokens
        self._kept: dict[SessionId, int] = {}
        self._kept_tokens = 0
        self._running_tokens = 0

    def begin(self, session: SessionId, tokens: int) -> int:
        """Let a turn that may grow to `tokens` run; return how many are there of its session."""
        found = self._kept.pop(session, 0)
        self._kept_tokens -= found
        self._running_tokens += tokens
        self._evict()
        return found

    def end(self, session: SessionId, tokens: int, *, kept: int) -> None:
        """A turn that had reserved `tokens` is over and leaves `kept` behind."""
        self._running_tokens -= tokens
        assert self._running_tokens >= 0
        if kept:
            self._kept_tokens += kept - self._kept.pop(session, 0)
            self._kept[session] = kept
            self._evict()

    def abandon(self) -> None:
        """No turn runs any more; what is kept stays."""
        self._running_tokens = 0

    def _evict(self) -> None:
        kept = self._kept
        while kept and self._kept_tokens + self._running_tokens > self._room_tokens:
            self._kept_tokens -= kept.pop(next(iter(kept)))
