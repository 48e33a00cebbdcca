"""Checks of `tools`, `tool_choice` and `response_format`."""

from __future__ import annotations

import re
from typing import Any

from bedplate.engines.base import Capabilities, JsonObject
from bedplate.gateway.openai.checks import (
    array,
    boolean,
    free_form,
    mapping,
    one_of,
    only_keys,
    refuse,
    string,
)

TOOLS_MAX = 1024
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
"""OpenAI's form, and the dots and colons that tool servers use."""
_TOOL_KEYS = frozenset(("type", "function"))
_FUNCTION_KEYS = frozenset(("name", "description", "parameters", "strict"))
_FORMAT_KEYS = frozenset(("type", "json_schema"))
_SCHEMA_KEYS = frozenset(("name", "description", "schema", "strict"))


def check_tools(value: Any, can: Capabilities) -> tuple[JsonObject, ...]:
    """Return the tools; names are unique among them."""
    tools = array("tools", value, at_most=TOOLS_MAX)
    if tools and not can.tools:
        refuse("tools", "the engine of this model calls no tools.")
    names: set[str] = set()
    for index, item in enumerate(tools):
        where = f"tools[{index}]"
        tool = mapping(where, item)
        if string(f"{where}.type", tool.get("type")) != "function":
            refuse(f"{where}.type", "only tools of type function are supported.")
        function = mapping(f"{where}.function", tool.get("function"))
        if not can.passes_unknown:
            only_keys(where, tool, _TOOL_KEYS)
            only_keys(f"{where}.function", function, _FUNCTION_KEYS)
        _check_function(f"{where}.function", function)
        if function["name"] in names:
            refuse(f"{where}.function.name", "two tools have this name.")
        names.add(function["name"])
    return tuple(tools)


def _check_function(where: str, function: JsonObject) -> None:
    _check_name(f"{where}.name", function.get("name"))
    if "description" in function:
        string(f"{where}.description", function["description"])
    if "parameters" in function:
        mapping(f"{where}.parameters", function["parameters"])
    if function.get("strict") is not None:
        boolean(f"{where}.strict", function["strict"])
    free_form(where, function)


def check_choice(value: Any, tools: tuple[JsonObject, ...]) -> str | JsonObject:
    """Return `tool_choice`: none, auto, required, or the object that names one of `tools`."""
    if type(value) is str:
        word = one_of("tool_choice", value, ("none", "auto", "required"))
        if word == "required" and not tools:
            refuse("tool_choice", "required needs tools, and none were given.")
        return word
    choice = mapping("tool_choice", value)
    kind = string("tool_choice.type", choice.get("type"))
    if kind != "function":
        refuse("tool_choice.type", "only function is supported; allowed_tools and custom are not.")
    only_keys("tool_choice", choice, _TOOL_KEYS)
    function = mapping("tool_choice.function", choice.get("function"))
    only_keys("tool_choice.function", function, frozenset(("name",)))
    name = string("tool_choice.function.name", function.get("name"))
    if all(tool["function"]["name"] != name for tool in tools):
        refuse("tool_choice.function.name", "none of the given tools has this name.")
    return choice


def check_format(value: Any, can: Capabilities) -> JsonObject | None:
    """Return `response_format`, None for plain text."""
    form = mapping("response_format", value)
    kind = one_of("response_format.type", form.get("type"), ("text", "json_object", "json_schema"))
    if not can.passes_unknown:
        only_keys("response_format", form, _FORMAT_KEYS)
    if kind != "json_schema" and "json_schema" in form:
        refuse("response_format.json_schema", "belongs to the type json_schema only.")
    if kind == "text":
        return None
    if not can.grammar:
        refuse("response_format.type", "the engine of this model cannot constrain its output.")
    if kind == "json_schema":
        schema = mapping("response_format.json_schema", form.get("json_schema"))
        where = "response_format.json_schema"
        if not can.passes_unknown:
            only_keys(where, schema, _SCHEMA_KEYS)
        _check_name(f"{where}.name", schema.get("name"))
        if "description" in schema:
            string(f"{where}.description", schema["description"])
        if "schema" in schema:
            mapping(f"{where}.schema", schema["schema"])
        if schema.get("strict") is not None:
            boolean(f"{where}.strict", schema["strict"])
        free_form(where, schema)
    return form


def _check_name(where: str, value: Any) -> None:
    if not _NAME.fullmatch(string(where, value)):
        refuse(where, "must be 1 to 128 letters, digits, dots, colons, dashes or underscores.")
