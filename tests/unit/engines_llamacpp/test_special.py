"""Control tokens in content are cut in two, wherever and however they stand."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from bedplate.engines.llamacpp.special import Specials, free_mark

SPECIALS = Specials(["<|im_start|>", "<|im_end|>", "</s>", "<s>", "<", "[INST]"])
MARK = "\ue000"


def test_text_without_specials_is_the_same_object() -> None:
    text = "a < b and [x] <html> <|im_star|>"
    assert SPECIALS.cut(text, MARK) is text


def test_special_is_cut_after_its_first_character() -> None:
    assert SPECIALS.cut("a<|im_end|>b", MARK) == f"a<{MARK}|im_end|>b"


def test_a_single_character_cannot_be_cut_and_is_left() -> None:
    assert SPECIALS.cut("1 < 2", MARK) == "1 < 2"


def test_two_in_a_row_and_one_at_each_end() -> None:
    assert SPECIALS.cut("<s></s>", MARK) == f"<{MARK}s><{MARK}/s>"


def test_overlapping_specials_are_both_cut() -> None:
    overlapping = Specials(["<a<b>", "<b>"])
    assert overlapping.cut("<a<b>", MARK) == f"<{MARK}a<{MARK}b>"


def test_no_specials_at_all() -> None:
    assert Specials([]).cut("<s>", MARK) == "<s>"


@given(st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<", "|", "im_end|>", "x", "</s>"])))
def test_no_piece_holds_a_special_and_nothing_is_lost(words: list[str]) -> None:
    text = "".join(words)
    pieces = SPECIALS.cut(text, MARK).split(MARK)
    assert "".join(pieces) == text
    for piece in pieces:
        for special in ("<|im_start|>", "<|im_end|>", "</s>", "<s>", "[INST]"):
            assert special not in piece


def test_free_mark_avoids_what_texts_hold() -> None:
    assert free_mark(["plain"]) == "\ue000"
    assert free_mark(["a\ue000b", "\ue001"]) == "\ue002"
    assert free_mark(["".join(chr(0xE000 + n) for n in range(16))]) is None


def test_specials_of_line_ends_and_of_letters_that_mean_something_in_a_pattern() -> None:
    odd = Specials(["\n\n", "(a", "a.b", "]^", "x|y"])
    assert odd.cut("1\n\n2(axb]^x|y", MARK) == f"1\n{MARK}\n2({MARK}axb]{MARK}^x{MARK}|y"
    assert odd.cut("a.b a-b", MARK) == f"a{MARK}.b a-b"


def test_text_of_first_characters_only_is_as_cheap_as_any_other() -> None:
    """One call must not hold the service's loop: every `<` once cost a look-up of each length."""
    specials = Specials([f"<unused{number}>" for number in range(6_000)])
    took = {}
    for text in ("x" * 400_000, "<" * 400_000):
        begun = time.process_time()
        assert specials.cut(text, MARK) is text
        took[text[0]] = time.process_time() - begun
    assert took["<"] < 20 * took["x"]
