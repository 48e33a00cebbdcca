"""Schemas that ask for more than any answer can hold are refused before anything is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core.ids import ModelId
from bedplate.engines.base import ChatRequest
from bedplate.engines.llamacpp.bounds import check_schemas
from bedplate.engines.llamacpp.grammar import grammar_for
from bedplate.errors import InvalidRequest


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "items": {}, "minItems": 10**9}, "minItems"),
        ({"type": "string", "minLength": 100_000}, "minLength"),
        ({"type": "string", "maxLength": 4_097}, "maxLength"),
        ({"type": "string", "maxLength": -1}, "maxLength"),
        ({"properties": {"a": {"minProperties": 5e9}}}, "minProperties"),
        ({"type": "integer", "maximum": 10**16}, "maximum"),
        ({"type": "number", "multipleOf": 1e300}, "multipleOf"),
        ({"type": "string", "pattern": "^a{1,1001}$"}, "pattern"),
        ({"type": "string", "pattern": "^((a{11}b){10}c{3}){10}$"}, "pattern"),
        ({"type": "string", "pattern": "a{99999999999999999999}"}, "pattern"),
        ({"enum": [str(n) for n in range(501)]}, "enum"),
        ({"properties": {"a": {"x-guidance": {"lenient": True}}}}, "x-guidance"),
        (nested(40), "levels"),
        ({"anyOf": [{"type": "object"}] * 5_000}, "values"),
        ({"description": "x" * 300_000}, "characters"),
    ],
)
def test_what_no_answer_can_hold_is_refused_by_name(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as caught:
        check_schemas([schema], "response_format")
    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 4_096, "maxLength": 4_096},
        {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
        {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(\{\w{1,900}\})?$"},
        {"type": "string", "pattern": "^(a{10}|b{10})*{x}$"},
        {"enum": [str(n) for n in range(500)]},
        {"const": {"minItems": 10**9, "enum": list(range(600))}},
        {"properties": {"minItems": {"type": "integer"}, "enum": {"type": "string"}}},
        nested(14),
        {"type": "integer", "minimum": -(10**15), "maximum": 10**15},
    ],
)
def test_what_agents_use_is_admitted(schema: dict[str, Any]) -> None:
    check_schemas([schema], "tools")


def test_tools_count_together() -> None:
    parameters = {"type": "object", "properties": {f"p{n}": {} for n in range(400)}}
    tools = tuple(
        {"type": "function", "function": {"name": f"t{n}", "parameters": parameters}}
        for n in range(21)
    )
    request = ChatRequest(ModelId("m"), ({"role": "user", "content": "x"},), tools)
    assert grammar_for(request) is None
    required = ChatRequest(request.model, request.messages, tools, tool_choice="required")
    with pytest.raises(InvalidRequest, match="values together") as caught:
        grammar_for(required)
    assert caught.value.param == "tools"


def test_names_of_tools_count_as_well() -> None:
    tool = {"type": "function", "function": {"name": "n" * 300_000}}
    request = ChatRequest(
        ModelId("m"), ({"role": "user", "content": "x"},), (tool,), tool_choice="required"
    )
    with pytest.raises(InvalidRequest, match="characters together"):
        grammar_for(request)
