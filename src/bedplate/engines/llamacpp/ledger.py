"""A card's own counters, made comparable with what was metered.

The server counts all that it computes. Turns are metered for what their clients were given, so
four amounts are the server's alone: the prompt of a run that was cut before its first token, the
tokens of a cut run that it made and nobody saw, an opening that was computed in a run of its own,
which the server counts a second time as reused, and the prompt of a run that goes on after another.
They are measured when they arise (the slot
says what it holds) and left out of the card's totals, which then equal the metered tokens exactly.
"""

from __future__ import annotations

from bedplate.engines.llamacpp.counters import Counters


class Ledger:
    """Counters of one card since it came up."""

    def __init__(self, base: Counters) -> None:
        self._base = base
        self._prompt = 0
        self._cached = 0
        self._out = 0

    def unseen_prompt(self, held_tokens: int, cached_tokens: int) -> None:
        """Leave out a run that was cut in its prefill: its slot now holds `held_tokens`.

        A slot that holds no more than was cached was not reached at all.
        """
        if held_tokens > cached_tokens:
            self._prompt += held_tokens
            self._cached += cached_tokens

    def reused_own(self, tokens: int) -> None:
        """Leave out what a turn reused of its own opening: it was booked as an unseen prompt."""
        self._cached += tokens

    def unseen_answer(self, tokens: int) -> None:
        """Leave out tokens that a cut run made after the last one that was read."""
        self._out += max(0, tokens)

    def prompt_again(self, tokens: int, cached_tokens: int) -> None:
        """Leave out the prompt of a run whose turn is metered for that of an earlier run."""
        self._prompt += tokens
        self._cached += cached_tokens

    def totals(self, now: Counters) -> Counters:
        """Return the server's totals since the card came up, less what no turn is metered for."""
        since = now.since(self._base)
        return Counters(
            since.prompt_tokens - self._prompt,
            since.cached_tokens - self._cached,
            since.out_tokens - self._out,
            since.running,
        )
