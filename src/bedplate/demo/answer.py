"""One streamed chat completion, put together as an agent's SDK does it."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from bedplate.engines.base import JsonObject


class BrokenAnswer(Exception):
    """The stream ended early, told of an error, or is not a chat completion."""


@dataclass(slots=True)
class Answer:
    """What has arrived of an answer so far; whole once `done`.

    Feed it the lines of the event stream. Lines that begin with a colon only keep the connection
    alive.
    """

    content: str = ""
    calls: dict[int, JsonObject] = field(default_factory=dict)
    finish_reason: str = ""
    usage: JsonObject | None = None
    done: bool = False

    def feed(self, line: bytes) -> bool:
        """Take one line; return whether it brought a part of the answer.

        Raises:
            BrokenAnswer: an error event, or something that is no chunk.
        """
        if not line.startswith(b"data:"):
            return False
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return False
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise BrokenAnswer(f"a chunk is not JSON: {error}") from error
        if not isinstance(chunk, dict) or "error" in chunk:
            raise BrokenAnswer(f"the stream reports {chunk!r}")
        self.usage = chunk.get("usage") or self.usage
        choices = chunk.get("choices") or []
        return len(choices) > 0 and self._take(choices[0])

    def message(self) -> JsonObject:
        """Return the assistant message to send back in the next call.

        Raises:
            BrokenAnswer: the stream ended without its end mark: what there is may be cut.
        """
        if not self.done or not self.finish_reason:
            raise BrokenAnswer("the stream ended before the answer did")
        message: JsonObject = {"role": "assistant", "content": self.content or None}
        if self.calls:
            message["tool_calls"] = [call for _, call in sorted(self.calls.items())]
        return message

    def _take(self, choice: JsonObject) -> bool:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        self.content += text
        pieces = delta.get("tool_calls") or []
        for piece in pieces:
            self._take_call(piece)
        return bool(text or pieces)

    def _take_call(self, piece: JsonObject) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.calls.setdefault(piece.get("index", 0), empty)
        call["id"] = piece.get("id") or call["id"]
        function = piece.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
