"""Streamed answers as an agent puts them together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bedplate.demo.answer import Answer, BrokenAnswer


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n"


DONE = b"data: [DONE]\n"


def test_text_is_joined_and_the_first_part_is_told() -> None:
    answer = Answer()
    lines = [
        b": waiting\n",
        b"\n",
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Guten "}),
        chunk({"content": "Tag"}),
        chunk({}, "stop", usage=None),
        b'data: {"choices": [], "usage": {"prompt_tokens": 7}}\n',
        DONE,
    ]
    assert [answer.feed(line) for line in lines] == [False] * 3 + [True] * 2 + [False] * 3
    assert answer.message() == {"role": "assistant", "content": "Guten Tag"}
    assert answer.usage == {"prompt_tokens": 7}


def test_parallel_tool_calls_are_joined_by_index() -> None:
    answer = Answer()
    for delta in (
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}},
        {"index": 0, "function": {"arguments": '{"x":'}},
        {"index": 1, "function": {"arguments": "}"}},
        {"index": 0, "function": {"arguments": " 1}"}},
    ):
        assert answer.feed(chunk({"tool_calls": [delta]}))
    answer.feed(chunk({}, "tool_calls"))
    answer.feed(DONE)
    message = answer.message()
    assert message["content"] is None
    assert [
        (c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]
    ] == [("a", "f", '{"x": 1}'), ("b", "g", "{}")]


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"error": {"message": "engine lost"}}\n',
        b"data: {broken\n",
        b"data: 7\n",
    ],
)
def test_errors_inside_the_stream_are_raised(line: bytes) -> None:
    answer = Answer()
    answer.feed(chunk({"content": "half"}))
    with pytest.raises(BrokenAnswer):
        answer.feed(line)


@pytest.mark.parametrize("lines", [[chunk({}, "stop")], [DONE], []])
def test_a_cut_stream_is_no_answer(lines: list[bytes]) -> None:
    answer = Answer()
    answer.feed(chunk({"content": "half"}))
    for line in lines:
        answer.feed(line)
    with pytest.raises(BrokenAnswer, match="ended"):
        answer.message()
