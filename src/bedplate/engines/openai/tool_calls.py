"""Tool calls in a stream: whatever shape a server sends them in, clients get one shape.

The first delta of a call has index, id, type, name and the arguments so far; later ones have index
and a piece of the arguments. Servers that repeat id and name, leave the id or the index out, or
send arguments as an object are all brought to that. Argument text is passed on as it came: it is
never parsed, completed or invented.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import orjson

from bedplate.engines.base import JsonObject
from bedplate.errors import EngineProtocolError

CALLS_MAX = 1_024
"""Most calls in one answer."""


@dataclass(slots=True)
class _Call:
    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ToolCalls:
    """The tool calls of one choice, put together from its deltas."""

    __slots__ = ("_by_place", "_calls")

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_place: dict[object, _Call] = {}

    def __bool__(self) -> bool:
        """True once a call has begun."""
        return bool(self._calls)

    def feed(self, pieces: Any) -> list[JsonObject]:
        """Take the `tool_calls` of one delta; return the deltas to send on."""
        if not isinstance(pieces, list):
            raise EngineProtocolError("the engine sent tool_calls that are no list")
        sent = []
        for piece in pieces:
            if not isinstance(piece, dict):
                raise EngineProtocolError("the engine sent a tool call that is no object")
            delta = self._take(piece)
            if delta is not None:
                sent.append(delta)
        return sent

    def whole(self) -> list[JsonObject]:
        """Return the calls as an assistant message holds them.

        Raises:
            EngineProtocolError: A call never got a name.
        """
        for call in self._calls:
            if not call.name:
                raise EngineProtocolError(f"the engine sent tool call {call.index} without a name")
        return [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(call.arguments)},
            }
            for call in self._calls
        ]

    def _take(self, piece: JsonObject) -> JsonObject | None:
        call = self._call_of(piece)
        function = piece.get("function") or {}
        if not isinstance(function, dict):
            raise EngineProtocolError("the engine sent a tool call whose function is no object")
        given = piece.get("id")
        if given and not call.id:
            call.id = str(given)
        text = _argument_text(function.get("arguments"))
        if text:
            call.arguments.append(text)
        if call.name:
            return {"index": call.index, "function": {"arguments": text}} if text else None
        name = function.get("name")
        if not name:
            return None
        call.name = str(name)
        call.id = call.id or f"call_{uuid.uuid4().hex[:24]}"
        return {
            "index": call.index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": "".join(call.arguments)},
        }

    def _call_of(self, piece: JsonObject) -> _Call:
        """Find the call that a piece belongs to: by index, else by id, else the latest."""
        place: object = piece.get("index")
        if place is None:
            place = piece.get("id")
        if place is None and self._calls:
            return self._calls[-1]
        call = self._by_place.get(place)
        if call is None:
            if len(self._calls) >= CALLS_MAX:
                raise EngineProtocolError(f"the engine sent over {CALLS_MAX} tool calls")
            call = self._by_place[place] = _Call(len(self._calls))
            self._calls.append(call)
        return call


def _argument_text(arguments: Any) -> str:
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, dict):
        return orjson.dumps(arguments).decode()
    raise EngineProtocolError("the engine sent tool call arguments that are no text")
