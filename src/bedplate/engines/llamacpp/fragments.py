"""Find the ids of a character that is split over tokens.

The server sends nothing while its text ends inside a character, and afterwards only the last id.
But the bytes are known then, and which tokens hold parts of characters is in the vocabulary: almost
always one sequence of the missing length fits. Where several do, none is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

NORMAL, BYTE = 1, 6
"""Token types of a GGUF that stand for text: plain ones, and single bytes."""
LOST_MAX = 3
"""A character has four bytes at most; the last of its tokens is known."""


def byte_letters() -> dict[str, int]:
    """Return the letters by which a byte-level BPE writes the 256 bytes.

    Bytes that are printable in Latin-1 stand for themselves; the others, in order, for the letters
    from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in plain}
    hidden = (byte for byte in range(256) if byte not in set(plain))
    return letters | {chr(0x100 + number): byte for number, byte in enumerate(hidden)}


class Fragments:
    """The tokens of a vocabulary that are no whole characters, by their bytes."""

    def __init__(self, fragments: Iterable[tuple[int, bytes]] = ()) -> None:
        self._bytes = dict(fragments)
        self._ids = {text: token for token, text in self._bytes.items()}

    def lost(self, text: str, count: int, last: int) -> list[int] | None:
        """Return the `count` ids before `last` that together with it are `text`.

        None when the vocabulary has no such tokens, or more than one way.
        """
        data = text.encode()
        end = self._bytes.get(last)
        if end is None or not data.endswith(end) or count > LOST_MAX:
            return None
        ways = list(self._ways(data[: len(data) - len(end)], 0, count))
        return ways[0] if len(ways) == 1 else None

    def _ways(self, data: bytes, start: int, count: int) -> Iterable[list[int]]:
        """Yield each split of `data[start:]` into tokens, all of which leave a character open."""
        if count == 0:
            if start == len(data):
                yield []
            return
        for end in range(start + 1, len(data) + 1):
            token = self._ids.get(data[start:end])
            if token is not None and not _is_whole(data[:end]):
                for rest in self._ways(data, end, count - 1):
                    yield [token, *rest]


def fragments_of(kind: str, tokens: Iterable[str], types: Iterable[int]) -> Fragments:
    """Return the fragments of a vocabulary; `kind` is the GGUF's tokenizer model.

    Cost: one pass over the vocabulary.
    """
    letters = byte_letters()
    found = []
    for token, (text, token_type) in enumerate(zip(tokens, types, strict=True)):
        if token_type == BYTE:
            data = bytes([int(text[3:5], 16)])
        elif token_type == NORMAL and kind == "gpt2" and not text.isascii():
            data = bytes(letters[letter] for letter in text if letter in letters)
        else:
            continue
        if not _is_whole(data):
            found.append((token, data))
    return Fragments(found)


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
