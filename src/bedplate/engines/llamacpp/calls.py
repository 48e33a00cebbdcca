"""Find tool calls in an answer while it streams: Hermes text in, text and OpenAI deltas out.

    text ──<tool_call>──> head ──{"name": N, "arguments": {──> arguments ──balanced }──> tail
      ^                     │ closes first: parsed whole, or given back as text            │
      └─────────────────────┴──────────────────</tool_call>────────────────────────────────┘

Arguments leave as the model writes them, character by character the same; where a piece ends does
not matter, inside an escape or not. What could still become a tag is held back, white space before
it too. Nothing is added that the model did not write: a call cut short stays cut short. At a token
limit what has begun to be a call and is none yet is left out: its markup is no text for a client.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import Any

import orjson

from bedplate.engines.base import JsonObject
from bedplate.engines.llamacpp.template import CALL_CLOSE, CALL_OPEN

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL
)
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


@dataclass(slots=True)
class Pieces:
    """What one feed gave: text for the client, and tool call deltas in order."""

    text: str = ""
    deltas: list[JsonObject] = field(default_factory=list)


class CallParser:
    """Splits one answer. `calls` are the whole calls so far, as a client would send them back."""

    def __init__(self) -> None:
        self.calls: list[JsonObject] = []
        self._state = self._in_text
        self._held = ""
        self._depth = 0
        self._quoted = False
        self._escaped = False

    @property
    def cut_short(self) -> bool:
        """True while the last call's arguments are not whole."""
        return self._state == self._in_arguments

    def feed(self, text: str) -> Pieces:
        """Take the next text; return what can be given on."""
        pieces = Pieces()
        self._held += text
        while self._state(pieces):
            pass
        return pieces

    def finish(self, *, at_limit: bool) -> Pieces:
        """Return what was held back, at the end of the answer; `at_limit`: not the model's end."""
        pieces = Pieces()
        if self._state == self._in_text:
            held = self._held[: _tag_start(self._held)] if at_limit else self._held
            if not (self.calls and held.isspace()):
                pieces.text = held
        elif self._state == self._in_head:
            self._whole_call(self._held, pieces, closed=False)
            if at_limit and not pieces.deltas and self._held.lstrip()[:1] in ("", "{"):
                pieces.text = ""
        if self._state != self._in_arguments:
            self._held = ""
        return pieces

    def _in_text(self, pieces: Pieces) -> bool:
        before, found, after = self._held.partition(CALL_OPEN)
        if found:
            pieces.text += before.rstrip()
            self._held = after
            self._state = self._in_head
            return True
        keep = _tag_start(self._held)
        keep = len(self._held[:keep].rstrip())
        pieces.text += self._held[:keep]
        self._held = self._held[keep:]
        return False

    def _in_head(self, pieces: Pieces) -> bool:
        match = _HEAD.match(self._held)
        name = _parsed(match[1]) if match else None
        if match and isinstance(name, str):
            self._begin(name, pieces)
            self._held = self._held[match.end() :]
            self._depth, self._quoted, self._escaped = 0, False, False
            self._state = self._in_arguments
            return True
        inner, found, after = self._held.partition(CALL_CLOSE)
        if not found:
            return False
        self._whole_call(inner, pieces, closed=True)
        self._held = after
        self._state = self._in_text
        return True

    def _in_arguments(self, pieces: Pieces) -> bool:
        end = self._value_end()
        piece = self._held[: len(self._held) if end < 0 else end]
        if piece:
            self._extend(piece, pieces)
        self._held = self._held[len(piece) :]
        if end < 0:
            return False
        self._state = self._in_tail
        return True

    def _in_tail(self, pieces: Pieces) -> bool:
        _inner, found, after = self._held.partition(CALL_CLOSE)
        if not found:
            return False
        self._held = after
        self._state = self._in_text
        return True

    def _value_end(self) -> int:
        """Return where the arguments' object closes in what is held, -1 when it does not yet."""
        at, text = 0, self._held
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = (_INSIDE if self._quoted else _OUTSIDE).search(text, at)
            if match is None:
                return -1
            at = match.end()
            letter = match[0]
            if letter == "\\":
                self._escaped = True
            elif letter == '"':
                self._quoted = not self._quoted
            elif letter in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return at
        return -1

    def _begin(self, name: str, pieces: Pieces) -> None:
        call: JsonObject = {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        pieces.deltas.append(
            {"index": len(self.calls), **call, "function": {"name": name, "arguments": ""}}
        )
        self.calls.append(call)

    def _extend(self, piece: str, pieces: Pieces) -> None:
        self.calls[-1]["function"]["arguments"] += piece
        pieces.deltas.append({"index": len(self.calls) - 1, "function": {"arguments": piece}})

    def _whole_call(self, inner: str, pieces: Pieces, *, closed: bool) -> None:
        """Take a call whose head is unusual; what is no call goes back into the text."""
        value = _parsed(inner)
        if isinstance(value, dict) and isinstance(value.get("name"), str) and "arguments" in value:
            arguments = value["arguments"]
            text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
            self._begin(value["name"], pieces)
            self._extend(text, pieces)
        else:
            pieces.text += CALL_OPEN + inner + (CALL_CLOSE if closed else "")


def _parsed(text: str) -> Any:
    """Return the JSON value of a text, None where it is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _tag_start(text: str) -> int:
    """Return where a beginning of the opening tag stands at the end of the text, or its length."""
    for length in range(min(len(CALL_OPEN) - 1, len(text)), 0, -1):
        if CALL_OPEN.startswith(text[-length:]):
            return len(text) - length
    return len(text)
