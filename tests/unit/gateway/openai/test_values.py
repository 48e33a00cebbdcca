"""Bodies of very many values are refused before they are decoded; large ones of agents pass."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from bedplate.core.ids import ModelId
from bedplate.engines.base import Capabilities
from bedplate.errors import InvalidRequest
from bedplate.gateway.openai.messages import MESSAGES_MAX, check_messages
from bedplate.gateway.openai.values import VALUES_MAX, values_in
from bedplate.gateway.openai.wire import BIASES_MAX, decode, read_chat

PASSING = Capabilities(kv="none", tools=True, passes_unknown=True)
USER = {"role": "user", "content": "hi"}
CODE = 'if (a[0] == "{") { b = [1, 2, "\\\\"]; }\n'


def values(item: Any) -> int:
    """Count the values of decoded JSON; an empty object or array counts as two."""
    if isinstance(item, dict | list):
        inner = list(item.values()) if isinstance(item, dict) else item
        return 1 + (sum(map(values, inner)) or 1)
    return 1


@pytest.mark.parametrize(
    "item",
    [
        1,
        "a, [b], {c}",
        {},
        [[], {}, [{}], [[[]]]],
        {"a": [1, 2.5, None, True], 'q"\\': {"\\": "\\\\", '\\"': ['"', '\\",', ""]}},
        {"messages": [USER] * 3, "code": CODE, "again": orjson.dumps({"c": CODE}).decode()},
        ["\u2028,\u00e4[", "\x00{", "\U0001f600,"],
    ],
)
@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_values_are_counted_without_decoding(item: Any, space: str, *, ascii_only: bool) -> None:
    separators = (f",{space}", f":{space}")
    text = json.dumps(item, separators=separators, ensure_ascii=ascii_only).encode()
    assert values_in(text, enough=0) == values(item)


MANY = VALUES_MAX // 2 + 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[%s{}]}' % (b"{}," * MANY),
        b'{"model":"m","tools":[%s[]]}' % (b"[]," * MANY),
        b'{"logit_bias":{%s"1":1}}' % (b'"1":1,' * 2 * MANY),
        b'{"metadata":{%s"a":""}}' % (b'"a":"",' * 2 * MANY),
        b'{"foo":[%s0]}' % (b"0," * 2 * MANY),
        b'{"foo":[%s""]}' % (b'"",' * 8 * MANY),
        b'{"foo":[%s' % (b"{}," * MANY),
    ],
    ids=["messages", "tools", "logit_bias", "metadata", "numbers", "strings", "no JSON"],
)
def test_too_many_values_are_refused_before_they_are_decoded(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(_body: bytes) -> None:
        pytest.fail("it was decoded")

    monkeypatch.setattr("bedplate.gateway.openai.wire.orjson.loads", loads)
    with pytest.raises(InvalidRequest, match=f"more than {VALUES_MAX} JSON values") as caught:
        decode(body)
    assert caught.value.http_status == 400


def test_text_full_of_brackets_and_commas_is_one_value() -> None:
    body = orjson.dumps({"messages": [{"role": "user", "content": CODE * 40_000}]})
    assert body.count(b",") > VALUES_MAX / 2
    assert body.count(b"[") + body.count(b",") + body.count(b"{") > VALUES_MAX
    assert decode(body)["messages"][0]["content"] == CODE * 40_000


def calling(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_as_many_messages_as_there_may_be_pass_with_their_calls_and_tools() -> None:
    """The longest session of an agent: every third message calls a tool, the next is its result."""
    turn = [USER, calling('{"path":"a","lines":[1,2]}'), {
        "role": "tool", "tool_call_id": "c1", "content": CODE
    }]  # fmt: skip
    properties = {f"p{number}": {"type": "string", "enum": ["a", "b"]} for number in range(10)}
    parameters = {"type": "object", "properties": properties}
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}
        for number in range(64)
    ]
    sent = {"model": "m", "messages": (turn * MESSAGES_MAX)[:MESSAGES_MAX], "tools": tools}
    body = decode(orjson.dumps(sent))
    call = read_chat(body, ModelId("m"), PASSING)
    assert len(call.request.messages) == MESSAGES_MAX


def test_arguments_are_decoded_too_and_have_the_same_room() -> None:
    with pytest.raises(InvalidRequest, match=f"more than {VALUES_MAX} JSON values in all"):
        check_messages([calling("[" + "{}," * MANY + "{}]")], PASSING)
    part = "[" + "{}," * (MANY // 4) + "{}]"
    check_messages([calling(part)] * 3, PASSING)
    with pytest.raises(InvalidRequest, match="arguments") as caught:
        check_messages([calling(part)] * 4, PASSING)
    assert caught.value.param == "messages[3].tool_calls[0].function.arguments"


def test_files_in_arguments_are_one_value_each() -> None:
    written = json.dumps({"path": "a.c", "text": CODE * 100})
    check_messages([calling(written)] * 1_000, PASSING)


def test_a_bias_has_a_bounded_number_of_tokens() -> None:
    bias = {str(token): 1 for token in range(BIASES_MAX)}
    body = {"model": "m", "messages": [USER], "logit_bias": bias}
    assert read_chat(body, ModelId("m"), PASSING).request.logit_bias == bias
    bias["999999"] = 1
    with pytest.raises(InvalidRequest, match=f"at most {BIASES_MAX} tokens") as caught:
        read_chat(body, ModelId("m"), PASSING)
    assert caught.value.param == "logit_bias"
