"""Checks of `messages`: shape, roles, parts. What passes goes to the engine as it came.

Order of roles is not judged: engines' templates differ, and frameworks send all orders.
"""

from __future__ import annotations

import json
import re
from typing import Any

from bedplate.engines.base import Capabilities, JsonObject
from bedplate.gateway.openai.checks import (
    NESTING_MAX,
    array,
    free_form,
    join,
    mapping,
    one_of,
    only_keys,
    refuse,
    string,
    unknown,
    wrong_type,
)
from bedplate.gateway.openai.values import Room, outside_strings

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGES_MAX = 4_096

_BASE = frozenset(("role", "content", "name"))
_KEYS = {
    "system": _BASE,
    "developer": _BASE,
    "user": _BASE,
    "assistant": _BASE | {"tool_calls"},
    "tool": _BASE | {"tool_call_id"},
}
_ECHOED = frozenset(("refusal", "annotations", "audio", "function_call", "reasoning_content"))
"""Fields of an answer that SDKs send back with it. They say nothing to a model: not judged, except
audio and function_call, which must be null, as no engine here speaks or knows the old form."""
_TEXT_KEYS = frozenset(("type", "text"))
_CALL_KEYS = frozenset(("id", "type", "function", "index"))
_FUNCTION_KEYS = frozenset(("name", "arguments"))
_BRACKETS = re.compile(rb"[\[\]{}]")
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")


def check_messages(value: Any, can: Capabilities) -> tuple[JsonObject, ...]:
    """Return the messages of a request.

    Raises:
        InvalidRequest: naming the message, the field and what was expected.
    """
    messages = array("messages", value, at_least=1, at_most=MESSAGES_MAX)
    room = Room()
    for index, message in enumerate(messages):
        if type(message) is dict and _is_plain(message):
            continue
        _check(f"messages[{index}]", message, can, room)
    return tuple(messages)


def _is_plain(message: JsonObject) -> bool:
    """Tell quickly whether this is one of the common messages that hold a role and a text."""
    return (
        len(message) == 2
        and type(message.get("content")) is str
        and message.get("role") in ("user", "assistant", "system", "developer")
    )


def _check(where: str, value: Any, can: Capabilities, room: Room) -> None:
    message = mapping(where, value)
    if "role" not in message:
        refuse(f"{where}.role", "is missing.")
    if message["role"] == "function":
        refuse(f"{where}.role", "the role function is deprecated. Use tool and tool_call_id.")
    role = one_of(f"{where}.role", message["role"], ROLES)
    _check_extra(where, message, role, can)
    if message.get("name") is not None:
        string(f"{where}.name", message["name"])
    if role == "tool":
        if "tool_call_id" not in message:
            refuse(f"{where}.tool_call_id", "is missing: a tool message names the call it answers.")
        string(f"{where}.tool_call_id", message["tool_call_id"])
    calls = message.get("tool_calls")
    if calls is not None:
        _check_calls(f"{where}.tool_calls", calls, can, room)
    content = message.get("content")
    if content is None:
        if role != "assistant":
            refuse(f"{where}.content", "is missing: a string or an array of parts is needed.")
        if not calls and message.get("refusal") is None and "content" not in message:
            refuse(f"{where}.content", "is missing, and the message has no tool_calls either.")
    elif type(content) is list:
        _check_parts(f"{where}.content", content, role, can)
    elif type(content) is not str:
        wrong_type(f"{where}.content", "a string or an array of parts", content)


def _check_extra(where: str, message: JsonObject, role: str, can: Capabilities) -> None:
    known = _KEYS[role]
    for key, value in message.items():
        if key in known:
            continue
        if value is None and role == "assistant":
            continue
        if role == "assistant" and key in _ECHOED:
            if key in ("audio", "function_call"):
                refuse(f"{where}.{key}", "is not supported. Leave it out.")
            if key == "annotations":
                free_form(f"{where}.{key}", array(f"{where}.{key}", value))
            else:
                string(f"{where}.{key}", value)
            continue
        if not can.passes_unknown:
            unknown(where, key, known, f"no such field in a {role} message.")
        free_form(join(where, key), value)


def _check_calls(where: str, value: Any, can: Capabilities, room: Room) -> None:
    for index, item in enumerate(array(where, value)):
        here = f"{where}[{index}]"
        call = mapping(here, item)
        if string(f"{here}.type", call.get("type")) != "function":
            refuse(f"{here}.type", "only calls of type function are supported.")
        if not can.passes_unknown:
            only_keys(here, call, _CALL_KEYS)
        string(f"{here}.id", call.get("id"))
        function = mapping(f"{here}.function", call.get("function"))
        if not can.passes_unknown:
            only_keys(f"{here}.function", function, _FUNCTION_KEYS)
        string(f"{here}.function.name", function.get("name"))
        arguments = string(f"{here}.function.arguments", function.get("arguments"))
        room.take(f"{here}.function.arguments", arguments)
        _check_arguments(f"{here}.function.arguments", arguments)
        free_form(here, call)


def _check_arguments(where: str, text: str) -> None:
    """Refuse what templates, which see arguments as JSON, could not hold; other text may pass."""
    if text.count("[") + text.count("{") > NESTING_MAX:
        depth = 0
        for bracket in _BRACKETS.finditer(outside_strings(text.encode())):
            depth += 1 if bracket[0] in b"[{" else -1
            if depth > NESTING_MAX:
                refuse(where, f"nested deeper than {NESTING_MAX} levels.")
            if depth < 0:  # no JSON; what closes more than it opens could go on without a bound
                break
    if "\\u" in text and _HALVES.search(text) and _holds_halves(text):
        refuse(where, "holds half of a character (\\ud800 to \\udfff without its other half).")


def _holds_halves(text: str) -> bool:
    """Tell whether JSON has strings that UTF-8 cannot hold; what is no JSON has none."""
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except ValueError:
        return False
    return False


def _check_parts(where: str, parts: list[Any], role: str, can: Capabilities) -> None:
    array(where, parts, at_least=1)
    for index, item in enumerate(parts):
        here = f"{where}[{index}]"
        part = mapping(here, item)
        kind = string(f"{here}.type", part.get("type"))
        if kind == "text":
            if not can.passes_unknown:
                only_keys(here, part, _TEXT_KEYS)
            string(f"{here}.text", part.get("text"))
        elif kind == "refusal" and role == "assistant":
            string(f"{here}.refusal", part.get("refusal"))
        elif role != "user":
            refuse(f"{here}.type", f"a {role} message takes text parts only.")
        else:
            _check_media(here, kind, part, can)


def _check_media(where: str, kind: str, part: JsonObject, can: Capabilities) -> None:
    if kind == "image_url":
        if not can.images:
            refuse(f"{where}.image_url", "the engine of this model takes no images.")
        image = mapping(f"{where}.image_url", part.get("image_url"))
        string(f"{where}.image_url.url", image.get("url"))
        if image.get("detail") is not None:
            one_of(f"{where}.image_url.detail", image["detail"], ("auto", "low", "high"))
    elif kind == "input_audio":
        if not can.audio:
            refuse(f"{where}.input_audio", "the engine of this model takes no audio.")
        audio = mapping(f"{where}.input_audio", part.get("input_audio"))
        string(f"{where}.input_audio.data", audio.get("data"))
        one_of(f"{where}.input_audio.format", audio.get("format"), ("wav", "mp3"))
    elif not can.passes_unknown:
        refuse(f"{where}.type", "this kind of part is not supported by the engine of this model.")
    else:
        free_form(where, part)
