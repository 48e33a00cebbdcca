"""Random words for ids."""

from __future__ import annotations

import pytest

from bedplate.gateway.words import Words


@pytest.mark.parametrize("size", [1, 12, 16, 4096])
def test_words_have_the_length_asked_for(size: int) -> None:
    word = Words().draw(size)
    assert len(word) == 2 * size
    assert int(word, 16) >= 0


def test_no_word_comes_twice_over_many_refills() -> None:
    words = Words()
    drawn = [words.draw(12) for _ in range(5_000)]
    assert len(set(drawn)) == len(drawn)
