"""Keep control tokens out of content.

A tokenizer that reads a template must turn `<|im_start|>` into one control token, and the same
letters inside a message must stay letters. The server reads a list of texts, each by itself; so
content that holds the text of a special token is cut in two after its first character. Neither half
is a special token, and no flag of the server is needed for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MARKS = tuple(chr(code) for code in range(0xE000, 0xE010))
"""Private-use characters, of which the first that no text contains marks a cut."""


class Specials:
    """The special texts of one vocabulary."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(text for text in texts if len(text) > 1)
        begins = _one_of(self._texts) if self._texts else r"(?!)"
        self._any = re.compile(begins)
        # Matches nothing, in front of the second character: so the mark is put in by C alone.
        self._second = re.compile(f"(?<=(?={begins}).)", re.DOTALL)

    def __contains__(self, text: str) -> bool:
        return text in self._texts

    def cut(self, text: str, mark: str) -> str:
        """Return the text with `mark` inside every special text, overlapping ones too.

        Cost: a scan in C, some 20 ns a character at worst; a second one where there is something to
        cut. Content is a client's, and this runs in the service's one loop.
        """
        return self._second.sub(mark, text) if self._any.search(text) else text


def _one_of(texts: Iterable[str]) -> str:
    """Return a regular expression that matches where one of the texts begins.

    A trie: alternatives that share a beginning would each be tried at every place that has it.
    """
    followers: dict[str, list[str]] = {}
    for text in texts:
        followers.setdefault(text[0], []).append(text[1:])
    options = []
    for first, rests in sorted(followers.items()):
        whole = "" in rests  # nothing longer need be looked for
        options.append(re.escape(first) + ("" if whole else _one_of(rests)))
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def free_mark(texts: Iterable[str]) -> str | None:
    """Return a private-use character that none of the texts contains, None if each is used."""
    used = {mark for text in texts for mark in _MARKS if mark in text}
    return next((mark for mark in _MARKS if mark not in used), None)
