"""Tool calls in a stream (F15): whatever the pieces, the sum is what the model wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedplate.engines.llamacpp.calls import CallParser

ARGUMENTS = '{"city": "Zürich \\"alt\\" \\u00e9\\\\", "deep": {"a": [1, {"b": "}]"}]}, "e": {}}'
ONE = f'<tool_call>\n{{"name": "look", "arguments": {ARGUMENTS}}}\n</tool_call>'
TWO = f'{ONE}\n<tool_call>\n{{"name": "say", "arguments": {{}}}}\n</tool_call>'


def feed(
    pieces: list[str], *, at_limit: bool = False
) -> tuple[str, list[dict[str, Any]], CallParser]:
    """Return text, calls put together from the deltas as a client does, and the parser."""
    parser = CallParser()
    text = ""
    calls: list[dict[str, Any]] = []
    for got in [*(parser.feed(piece) for piece in pieces), parser.finish(at_limit=at_limit)]:
        text += got.text
        for delta in got.deltas:
            if "id" in delta:
                assert delta["index"] == len(calls)
                assert delta["type"] == "function"
                assert delta["function"]["arguments"] == ""
                calls.append({"id": delta["id"], **delta["function"]})
            else:
                assert set(delta) == {"index", "function"}
                assert set(delta["function"]) == {"arguments"}
                assert delta["function"]["arguments"] != ""
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    return text, calls, parser


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1000])
@pytest.mark.parametrize("before", ["", "Let me look.\n\n"])
def test_pieces_of_any_size_give_the_same(size: int, before: str) -> None:
    whole = before + TWO
    text, calls, parser = feed([whole[at : at + size] for at in range(0, len(whole), size)])
    assert text == before.rstrip()
    assert [call["name"] for call in calls] == ["look", "say"]
    assert calls[0]["arguments"] == ARGUMENTS
    assert calls[1]["arguments"] == "{}"
    assert not parser.cut_short
    assert [call["function"]["arguments"] for call in parser.calls] == [ARGUMENTS, "{}"]
    assert len({call["id"] for call in calls}) == 2


@given(st.lists(st.integers(1, 30), min_size=1, max_size=80))
def test_any_split(sizes: list[int]) -> None:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(TWO[at : at + size])
        at += size
    pieces.append(TWO[at:])
    _, calls, _ = feed(pieces)
    assert [call["arguments"] for call in calls] == [ARGUMENTS, "{}"]


@pytest.mark.parametrize("cut", range(len(ONE)))
def test_cut_anywhere_invents_nothing(cut: int) -> None:
    text, calls, parser = feed(list(ONE[:cut]))
    if calls:
        assert ARGUMENTS.startswith(calls[0]["arguments"])
        assert parser.cut_short == (calls[0]["arguments"] != ARGUMENTS)
        assert text == ""
    else:
        assert text == ONE[:cut]
        assert parser.calls == []


@pytest.mark.parametrize("cut", range(len(TWO)))
def test_cut_at_the_limit_leaves_no_markup_in_the_text(cut: int) -> None:
    """F15: the arguments so far, `length`, no `{}` that the model did not write, no tags."""
    text, calls, parser = feed(list(TWO[:cut]), at_limit=True)
    assert text == ""
    assert len(calls) == len(parser.calls)
    for call, written in zip(calls, (ARGUMENTS, "{}"), strict=False):
        assert written.startswith(call["arguments"])
    begun = TWO[:cut].count('"arguments": {')
    assert len(calls) == begun
    assert calls[-1]["arguments"] != "" if begun else calls == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Let me look.<tool_call>", "Let me look."),
        ("Let me look.<tool_", "Let me look."),
        ("no call at all ", "no call at all "),
        ("<tool_call> is the tag of a call", "<tool_call> is the tag of a call"),
        ('<tool_call>{"arguments": {"a": 1}, "name', ""),
    ],
)
def test_only_what_may_be_a_call_is_left_out_at_the_limit(text: str, left: str) -> None:
    for size in (1, 4, 100):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert feed(pieces, at_limit=True)[:2] == (left, [])


def test_an_unusual_call_that_only_lacks_its_tag_counts_at_the_limit() -> None:
    _, calls, _ = feed(['<tool_call>{"arguments": {}, "name": "f"}'], at_limit=True)
    assert [(call["name"], call["arguments"]) for call in calls] == [("f", "{}")]


def test_a_name_that_is_not_json_is_text() -> None:
    text = '<tool_call>{"name": "a\\x", "arguments": {}}</tool_call>'
    assert feed([text])[:2] == (text, [])


def test_arguments_flow_before_the_call_ends() -> None:
    parser = CallParser()
    parser.feed('<tool_call>{"name": "f", "arguments": {"a": "long')
    assert parser.feed(" text").deltas == [{"index": 0, "function": {"arguments": " text"}}]


@pytest.mark.parametrize(
    "text",
    [
        "no call at all",
        "a < b",
        "<tool_cal> is not a tag",
        "ends with <tool_",
        "<tool_call>not json</tool_call> after",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>["name"]</tool_call>',
        "  white space kept  ",
    ],
)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_what_is_no_call_is_text(text: str, size: int) -> None:
    got, calls, _ = feed([text[at : at + size] for at in range(0, len(text), size)])
    assert (got, calls) == (text, [])


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a":1}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
    ],
)
def test_unusual_heads_are_read_whole(inner: str, arguments: str) -> None:
    _, calls, _ = feed(list(f"<tool_call>{inner}</tool_call>"))
    assert [(call["name"], call["arguments"]) for call in calls] == [("f", arguments)]


def test_names_are_decoded() -> None:
    _, calls, _ = feed([f'<tool_call>{{"name": {json.dumps("é")}, "arguments": {{}}}}</tool_call>'])
    assert calls[0]["name"] == "é"


def test_text_between_and_after_calls_is_kept() -> None:
    text, calls, _ = feed([f"{ONE} and {ONE}\nbye"])
    assert text == " and\nbye"
    assert len(calls) == 2
