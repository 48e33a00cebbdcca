"""A bound on the log, for every kind of line at once: no client can fill the disk by causing one.

A kind is the place in the code that logs: few, whatever a caller sends. The first `LINES_MAX` lines
of a kind in a window pass. The others are counted, and the window's end tells how many there were,
with the last of them. A kind that goes on at that pace gets no lines in the next window either, but
that one: a flood costs one line a window from then on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

LINES_MAX = 100
"""Lines of one kind in one window. A fleet that starts says more than a few at once."""
WINDOW_SECONDS = 10.0
SHOWN_CHARS_MAX = 300
"""Of the last line that was held back."""

Kind = tuple[str, str, int]
"""Logger, file and line number of what logs."""


@dataclass(slots=True)
class _Count:
    passed: int = 0
    more: int = 0
    last: logging.LogRecord | None = None


@dataclass(frozen=True, slots=True)
class _More:
    """The text of a window's end, made when it is written: then a bad format is told as usual."""

    count: int
    seconds: float
    last: logging.LogRecord

    def __str__(self) -> str:
        line = self.last.getMessage().partition("\n")[0][:SHOWN_CHARS_MAX]
        return f"{self.count} more in the last {self.seconds:.0f} s, the last of them: {line}"


class BoundedHandler(logging.Handler):
    """Hands records on to another handler, of each kind a bounded number a window."""

    def __init__(
        self, target: logging.Handler, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Stand before `target`, which is closed with this one. `clock`: seconds, never back."""
        super().__init__()
        self._target = target
        self._clock = clock
        self._began = clock()
        self._counts: dict[Kind, _Count] = {}
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record on, or count it. `handle` holds this handler's lock."""
        now = self._clock()
        if now - self._began >= WINDOW_SECONDS:
            self._end_window(now)
        count = self._counts.setdefault((record.name, record.pathname, record.lineno), _Count())
        if count.passed < LINES_MAX:
            count.passed += 1
            self._target.handle(record)
            return
        count.more += 1
        count.last = record
        if self._timer is None:  # the flood may be the last that is logged for hours
            left = self._began + WINDOW_SECONDS - now
            self._timer = threading.Timer(left, self._time_is_up, (self._began,))
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Flush the target; what is counted waits for its window's end."""
        self._target.flush()

    def close(self) -> None:
        """Tell what is counted so far, and close the target."""
        self.acquire()
        try:
            self._end_window(self._clock())
            self._target.close()
        finally:
            self.release()
        super().close()

    def _time_is_up(self, began: float) -> None:
        self.acquire()
        try:
            if began == self._began:  # else a record has ended that window first
                self._end_window(self._clock())
        finally:
            self.release()

    def _end_window(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        before, self._counts = self._counts, {}
        for kind, count in before.items():
            if count.last is None:
                continue
            if count.more >= LINES_MAX:
                self._counts[kind] = _Count(passed=LINES_MAX)
            more = _More(count.more, now - self._began, count.last)
            name, path, line = kind
            self._target.handle(
                logging.LogRecord(name, count.last.levelno, path, line, more, None, None)
            )
        self._began = now
