"""How a client asks again: how often, and after which pauses."""

from __future__ import annotations

from typing import NamedTuple

from bedplate.core.units import MILLISECOND_NS, SECOND_NS


class RetryRule(NamedTuple):
    """`tries`: times that one turn is asked, the first included.

    Before the second try passes `pause_ns`, before each later one twice as long as before, at most
    `pause_max_ns`. Where the service names a longer time, that one.
    """

    tries: int
    pause_ns: int
    pause_max_ns: int


RETRIES = RetryRule(tries=8, pause_ns=500 * MILLISECOND_NS, pause_max_ns=8 * SECOND_NS)
"""A client gives up after 31.5 s (0.5, 1, 2, 4 and three times 8), later where it is told to."""
