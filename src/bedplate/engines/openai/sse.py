"""Server-sent events, cut out of a byte stream wherever the network cut it."""

from __future__ import annotations

from bedplate.errors import EngineProtocolError

EVENT_BYTES_MAX = 8 << 20
"""Longest event; a server that sends more without an end is broken."""


class EventSplitter:
    """Collect bytes and give back the data of each complete event, in order.

    Works on bytes, so a character or an escape that two reads share is never decoded in halves.
    Line ends may be LF, CRLF or CR. Comments and the fields `event`, `id` and `retry` are dropped.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that `data` completes; often many at once."""
        buffer = self._rest + data if self._rest else data
        if b"\r" in buffer:
            buffer = _unix_line_ends(buffer)
        end = buffer.rfind(b"\n\n")
        if end < 0:
            if len(buffer) > EVENT_BYTES_MAX:
                raise EngineProtocolError(
                    f"the engine sent over {EVENT_BYTES_MAX} bytes in one event"
                )
            self._rest = buffer
            return []
        self._rest = buffer[end + 2 :]
        whole = buffer[:end]
        if whole.startswith(b"data:"):
            found = whole[5:].split(b"\n\ndata:")
            if whole.count(b"\n") == 2 * (len(found) - 1):
                return found  # nothing but one-line events, as nearly always
        blocks = map(_data_lines, whole.split(b"\n\n"))
        return [lines for lines in blocks if lines is not None]

    def tail(self) -> list[bytes]:
        """Return a `[DONE]` that the stream ended on without its blank line.

        Any other rest is an event cut short and is dropped: the answer shows whether it was needed.
        """
        last = _data_lines(self._rest) or b""
        return [last] if last.strip() == b"[DONE]" else []


def _data_lines(block: bytes) -> bytes | None:
    lines = [line[5:] for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _unix_line_ends(buffer: bytes) -> bytes:
    """Turn CRLF and CR into LF; a CR at the very end waits for what follows it."""
    held = b"\r" if buffer.endswith(b"\r") else b""
    whole = buffer.removesuffix(held)
    return whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
