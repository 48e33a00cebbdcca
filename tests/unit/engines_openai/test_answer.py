"""Chunks become deltas and one message, whatever shape the server gives them."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from bedplate.engines.base import Delta
from bedplate.engines.openai.answer import Answer
from bedplate.engines.openai.usage import TOKENS_MAX, Usage
from bedplate.errors import EngineError, EngineLost, EngineProtocolError, InvalidRequest


def chunk(delta: dict[str, Any] | None = None, **fields: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": delta or {}, **fields}
    return json.dumps({"choices": [choice]}).encode()


def feed(*events: bytes, choices: int = 1) -> tuple[Answer, list[Delta]]:
    answer = Answer(choices)
    return answer, answer.feed(events)


def test_text_is_put_together_and_empty_deltas_are_left_out() -> None:
    answer, deltas = feed(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "one "}),
        chunk({"content": None}),
        chunk({"role": "assistant", "content": "two"}),
        chunk({}, finish_reason="stop"),
        b"[DONE]",
    )
    assert deltas == [Delta("one ", tokens=1), Delta("two", tokens=1)]
    assert answer.done
    end = answer.finished(7, "")
    assert (end.finish_reason, end.message) == ("stop", {"role": "assistant", "content": "one two"})
    assert (end.prompt_tokens, end.out_tokens, end.kv_tokens, end.exact) == (7, 2, 9, False)


def test_what_follows_done_is_not_read() -> None:
    answer, deltas = feed(b"[DONE]", b"{broken")
    assert answer.done
    assert deltas == []


def test_a_choice_that_did_not_end_keeps_the_answer_open() -> None:
    answer, _ = feed(chunk({"content": "a"}, finish_reason="stop"), choices=2)
    assert not answer.complete
    answer.feed([b'{"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}'])
    assert answer.complete
    assert answer.finished(1, "").others == ("length",)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 3}, Usage(9, 0, 3)),
        ({"prompt_tokens": 9, "completion_tokens": None}, Usage(9, 0, 0)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
            Usage(9, 8, 3),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": None},
            Usage(9, 0, 3),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": None},
            },
            Usage(9, 0, 3),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 99},
            },
            Usage(9, 9, 3),
        ),
    ],
)
def test_usage_is_read_in_the_forms_that_servers_send(usage: Any, counted: Usage) -> None:
    answer, _ = feed(json.dumps({"choices": [], "usage": usage}).encode())
    assert answer.usage == counted


def test_usage_beside_choices_counts_and_null_does_not_undo_it() -> None:
    one = json.dumps(
        {
            "choices": [{"index": 0, "delta": {"content": "a"}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        }
    ).encode()
    answer, _ = feed(one, b'{"choices": [], "usage": null}')
    assert answer.usage == Usage(1, 0, 1)


def test_unknown_fields_of_a_delta_are_passed_on_and_put_together() -> None:
    answer, deltas = feed(
        chunk({"reasoning_content": "let me "}),
        chunk({"reasoning_content": "see", "refusal": None}),
        chunk({"content": "yes", "audio": {"data": "QQ", "id": "a"}}),
        chunk({"audio": {"data": "=="}, "annotations": []}),
        chunk(finish_reason="stop"),
    )
    assert [delta.extra for delta in deltas] == [
        {"reasoning_content": "let me "},
        {"reasoning_content": "see"},
        {"audio": {"data": "QQ", "id": "a"}},
        {"audio": {"data": "=="}},
    ]
    assert answer.finished(1, "").message == {
        "role": "assistant",
        "content": "yes",
        "reasoning_content": "let me see",
        "audio": {"data": "QQ==", "id": "a"},
    }


def test_a_character_cut_in_two_escapes_is_one_character() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"x": "PIECE'}}
    rest = {"index": 0, "function": {"arguments": 'PIECE"}'}}
    answer, deltas = feed(
        b'{"choices": [{"index": 0, "delta": {"content": "hi \\ud83d"}}]}',
        b'{"choices": [{"index": 0, "delta": {"content": "\\ude00 you"}}]}',
        chunk({"tool_calls": [call]}).replace(b"PIECE", b"\\ud83d"),
        chunk({"tool_calls": [rest]}).replace(b"PIECE", b"\\ude00"),
        chunk(finish_reason="tool_calls"),
    )
    assert [delta.content for delta in deltas[:2]] == ["hi ", "\U0001f600 you"]
    message = answer.finished(1, "").message
    assert message["content"] == "hi \U0001f600 you"
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x": "\U0001f600"}'


def test_half_a_character_at_the_end_becomes_a_replacement() -> None:
    answer, deltas = feed(
        b'{"choices": [{"index": 0, "delta": {"content": "a\\ud83d"}}]}',
        chunk(finish_reason="length"),
    )
    assert "".join(delta.content for delta in deltas) == "a\ufffd"
    assert answer.finished(1, "").message["content"] == "a\ufffd"


def test_a_character_in_two_halves_beside_the_text_is_put_together() -> None:
    answer, deltas = feed(
        chunk({"reasoning_content": "so PIECE"}).replace(b"PIECE", b"\\ud83d"),
        chunk({"reasoning_content": "PIECE then"}).replace(b"PIECE", b"\\ude00"),
        chunk({"reasoning_content": ", PIECE"}).replace(b"PIECE", b"\\ud83d"),
        chunk(finish_reason="stop"),
    )
    said = "".join(delta.extra["reasoning_content"] for delta in deltas if delta.extra)
    assert said == "so \U0001f600 then, \ufffd"
    assert answer.finished(1, "").message["reasoning_content"] == said


def test_half_a_character_that_nothing_can_join_becomes_a_replacement() -> None:
    """A name comes in one piece, and what is no text is not put together."""
    call = {"index": 0, "id": "c", "function": {"name": "f PIECE", "arguments": "{}"}}
    token = {"token": "PIECE", "top_logprobs": [{"token": "PIECE"}]}
    events = (
        chunk({"tool_calls": [call]}),
        chunk({"content": "a"}, logprobs={"content": [token]}),
        chunk({"details": [{"text": "PIECE"}]}),
        chunk(finish_reason="tool_calls"),
    )
    answer, deltas = feed(*(event.replace(b"PIECE", b"\\ud83d") for event in events))
    assert answer.finished(1, "").message["tool_calls"][0]["function"]["name"] == "f \ufffd"
    assert deltas[1].logprobs == {
        "content": [{"token": "\ufffd", "top_logprobs": [{"token": "\ufffd"}]}]
    }
    assert deltas[2].extra == {"details": [{"text": "\ufffd"}]}
    for delta in deltas:
        orjson.dumps((delta.content, delta.tool_calls, delta.logprobs, delta.extra))


def test_json_nested_too_deep_for_its_halves_is_an_error() -> None:
    for depth in (200, 50_000):
        nested = b"[" * depth + b'"\\ud83d"' + b"]" * depth
        with pytest.raises(EngineProtocolError):
            feed(chunk({"details": "PIECE"}).replace(b'"PIECE"', nested))


@pytest.mark.parametrize("number", [b"1" * 30, b"NaN", b"-Infinity", b"9" * 5_000])
def test_a_number_that_cannot_be_sent_on_is_an_error_beside_a_half_too(number: bytes) -> None:
    """The parser that takes halves of characters takes these as well; nothing could encode them."""
    event = b'{"choices": [{"index": 0, "delta": {"content": "\\ud83d", "rank": RANK}}]}'
    with pytest.raises(EngineProtocolError):
        feed(event.replace(b"RANK", number))


def test_an_error_told_in_half_a_character_can_be_told_on() -> None:
    with pytest.raises(EngineError) as caught:
        feed(b'{"error": {"message": "broken \\ud800"}}')
    assert str(caught.value).encode().endswith("broken \ufffd".encode())
    with pytest.raises(InvalidRequest) as told:
        feed(b'{"error": {"message": "\\ud800", "param": "a\\udc00", "code": 400}}')
    orjson.dumps((str(told.value), told.value.param))


@pytest.mark.parametrize("reason", [["stop"], {"stop": 1}, 7, True])
def test_a_reason_that_is_no_text_is_an_error(reason: Any) -> None:
    with pytest.raises(EngineProtocolError, match="unknown reason"):
        feed(chunk({"content": "a"}, finish_reason=reason))


@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens", "cached_tokens"])
@pytest.mark.parametrize("count", [2**63, 10**9, TOKENS_MAX + 1, -1, 1.5, "7", True])
def test_a_count_that_no_answer_can_have_is_an_error(field: str, count: Any) -> None:
    usage: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 3}
    if field == "cached_tokens":
        usage["prompt_tokens_details"] = {field: count}
    else:
        usage[field] = count
    with pytest.raises(EngineProtocolError, match="counts"):
        feed(json.dumps({"choices": [], "usage": usage}).encode())


def test_cached_tokens_are_part_of_the_prompt() -> None:
    details = {"cached_tokens": 10}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": details}
    answer, _ = feed(json.dumps({"choices": [], "usage": usage}).encode())
    assert answer.usage == Usage(9, 9, 3)


def test_logprobs_count_the_tokens_of_a_chunk() -> None:
    entries = [{"token": "a"}, {"token": "b"}, {"token": "c"}]
    answer, (delta,) = feed(chunk({"content": "abc"}, logprobs={"content": entries}))
    assert delta.tokens == answer.tokens == 3
    assert delta.logprobs == {"content": entries}


def test_text_of_earlier_attempts_begins_the_message() -> None:
    answer, _ = feed(chunk({"content": "two"}, finish_reason="stop"))
    assert answer.finished(1, "one ").message["content"] == "one two"


def test_an_answer_of_calls_alone_has_no_content() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    answer, _ = feed(chunk({"tool_calls": [call]}), chunk(finish_reason="tool_calls"))
    message = answer.finished(1, "").message
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


@pytest.mark.parametrize(
    ("sent", "means"),
    [("eos", "stop"), ("function_call", "tool_calls"), ("max_tokens", "length")],
)
def test_finish_reasons_of_other_servers_are_translated(sent: str, means: str) -> None:
    answer, _ = feed(chunk(finish_reason=sent))
    assert answer.finished(1, "").finish_reason == means


@pytest.mark.parametrize(
    ("event", "kind", "words"),
    [
        (chunk(finish_reason="abort"), EngineLost, "gave the answer up"),
        (chunk(finish_reason="moonlight"), EngineProtocolError, "moonlight"),
        (chunk(finish_reason=5), EngineProtocolError, "5"),
        (b"null", EngineProtocolError, "no object"),
        (b'{"id": 1}', EngineProtocolError, "without choices"),
        (b'{"choices": [{"index": "0"}]}', EngineProtocolError, "choice"),
        (b'{"choices": [{"index": -1}]}', EngineProtocolError, "choice"),
        (b'{"choices": ["text"]}', EngineProtocolError, "choice"),
        (b'{"choices": [], "usage": 5}', EngineProtocolError, "usage"),
        (b'\xff{"choices": []}', EngineProtocolError, "JSON"),
        (b'{"object": "error", "message": "boom"}', EngineError, "boom"),
        (b'{"error": "boom"}', EngineError, "boom"),
        (b'{"error": {"message": "bad", "code": 422}}', InvalidRequest, "bad"),
    ],
)
def test_what_is_no_answer_is_an_error(event: bytes, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as error:
        feed(event)
    assert type(error.value) is kind


@pytest.mark.parametrize("logprobs", ["a", [{"token": "a"}], {"content": 5}, {"refusal": "a"}])
def test_logprobs_that_are_none_are_a_fault_of_the_engine(logprobs: Any) -> None:
    with pytest.raises(EngineProtocolError, match="logprobs that are none"):
        feed(chunk({"content": "a"}, logprobs=logprobs))


@pytest.mark.parametrize("depth", [110, 240, 900])
def test_json_that_is_too_deep_to_be_sent_on_is_a_fault_of_the_engine(depth: int) -> None:
    deep = json.loads("[" * depth + "]" * depth)
    with pytest.raises(EngineProtocolError, match="nested deeper than 100"):
        feed(chunk({"reasoning": deep}))
    with pytest.raises(EngineProtocolError, match="nested deeper than 100"):
        feed(chunk({"content": "a"}, logprobs={"content": deep}))


def test_an_error_in_the_stream_does_not_repeat_the_key_of_the_endpoint() -> None:
    answer = Answer(1, "sk-endpoint")
    said = {"error": {"message": "no such key: Bearer sk-endpoint", "code": 500}}
    with pytest.raises(EngineError) as caught:
        answer.feed([orjson.dumps(said)])
    assert "no such key: Bearer [key]" in caught.value.message
