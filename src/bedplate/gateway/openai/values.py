"""How many JSON values a text has, told without decoding it.

A body of a few megabytes can hold millions of empty objects. Decoding and checking them takes
seconds, in which nobody else is served; so they are counted first, which takes milliseconds.
"""

from __future__ import annotations

from bedplate.errors import InvalidRequest
from bedplate.gateway.openai.checks import refuse

VALUES_MAX = 1 << 17
"""Values of one request: room for as many messages as there may be, with tool calls in half of them
and with the results in the others."""
QUOTES_MAX = 4 * VALUES_MAX
"""Quotes around as many values and as many keys."""
FEW = 8
"""Values of a string that need no closer look."""


def values_in(text: bytes, *, enough: int = VALUES_MAX) -> int:
    """Return how many values JSON has; an empty object or array counts as two.

    Brackets and commas in strings, such as code, count only in a result of up to `enough`, where
    a look at the strings is not worth it. Of what is no JSON, the part that a decoder reads before
    it sees the fault has no more values than this tells.

    Cost: O(size), about as much as decoding one long string.
    """
    count = _count(text)
    return count if count <= enough else _count(outside_strings(text))


class Room:
    """Room for JSON inside a request's strings, which is decoded too: `VALUES_MAX` in all."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def take(self, where: str, text: str) -> None:
        """Count a string.

        Raises:
            InvalidRequest: with this one it is too many.
        """
        self._left -= values_in(text.encode(), enough=FEW)
        if self._left < 0:
            refuse(where, f"up to here, arguments have more than {VALUES_MAX} JSON values in all.")


def check_values(body: bytes) -> None:
    """Refuse a body of too many values.

    Raises:
        InvalidRequest: it has more than `VALUES_MAX`.
    """
    if values_in(body) > VALUES_MAX:
        raise InvalidRequest(
            f"The body has more than {VALUES_MAX} JSON values, the limit of this service."
        )


def outside_strings(text: bytes) -> bytes:
    """Return JSON without its strings; all of it where it has more than `QUOTES_MAX` quotes."""
    plain = text
    if b"\\" in text:
        plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > QUOTES_MAX:
        return text
    return b"".join(plain.split(b'"')[::2])


def _count(text: bytes) -> int:
    return 1 + text.count(b"{") + text.count(b"[") + text.count(b",")
