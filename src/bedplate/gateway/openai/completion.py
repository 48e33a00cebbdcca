"""An unstreamed answer: the same outputs as a stream's, gathered into one object.

Text, arguments and log probabilities are the stream's pieces put together, so both forms of one
answer are equal byte for byte (F15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from bedplate.engines.base import Delta, Finished, JsonObject, Output
from bedplate.errors import EngineProtocolError
from bedplate.gateway.openai.stream import Identity, usage_of


@dataclass(slots=True)
class _Choice:
    content: list[str] = field(default_factory=list)
    calls: dict[int, JsonObject] = field(default_factory=dict)
    logprobs: list[JsonObject] = field(default_factory=list)
    extra: JsonObject = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        if delta.content:
            self.content.append(delta.content)
        if delta.logprobs is not None:
            self.logprobs.append(delta.logprobs)
        for piece in delta.tool_calls:
            self._add_call(piece)
        for name, value in (delta.extra or {}).items():
            before = self.extra.get(name)
            joined = isinstance(before, str) and isinstance(value, str)
            self.extra[name] = before + value if joined else value

    def _add_call(self, piece: JsonObject) -> None:
        call = self.calls.get(piece["index"])
        if call is None:
            function: JsonObject = {"name": "", "arguments": []}
            call = self.calls[piece["index"]] = {"id": "", "type": "function", "function": function}
        if piece.get("id"):
            call["id"] = piece["id"]
        said = piece.get("function") or {}
        if said.get("name"):
            call["function"]["name"] = said["name"]
        if said.get("arguments"):
            call["function"]["arguments"].append(said["arguments"])

    def message(self) -> JsonObject:
        calls = [self.calls[index] for index in sorted(self.calls)]
        for call in calls:
            call["function"]["arguments"] = "".join(call["function"]["arguments"])
        content = "".join(self.content)
        message: JsonObject = {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
            "annotations": [],
        }
        message.update(self.extra)
        if calls:
            message["tool_calls"] = calls
        return message

    def joined_logprobs(self) -> JsonObject | None:
        if not self.logprobs:
            return None
        return {
            "content": _joined(self.logprobs, "content"),
            "refusal": _joined(self.logprobs, "refusal"),
        }


def _joined(pieces: list[JsonObject], name: str) -> list[Any] | None:
    lists = [piece[name] for piece in pieces if piece.get(name) is not None]
    return [item for items in lists for item in items] if lists else None


class Collector:
    """Gathers the outputs of one turn. `finished` holds the end once it came."""

    __slots__ = ("_choices", "finished")

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {0: _Choice()}
        self.finished: Finished | None = None

    def add(self, outputs: Sequence[Output]) -> None:
        """Take outputs in order."""
        for output in outputs:
            if type(output) is Delta:
                choice = self._choices.get(output.index)
                if choice is None:
                    choice = self._choices[output.index] = _Choice()
                choice.add(output)
            elif type(output) is Finished:
                assert self.finished is None, "a turn ends once"
                self.finished = output

    def body(self, identity: Identity) -> bytes:
        """Return the `chat.completion` object; call after the end came.

        Raises:
            EngineProtocolError: the engine named fewer ends than it gave choices.
        """
        finished = self.finished
        assert finished is not None
        reasons = (finished.finish_reason, *finished.others)
        if self._choices.keys() - range(len(reasons)):
            raise EngineProtocolError("The engine gave a choice without a finish_reason.")
        body = identity.head("chat.completion")
        body["choices"] = [self._object(index, reason) for index, reason in enumerate(reasons)]
        body["usage"] = usage_of(finished)
        return orjson.dumps(body)

    def _object(self, index: int, reason: str) -> JsonObject:
        choice = self._choices.get(index) or _Choice()
        return {
            "index": index,
            "message": choice.message(),
            "logprobs": choice.joined_logprobs(),
            "finish_reason": reason,
        }
