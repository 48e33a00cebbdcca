"""Ids of split characters: found where one way fits, and only there."""

from __future__ import annotations

import pytest

from bedplate.engines.llamacpp.fragments import Fragments, byte_letters, fragments_of

YOU = "你".encode()
SMILE = "🙂".encode()


def test_one_way_is_taken() -> None:
    parts = Fragments([(1, YOU[:1]), (2, YOU[1:2]), (3, YOU[2:]), (4, b" " + YOU[:1])])
    assert parts.lost("你", 2, 3) == [1, 2]
    assert parts.lost(" 你", 2, 3) == [4, 2]


def test_two_ways_are_none() -> None:
    single = [(n, SMILE[n : n + 1]) for n in range(4)]
    parts = Fragments([*single, (5, SMILE[:2]), (6, SMILE[1:3])])
    assert parts.lost("🙂", 3, 3) == [0, 1, 2]
    assert parts.lost("🙂", 2, 3) is None
    assert Fragments([*single, (5, SMILE[:2])]).lost("🙂", 2, 3) == [5, 2]


@pytest.mark.parametrize(
    ("text", "count", "last"), [("你", 1, 3), ("你", 2, 9), ("好", 2, 3), ("你", 9, 3), ("", 1, 3)]
)
def test_what_does_not_fit_is_none(text: str, count: int, last: int) -> None:
    assert Fragments([(1, YOU[:1]), (2, YOU[1:2]), (3, YOU[2:])]).lost(text, count, last) is None


def test_letters_name_each_byte_once() -> None:
    letters = byte_letters()
    assert sorted(letters.values()) == list(range(256))
    assert letters["A"] == 0x41
    assert letters["Ġ"] == 0x20
    assert letters["Ċ"] == 0x0A


def test_both_kinds_of_vocabulary() -> None:
    names = {byte: letter for letter, byte in byte_letters().items()}
    spelled = ["".join(names[byte] for byte in part) for part in (YOU[:2], YOU[2:], YOU, b" a")]
    parts = fragments_of("gpt2", [*spelled, "<|x|>"], [1, 1, 1, 1, 3])
    assert parts.lost("你", 1, 1) == [0]
    bytewise = fragments_of(
        "llama", ["▁a", "<0xE4>", "<0xBD>", "<0xA0>", "<0x41>"], [1, 6, 6, 6, 6]
    )
    assert bytewise.lost("你", 2, 3) == [1, 2]
