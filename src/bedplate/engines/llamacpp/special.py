"""Keep control tokens out of content.

A tokenizer that reads a template must turn `<|im_start|>` into one control token, and the same
letters inside a message must stay letters. The server reads a list of texts, each by itself; so
content that holds the text of a special token is cut in two after its first character. Neither half
is a special token, and no flag of the server is needed for it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

_MARKS = tuple(chr(code) for code in range(0xE000, 0xE010))
"""Private-use characters, of which the first that no text contains marks a cut."""


class Specials:
    """The special texts of one vocabulary."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(text for text in texts if len(text) > 1)
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: tuple(sorted(found)) for first, found in lengths.items()}
        firsts = "".join(re.escape(first) for first in sorted(lengths))
        self._start = re.compile(f"[{firsts}]") if firsts else None

    def __contains__(self, text: str) -> bool:
        return text in self._texts

    def cut(self, text: str, mark: str) -> str:
        """Return the text with `mark` inside every special text, overlapping ones too.

        Cost: one scan; a slice and a look-up for each first character that occurs.
        """
        if self._start is None:
            return text
        cuts = [
            match.start() + 1
            for match in self._start.finditer(text)
            if any(
                text[match.start() : match.start() + length] in self._texts
                for length in self._lengths[match.group()]
            )
        ]
        if not cuts:
            return text
        edges = [0, *cuts, len(text)]
        return mark.join(text[a:b] for a, b in itertools.pairwise(edges))


def free_mark(texts: Iterable[str]) -> str | None:
    """Return a private-use character that none of the texts contains, None if each is used."""
    used = {mark for text in texts for mark in _MARKS if mark in text}
    return next((mark for mark in _MARKS if mark not in used), None)
