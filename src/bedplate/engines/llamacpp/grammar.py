"""Grammars for constrained output, in llguidance's Lark form; `grammars` tries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from bedplate.engines.base import ChatRequest, JsonObject
from bedplate.engines.llamacpp.bounds import check_schemas
from bedplate.engines.llamacpp.template import CALL_CLOSE, CALL_OPEN
from bedplate.errors import InvalidRequest

CALLS_MAX = 16
"""Tool calls in one answer that a grammar admits."""
NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}


def grammar_for(request: ChatRequest) -> str | None:
    """Return the grammar that this request's answer must follow, None for free text.

    A required or named tool gives calls only. A response format gives JSON, or a call where tools
    may be called too.

    Raises:
        InvalidRequest: a schema that cannot be enforced.
    """
    param = grammar_param(request)
    if must_call(request):
        return _joined(_calls(request, "start", param))
    schema = _response_schema(request.response_format)
    if schema is None:
        return None
    check_schemas([schema], "response_format")
    rules = [f"answer: %json {_json(schema)}"]
    if request.tools and request.tool_choice == "auto":
        return _joined(["start: answer | calls", *rules, *_calls(request, "calls", param)])
    return _joined(["start: answer", *rules])


def grammar_param(request: ChatRequest) -> str:
    """Return the field that the grammar is made of, for an error."""
    beside = request.tools and request.tool_choice == "auto"
    return "tools" if must_call(request) or beside else "response_format"


def must_call(request: ChatRequest) -> bool:
    """Tell whether the answer has to be a tool call."""
    return request.tool_choice == "required" or isinstance(request.tool_choice, dict)


def _calls(request: ChatRequest, rule: str, param: str) -> list[str]:
    """Return the rules of one call in Hermes form, or of several where the client asks for that.

    A small model that may call again does so up to its limit. A named function is called once, as
    OpenAI does it.
    """
    tools = _choosable(request)
    functions = [tool["function"] for tool in tools]
    check_schemas((one.get(key) for one in functions for key in ("name", "parameters")), param)
    names = [f"call_{index}" for index in range(len(tools))]
    rules = [f"call: {' | '.join(names)}"]
    tail = f"}}\n{CALL_CLOSE}"
    for name, tool in zip(names, tools, strict=True):
        function = tool["function"]
        head = f'{CALL_OPEN}\n{{"name": {_text(function["name"])}, "arguments": '
        schema = function.get("parameters") or NO_ARGUMENTS
        if not isinstance(schema, dict):
            raise InvalidRequest("the parameters of a function are a JSON schema", param=param)
        rules.append(f"{name}: {_text(head)} %json {_json(schema)} {_text(tail)}")
    several = request.parallel_tool_calls and not isinstance(request.tool_choice, dict)
    more = f' ("\\n" call){{0,{CALLS_MAX - 1}}}' if several else ""
    return [f"{rule}: call{more}", *rules]


def _choosable(request: ChatRequest) -> Sequence[JsonObject]:
    if not isinstance(request.tool_choice, dict):
        return request.tools
    function = request.tool_choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    found = [tool for tool in request.tools if tool.get("function", {}).get("name") == name]
    if not found:
        raise InvalidRequest(
            f"tool_choice names {name!r}, which is not in tools", param="tool_choice"
        )
    return found


def _response_schema(form: JsonObject | None) -> JsonObject | None:
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        outer = form.get("json_schema")
        schema = outer.get("schema") if isinstance(outer, dict) else None
        if isinstance(schema, dict):
            return schema
        raise InvalidRequest("json_schema needs a schema", param="response_format")
    raise InvalidRequest(f"unknown response format {kind!r}", param="response_format")


def _json(schema: JsonObject) -> str:
    """Return a schema for `%json`, without white space in what it produces: tokens cost time."""
    return _text({**schema, "x-guidance": {"whitespace_flexible": False}})


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _joined(rules: Sequence[str]) -> str:
    return "\n".join(("%llguidance {}", *rules))
