"""The messages of a request: shapes that frameworks send, and what is refused by name."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bedplate.core.ids import ModelId
from bedplate.engines.base import Capabilities
from bedplate.errors import InvalidRequest
from bedplate.gateway.openai.messages import check_messages
from bedplate.gateway.openai.wire import ChatCall, read_chat

PLAIN = Capabilities(kv="full")
ABLE = Capabilities(
    kv="full", tools=True, grammar=True, logprobs=True, images=True, audio=True, choices=True,
    params=frozenset({"top_k"}),
)  # fmt: skip
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def read(can: Capabilities = ABLE, **fields: Any) -> ChatCall:
    return read_chat({"model": "m", "messages": [USER], **fields}, ModelId("m"), can)


def messages(*items: Any, can: Capabilities = ABLE) -> ChatCall:
    return read(can, messages=list(items))


def refused(param: str, fragment: str, can: Capabilities = ABLE, **fields: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(can, **fields)
    assert caught.value.param == param
    assert fragment in caught.value.message
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("param", "fragment", "message"),
    [
        ("messages[0].role", "is missing", {"content": "x"}),
        ("messages[0].role", "one of", {"role": "robot", "content": "x"}),
        ("messages[0].role", "deprecated", {"role": "function", "name": "f", "content": "x"}),
        ("messages[0].content", "is missing", {"role": "user"}),
        ("messages[0].content", "is missing", {"role": "user", "content": None}),
        ("messages[0].content", "no tool_calls", {"role": "assistant"}),
        ("messages[0].content", "string or an array", {"role": "user", "content": 5}),
        ("messages[0].content", "at least 1", {"role": "user", "content": []}),
        ("messages[0].tool_call_id", "is missing", {"role": "tool", "content": "x"}),
        (
            "messages[0].tool_call_id",
            "expected a string",
            {"role": "tool", "content": "x", "tool_call_id": 1},
        ),
        ("messages[0].name", "expected a string", {**USER, "name": 1}),
        ("messages[0].cache_control", "no such field", {**USER, "cache_control": {}}),
        ("messages[0].tool_calls", "no such field", {**USER, "tool_calls": []}),
        ("messages[0].audio", "not supported", {"role": "assistant", "content": "", "audio": {}}),
        (
            "messages[0].tool_calls[0].id",
            "expected a string",
            {"role": "assistant", "tool_calls": [{**CALL, "id": None}]},
        ),
        (
            "messages[0].tool_calls[0].type",
            "only calls of type function",
            {"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]},
        ),
        (
            "messages[0].tool_calls[0].function.arguments",
            "expected a string, got an object",
            {
                "role": "assistant",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}],
            },
        ),
        (
            "messages[0].content[0].text",
            "expected a string",
            {"role": "user", "content": [{"type": "text"}]},
        ),
        (
            "messages[0].content[0].type",
            "text parts only",
            {"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        ),
        (
            "messages[0].content[0].type",
            "not supported",
            {"role": "user", "content": [{"type": "file", "file": {}}]},
        ),
        (
            "messages[0].content[0].prompt_cache_breakpoint",
            "not supported",
            {
                "role": "user",
                "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {}}],
            },
        ),
    ],
)
def test_a_wrong_message_is_refused_by_name(
    param: str, fragment: str, message: dict[str, Any]
) -> None:
    refused(param, fragment, messages=[message])


def test_messages_that_frameworks_send_pass() -> None:
    history = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "bob"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": [CALL],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "assistant", "content": "ok", "reasoning_content": "because"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": ""},
        {"role": "system", "content": "late"},
    ]
    assert list(messages(*history).request.messages) == history


def test_parts_go_only_to_an_engine_that_declares_them() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}}
    audio = {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}
    for part, where in ((image, "image_url"), (audio, "input_audio")):
        message = {"role": "user", "content": [part]}
        assert messages(message).request.messages[0] == message
        refused(f"messages[0].content[0].{where}", "takes no", PLAIN, messages=[message])


def calling(arguments: str, **fields: Any) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "c", "type": "function", "function": function, **fields}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        (calling("[" * 600 + "]" * 600), "messages[0].tool_calls[0].function.arguments"),
        (calling('{"a":' * 101), "messages[0].tool_calls[0].function.arguments"),
        (calling('{"a":"\\ud83d"}'), "messages[0].tool_calls[0].function.arguments"),
        (calling('{"\\uDE00":1}'), "messages[0].tool_calls[0].function.arguments"),
        (calling("{}", index=deep(400)), "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "content": "a", "annotations": [deep(400)]}],
            "messages[0].annotations",
        ),
    ],
)
def test_what_nothing_behind_could_hold_is_refused_by_name(sent: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_messages(sent, PLAIN)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "no JSON",
        '{"a":"' + "[" * 600,
        '{"a":"' + "[" * 600 + '"}',
        "[" + "[]," * 600 + "[]]",
        '{"a":"\\ud83d\\ude00"}',
        '{"a":"\\ud83d',
        "[" * 100 + "]" * 100,
        '{"a":"\\"[' * 20,
        "]" + "[" * 600,
    ],
)
def test_arguments_are_any_other_text(arguments: str) -> None:
    check_messages(calling(arguments), PLAIN)


@pytest.mark.parametrize("end", ["", "\\", '"'])
def test_long_arguments_are_looked_through_in_linear_time(end: str) -> None:
    text = "[" * 101 + "]" * 101 + '"' + '\\"' * 1_000_000 + end
    began = time.process_time()
    with pytest.raises(InvalidRequest):
        check_messages(calling(text), PLAIN)
    assert time.process_time() - began < 5.0
