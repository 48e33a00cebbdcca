"""The chat completion's body: what is understood, what is refused, and under which name."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson
import pytest

from bedplate.core.ids import ModelId
from bedplate.engines.base import Capabilities
from bedplate.errors import InvalidRequest
from bedplate.gateway.errors_http import WrongContentType
from bedplate.gateway.openai.checks import NESTING_MAX
from bedplate.gateway.openai.params import HARMLESS, NULLABLE, RESERVED, UNDERSTOOD
from bedplate.gateway.openai.wire import ChatCall, check_content_type, decode, model_of, read_chat
from tests.fakes.openai_schema import chat_parameters

PLAIN = Capabilities(kv="full")
ABLE = Capabilities(
    kv="full", tools=True, grammar=True, logprobs=True, images=True, audio=True, choices=True,
    params=frozenset({"top_k"}),
)  # fmt: skip
PASSING = dataclasses.replace(ABLE, passes_unknown=True)
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
DEEP: Any = 0
for _ in range(NESTING_MAX + 1):
    DEEP = [DEEP]


def read(can: Capabilities = ABLE, **fields: Any) -> ChatCall:
    return read_chat({"model": "m", "messages": [USER], **fields}, ModelId("m"), can)


def refused(param: str, fragment: str, can: Capabilities = ABLE, **fields: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(can, **fields)
    assert caught.value.param == param
    assert fragment in caught.value.message
    assert param in caught.value.message


def test_a_full_request_is_read_whole() -> None:
    call = read(
        messages=[{"role": "system", "content": "s"}, USER],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "f"}},
        parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        max_completion_tokens=5,
        temperature=0.5,
        top_p=1,
        seed=-7,
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=3,
        n=2,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={"12": -100},
        stream=True,
        stream_options={"include_usage": True},
        prompt_cache_key="k",
        session_id="s1",
        top_k=4,
    )
    request = call.request
    assert (call.stream, call.include_usage, call.session) == (True, True, "s1")
    assert len(request.messages) == 2
    assert request.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert (request.parallel_tool_calls, request.limit_tokens, request.n) == (False, 5, 2)
    assert (request.temperature, request.top_p, request.seed) == (0.5, 1.0, -7)
    assert (request.stop, request.logprobs, request.top_logprobs) == (("a", "b"), True, 3)
    assert (request.presence_penalty, request.frequency_penalty) == (-2.0, 2.0)
    assert request.logit_bias == {"12": -100}
    assert request.extra == {"top_k": 4}


def test_what_is_left_out_or_null_has_the_defaults() -> None:
    nulls: dict[str, Any] = dict.fromkeys(NULLABLE)
    for call in (read(), read(**nulls)):
        assert not call.stream
        assert not call.include_usage
        assert call.session is None
        assert call.request == dataclasses.replace(call.request, tools=(), limit_tokens=0, n=1)
        assert call.request.temperature is None
        assert call.request.response_format is None
        assert call.request.extra == {}


def test_an_integral_number_is_an_integer() -> None:
    assert read(max_tokens=16.0).request.limit_tokens == 16


def test_both_names_of_the_limit_may_come_together_if_equal() -> None:
    assert read(max_tokens=4, max_completion_tokens=4).request.limit_tokens == 4
    refused("max_tokens", "differs", max_tokens=4, max_completion_tokens=5)


@pytest.mark.parametrize(
    ("param", "fragment", "fields"),
    [
        ("messages", "at least 1", {"messages": []}),
        ("messages", "expected an array, got an object", {"messages": {}}),
        ("messages[0]", "expected an object, got a string", {"messages": ["hi"]}),
        ("temperature", "from 0 to 2", {"temperature": 2.1}),
        ("temperature", "expected a number, got a string", {"temperature": "1"}),
        ("temperature", "expected a number, got a boolean", {"temperature": True}),
        ("top_p", "from 0 to 1", {"top_p": -0.1}),
        ("seed", "from", {"seed": 10**30}),
        ("seed", "expected an integer, got a number", {"seed": 0.5}),
        ("max_tokens", "from 1", {"max_tokens": 0}),
        ("max_completion_tokens", "expected an integer", {"max_completion_tokens": "5"}),
        ("n", "from 1 to 128", {"n": 0}),
        ("stop", "at most 4", {"stop": ["a", "b", "c", "d", "e"]}),
        ("stop", "at least 1", {"stop": []}),
        ("stop[1]", "must not be empty", {"stop": ["a", ""]}),
        ("stop", "expected an array, got an integer", {"stop": 3}),
        ("top_logprobs", "needs logprobs", {"top_logprobs": 2}),
        ("top_logprobs", "from 0 to 20", {"logprobs": True, "top_logprobs": 21}),
        ("logit_bias.x", "token id", {"logit_bias": {"x": 1}}),
        ("logit_bias.5", "from -100 to 100", {"logit_bias": {"5": 101}}),
        ("stream", "expected a boolean, got a string", {"stream": "true"}),
        ("stream_options", "stream true", {"stream_options": {"include_usage": True}}),
        (
            "stream_options.include_usage",
            "expected a boolean",
            {"stream": True, "stream_options": {"include_usage": 1}},
        ),
        (
            "stream_options.include_obfuscation",
            "not supported",
            {"stream": True, "stream_options": {"include_obfuscation": True}},
        ),
        ("stream_options.other", "not supported", {"stream": True, "stream_options": {"other": 1}}),
        ("tools", "expected an array, got null", {"tools": None}),
        ("tools[0].type", "only tools of type function", {"tools": [{"type": "custom"}]}),
        ("tools[0].function", "expected an object", {"tools": [{"type": "function"}]}),
        (
            "tools[0].function.name",
            "1 to 128",
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        ),
        ("tools[1].function.name", "two tools", {"tools": [TOOL, TOOL]}),
        (
            "tools[0].function.extra",
            "not supported",
            {"tools": [{"type": "function", "function": {"name": "f", "extra": 1}}]},
        ),
        (
            "tools[0].function",
            "nested deeper",
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": DEEP}}}]},
        ),
        ("tool_choice", "one of none, auto, required", {"tool_choice": "any"}),
        ("tool_choice", "needs tools", {"tool_choice": "required"}),
        (
            "tool_choice.function.name",
            "none of the given tools",
            {
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
        ),
        (
            "tool_choice.type",
            "only function",
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        ),
        ("parallel_tool_calls", "expected a boolean", {"parallel_tool_calls": 1}),
        ("response_format.type", "one of", {"response_format": {"type": "xml"}}),
        ("response_format", "expected an object", {"response_format": "json_object"}),
        (
            "response_format.json_schema",
            "expected an object, got null",
            {"response_format": {"type": "json_schema"}},
        ),
        (
            "response_format.json_schema.name",
            "expected a string",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        ),
        ("functions", "Use tools", {"functions": []}),
        ("function_call", "Use tool_choice", {"function_call": "auto"}),
        ("store", "not kept", {"store": True}),
        ("service_tier", "X-Bedplate-Lane", {"service_tier": "priority"}),
        ("verbosity", "medium", {"verbosity": "high"}),
        ("modalities", "text only", {"modalities": ["text", "audio"]}),
        ("metadata.k", "expected a string", {"metadata": {"k": 1}}),
        ("prompt_cache_retention", "in_memory", {"prompt_cache_retention": "24h"}),
        ("prompt_cache_options.mode", "implicit", {"prompt_cache_options": {"mode": "explicit"}}),
        ("safety_identifier", "at most 64", {"safety_identifier": "x" * 65}),
        ("session_id", "1 to 128", {"session_id": ""}),
        ("reasoning_effort", "no such parameter", {"reasoning_effort": "low"}),
        ("web_search_options", "no such parameter", {"web_search_options": {}}),
        ("prediction", "no such parameter", {"prediction": {"type": "content", "content": "x"}}),
        ("frobnicate", "no such parameter", {"frobnicate": None}),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    param: str, fragment: str, fields: dict[str, Any]
) -> None:
    refused(param, fragment, **fields)


@pytest.mark.parametrize(
    ("param", "nearest", "fields"),
    [
        ("max_token", "max_tokens", {"max_token": 5}),
        ("temprature", "temperature", {"temprature": 0}),
        ("topk", "top_k", {"topk": 4}),
        ("users", "user", {"users": "x"}),
        (
            "stream_options.include_usages",
            "include_usage",
            {"stream": True, "stream_options": {"include_usages": True}},
        ),
        (
            "tools[0].function.parameter",
            "parameters",
            {"tools": [{"type": "function", "function": {"name": "f", "parameter": {}}}]},
        ),
        ("messages[0].contents", "content", {"messages": [{"role": "user", "contents": "x"}]}),
    ],
)
def test_a_name_that_is_not_known_is_answered_with_the_nearest(
    param: str, nearest: str, fields: dict[str, Any]
) -> None:
    refused(param, f" The nearest known name is {nearest}.", **fields)


def test_the_nearest_name_is_one_that_this_engine_takes() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(PLAIN, topk=4)
    assert "top_k" not in caught.value.message


def test_nothing_is_suggested_where_no_name_is_near() -> None:
    refused("reasoning_effort", "no such parameter. Leave it out.", reasoning_effort="low")


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": [TOOL]}),
        ("response_format.type", {"response_format": {"type": "json_object"}}),
        ("logprobs", {"logprobs": True}),
        ("n", {"n": 2}),
        ("top_k", {"top_k": 1}),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    read(ABLE, **fields)
    refused(param, "engine of", PLAIN, **fields)


def test_an_engine_that_judges_itself_gets_unknown_parameters() -> None:
    call = read(PASSING, frobnicate={"a": 1}, reasoning_effort="low", user="u")
    assert call.request.extra == {"frobnicate": {"a": 1}, "reasoning_effort": "low"}
    refused("frobnicate", "nested deeper", PASSING, frobnicate=DEEP)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_clients_cannot_speak_for_the_service(name: str) -> None:
    """F14: lane, tenant and slot never come from the body, whatever the engine would take."""
    refused(name, "not for clients", PASSING, **{name: 1})


def test_every_parameter_of_openai_is_decided() -> None:
    """None is dropped: each is understood, harmless by table, or refused by its own name."""
    for name in chat_parameters():
        if name in UNDERSTOOD or name in HARMLESS:
            continue
        refused(name, "", ABLE, **{name: {}})


def test_harmless_parameters_pass_and_reach_no_engine() -> None:
    call = read(
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        safety_identifier="s",
        verbosity="medium",
        modalities=["text"],
        prompt_cache_retention="in_memory",
        prompt_cache_options={"mode": "implicit"},
    )
    assert call.request.extra == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"\xff\xfe{}",
        b'{"a": "\xc3\x28"}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b"[]",
        b'"text"',
    ],
)
def test_bytes_that_are_no_json_object_are_refused_without_echo(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(body)
    assert "JSON" in caught.value.message


def test_a_secret_in_broken_json_is_not_echoed() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(b'{"messages": "the secret", oops}')
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("name", [None, 5, "", "x" * 300])
def test_a_wrong_model_is_refused(name: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model_of({"model": name})
    assert caught.value.param == "model"


def test_a_client_made_name_is_cut_and_printable() -> None:
    evil: dict[str, Any] = {"evil\n" + "x" * 500: 1}
    with pytest.raises(InvalidRequest) as caught:
        read(**evil)
    assert caught.value.param is not None
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "value",
    ["application/json", "application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'],
)
def test_json_is_taken(value: str) -> None:
    check_content_type(value)


@pytest.mark.parametrize("value", [None, "", "text/plain", "application/json; charset=latin-1"])
def test_other_types_are_refused(value: str | None) -> None:
    with pytest.raises(WrongContentType):
        check_content_type(value)


def test_what_passes_can_be_encoded_again() -> None:
    """Nesting that passes is nesting that the journal and the engines can hold."""
    schema: Any = {}
    for _ in range(NESTING_MAX - 3):
        schema = {"a": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    orjson.dumps(read(tools=[tool]).request.tools)
