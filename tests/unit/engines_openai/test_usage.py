"""What an endpoint counts is believed as far as request and answer can have it, and no further."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bedplate.engines.base import Delta, Finished
from bedplate.engines.openai.answer import Answer
from bedplate.engines.openai.usage import TOKENS_MAX, Bounds, Usage, read_usage
from bedplate.errors import EngineProtocolError

LIE = 60_000_000
ASKED = Bounds(prompt_tokens=3_000, out_tokens=1_000, hidden_tokens=256)


def answered(
    *texts: str, bounds: Bounds = ASKED, choices: int = 1, **usage: Any
) -> tuple[Finished, list[Delta]]:
    """Read an answer whose first choice is made of `texts`; `usage` is the endpoint's."""
    answer = Answer(choices, bounds=bounds)
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts
    ]
    ends = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in range(choices)]
    events.append({"choices": ends, "usage": usage or None})
    deltas = answer.feed([json.dumps(event).encode() for event in events])
    return answer.finished(7, ""), deltas


def test_a_count_that_can_be_is_billed_as_it_is() -> None:
    end, _ = answered("one ", "two", prompt_tokens=40, completion_tokens=4)
    assert (end.prompt_tokens, end.out_tokens, end.exact) == (40, 4, True)
    assert end.unbelieved_tokens == 0


def test_a_prompt_has_no_more_tokens_than_what_was_sent_can_have() -> None:
    details = {"cached_tokens": LIE}
    end, _ = answered("one", prompt_tokens=LIE, completion_tokens=1, prompt_tokens_details=details)
    assert (end.prompt_tokens, end.cached_tokens, end.out_tokens) == (3_000, 3_000, 1)
    assert (end.exact, end.unbelieved_tokens) == (False, LIE - 3_000)


def test_an_answer_has_no_more_tokens_than_were_asked_for() -> None:
    text = "word " * 2_000
    end, _ = answered(text, prompt_tokens=40, completion_tokens=2_000)
    assert (end.out_tokens, end.kv_tokens) == (1_000, 1_040)
    assert (end.exact, end.unbelieved_tokens) == (False, 1_000)


def test_an_answer_has_no_more_tokens_than_bytes_and_chunks_came() -> None:
    end, _ = answered("äb", prompt_tokens=40, completion_tokens=900)
    beside = len(json.dumps([[], {}], separators=(",", ":")))
    assert end.out_tokens == 3 + beside + 2 + 256, "text, no tools and extras, chunks, hidden ones"
    assert not end.exact


def test_a_chunk_of_many_tokens_is_believed() -> None:
    end, _ = answered("word " * 400, prompt_tokens=40, completion_tokens=401)
    assert (end.out_tokens, end.exact) == (401, True)


def test_reasoning_that_is_hidden_and_told_is_believed_within_the_limit() -> None:
    told = {"reasoning_tokens": 800}
    end, _ = answered(
        "yes", prompt_tokens=40, completion_tokens=803, completion_tokens_details=told
    )
    assert (end.out_tokens, end.exact) == (803, True)
    told = {"reasoning_tokens": LIE}
    end, _ = answered(
        "yes", prompt_tokens=40, completion_tokens=LIE, completion_tokens_details=told
    )
    assert (end.out_tokens, end.exact) == (1_000, False)


def test_tool_calls_and_reasoning_that_are_shown_count_by_their_bytes() -> None:
    arguments = json.dumps({"account": "x" * 600})
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": arguments}}
    for delta in ({"tool_calls": [call]}, {"reasoning_content": "hm " * 200}):
        answer = Answer(1, bounds=ASKED)
        choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
        usage = {"prompt_tokens": 40, "completion_tokens": 500}
        answer.feed([json.dumps({"choices": [choice], "usage": usage}).encode()])
        end = answer.finished(7, "")
        assert (end.out_tokens, end.exact) == (500, True)


def test_chunks_are_counted_up_to_the_limit_only() -> None:
    """A cancelled turn is billed by its chunks: those of an endpoint that never ends too."""
    bounds = Bounds(out_tokens=5)
    end, deltas = answered(*"abcdefgh", bounds=bounds)
    assert sum(delta.tokens for delta in deltas) == 5
    assert "".join(delta.content for delta in deltas) == "abcdefgh"
    assert end.out_tokens == 5


def test_the_hidden_part_is_a_part_of_the_count() -> None:
    details = {"reasoning_tokens": 50}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "completion_tokens_details": details}
    assert read_usage(usage) == Usage(9, 0, 3, 3)


@pytest.mark.parametrize("count", [TOKENS_MAX + 1, -1, "7"])
def test_reasoning_that_no_answer_can_have_is_an_error(count: Any) -> None:
    details = {"reasoning_tokens": count}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "completion_tokens_details": details}
    with pytest.raises(EngineProtocolError, match="counts"):
        read_usage(usage)
