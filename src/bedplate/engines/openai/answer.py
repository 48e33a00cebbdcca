"""One answer, read from the chunks of a stream and kept whole for its end.

A good stream is: chunks with deltas, one finish_reason for each choice, usage or not, `[DONE]`.
`feed` takes the events of one network read together, which is what keeps a fast engine cheap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from bedplate.engines.base import Delta, Finished, JsonObject
from bedplate.engines.openai import faults
from bedplate.engines.openai.tool_calls import ToolCalls
from bedplate.engines.openai.usage import Bounds, Usage, read_usage
from bedplate.errors import EngineLost, EngineProtocolError

_FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "function_call": "tool_calls",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}
"""What servers say, in OpenAI's words. Anything else is no end that a client could trust."""
_ABORTED = frozenset({"abort", "aborted", "cancelled", "error"})

NESTING_MAX = 100
"""Depth of what an engine sends beside its text. What encodes it for the client holds about 250."""

_DONE = b" [DONE]"
"""As nearly every server spells it; other spellings are met where JSON fails."""


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    tools: ToolCalls = field(default_factory=ToolCalls)
    extra: JsonObject = field(default_factory=dict)
    finish_reason: str | None = None


class Answer:
    """The state of one streamed answer with `choices` choices.

    `done` is True after `[DONE]`; `tokens` counts output tokens of the deltas, as far as chunks
    tell; `usage` is None until the engine sends it. `secret` is the endpoint's key, which no error
    repeats. Neither count goes beyond `bounds`; `claimed` is the engine's own, as it sent it.
    """

    __slots__ = (
        "_bounds", "_choices", "_chunks", "_count", "_halves", "_secret", "claimed", "done",
        "tokens", "usage",
    )  # fmt: skip

    def __init__(self, choices: int, secret: str = "", bounds: Bounds | None = None) -> None:
        self.done = False
        self.tokens = 0
        self.usage: Usage | None = None
        self.claimed: Usage | None = None
        self._bounds = bounds or Bounds()
        self._chunks = 0
        self._count = choices
        self._secret = secret
        self._choices = [_Choice() for _ in range(choices)]
        self._halves: HalfPairs | None = None

    @property
    def complete(self) -> bool:
        """True when every choice has its finish_reason."""
        return all(choice.finish_reason is not None for choice in self._choices)

    def feed(self, events: Iterable[bytes]) -> list[Delta]:
        """Read events; return what the client should get of them. Empty deltas are left out.

        Raises:
            EngineProtocolError: Not JSON, not a chunk, or a finish_reason that means nothing.
            EngineLost: The engine says that it gave up.
            BedplateError: The error that the engine sent in the stream.
        """
        deltas: list[Delta] = []
        for event in events:
            if event == _DONE:
                self.done = True
                break
            try:
                chunk = orjson.loads(event)
            except orjson.JSONDecodeError as error:
                if event.strip() == b"[DONE]":
                    self.done = True
                    break
                chunk = self._loads_halves(event, error)
            try:
                choices = chunk["choices"]
                usage = chunk.get("usage")
            except (KeyError, TypeError, AttributeError):
                choices, usage = _without_choices(chunk, self._secret)
            if usage:
                self.claimed = read_usage(usage)
                self.usage = self.claimed.within(
                    self._bounds.prompt_tokens, self._bounds.out_tokens
                )
            if choices:
                if type(choices) is not list:
                    raise EngineProtocolError("the engine sent choices that are no list")
                for choice in choices:
                    self._read(choice, deltas)
        if self.tokens > self._bounds.out_tokens:
            self._cut_tokens(deltas)
        return deltas

    def finished(
        self, prompt_tokens: int, delivered: str, *, delivered_tokens: int = 0
    ) -> Finished:
        """Return the end of a complete answer.

        Args:
            prompt_tokens: The estimate, for an engine that sent no usage.
            delivered: Text of earlier attempts, which the message begins with.
            delivered_tokens: Its tokens, which the answer's count includes.
        """
        assert self.complete
        usage = self._believed() or Usage(prompt_tokens, 0, self.tokens)
        claimed = self.claimed or usage
        beyond = claimed.prompt_tokens - usage.prompt_tokens + claimed.out_tokens - usage.out_tokens
        first = self._choices[0]
        reasons = [choice.finish_reason or "" for choice in self._choices]
        one = self._count == 1
        return Finished(
            finish_reason=reasons[0],
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            out_tokens=delivered_tokens + usage.out_tokens,
            kv_tokens=usage.prompt_tokens + (usage.out_tokens if one else 0),
            exact=self.usage is not None and delivered_tokens == 0 and beyond == 0,
            message=self._message(first, delivered),
            others=tuple(reasons[1:]),
            unbelieved_tokens=beyond,
        )

    def _believed(self) -> Usage | None:
        """Return the engine's count as far as a whole answer of this size can have it."""
        usage = self.usage
        if usage is None or usage.out_tokens <= self._chunks:
            return usage  # a chunk for each token, as nearly always
        shown = sum(
            len("".join(choice.texts).encode())
            + len(orjson.dumps((choice.tools.whole(), choice.extra)))
            for choice in self._choices
        )
        out = self._bounds.out_of(usage, shown_bytes=shown, chunks=self._chunks)
        return usage.within(usage.prompt_tokens, out)

    def _cut_tokens(self, deltas: list[Delta]) -> None:
        """Take off what the chunks of this read count beyond what was asked for."""
        beyond = self.tokens - self._bounds.out_tokens
        self.tokens -= beyond
        for delta in reversed(deltas):
            taken = min(delta.tokens, beyond)
            delta.tokens -= taken
            beyond -= taken

    def _read(self, choice: Any, out: list[Delta]) -> None:
        try:
            index = choice["index"]
            state = self._choices[index if index >= 0 else self._count]
            delta = choice.get("delta")
            content = delta.get("content") if delta else None
            reason = choice.get("finish_reason")
            logprobs = choice.get("logprobs")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineProtocolError(f"the engine sent a choice that is none: {error}") from error
        self._chunks += 1
        if type(content) is str and len(delta) == 1 and logprobs is None and self._halves is None:
            if content:  # a piece of text and nothing else, as nearly always
                state.texts.append(content)
                self.tokens += 1
                out.append(Delta(content, (), None, 1, index))
        elif delta:
            self._read_delta(index, state, delta, logprobs, out)
        if reason:
            state.finish_reason = _finish_reason(reason)
            if self._halves is not None:
                self._add_rests(self._halves, index, state, out)

    def _read_delta(
        self, index: int, state: _Choice, delta: JsonObject, logprobs: Any, out: list[Delta]
    ) -> None:
        content = delta.get("content")
        calls: tuple[JsonObject, ...] = ()
        extra: JsonObject | None = None
        if len(delta) > 1 or content is None:
            calls, extra = self._beside_content(index, state, delta)
        if content:
            if type(content) is not str:
                raise EngineProtocolError("the engine sent content that is no text")
            if self._halves is not None:
                content = self._halves.join(index, content)
            state.texts.append(content)
        elif not calls and extra is None:
            return
        if logprobs is not None:
            _check_logprobs(logprobs)
        if self._halves is not None:
            logprobs = whole_characters(logprobs)
        tokens = 1 if logprobs is None else _token_count(logprobs)
        self.tokens += tokens
        out.append(Delta(content or "", calls, logprobs, tokens, index, extra))

    def _beside_content(
        self, index: int, state: _Choice, delta: JsonObject
    ) -> tuple[tuple[JsonObject, ...], JsonObject | None]:
        """Read what else a delta has: tool calls, and fields that only some models send."""
        calls: tuple[JsonObject, ...] = ()
        extra: JsonObject | None = None
        for name, value in delta.items():
            if name in ("content", "role") or value is None or value == "" or value == []:
                continue
            if name == "tool_calls":
                if self._halves is not None:
                    self._halves.join_arguments(index, value)
                    value = whole_characters(value)
                calls = tuple(state.tools.feed(value))
            else:
                _check_depth(value)
                if self._halves is not None:
                    joins = isinstance(value, str)
                    value = self._halves.join((index, name), value) if joins else value
                    value, name = whole_characters(value), whole_characters(name)
                extra = {**(extra or {}), name: value}
                state.extra[name] = _merged(state.extra.get(name), value)
        return calls, extra

    def _add_rests(self, halves: HalfPairs, index: int, state: _Choice, out: list[Delta]) -> None:
        """Add what is left of halves at the end of a choice: in its text, and beside it."""
        if rest := halves.rest(index):
            state.texts.append(rest)
            out.append(Delta(rest, index=index))
        for name, value in state.extra.items():
            if isinstance(value, str) and (rest := halves.rest((index, name))):
                state.extra[name] = value + rest
                out.append(Delta("", index=index, extra={name: rest}))

    def _message(self, choice: _Choice, delivered: str) -> JsonObject:
        text = delivered + "".join(choice.texts)
        message: JsonObject = {"role": "assistant", "content": text}
        if choice.tools:
            message["content"] = text or None
            message["tool_calls"] = choice.tools.whole()
        return {**choice.extra, **message}

    def _loads_halves(self, event: bytes, error: orjson.JSONDecodeError) -> Any:
        """Parse an event that orjson refuses; only one with half a surrogate pair is valid."""
        try:
            chunk = json.loads(event, parse_int=_int64, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise EngineProtocolError(
                f"the engine sent an event that is no JSON: {error}"
            ) from error
        if self._halves is None:
            self._halves = HalfPairs()
        return chunk


class HalfPairs:
    r"""Characters beyond the first plane, cut by a server in two escapes (`\ud83d` | `\ude00`).

    The first half waits for the second; a half without its other becomes U+FFFD, since it stands
    for no character and cannot be sent on.
    """

    def __init__(self) -> None:
        self._held: dict[object, str] = {}

    def join(self, place: object, text: str) -> str:
        """Return the text of this piece with the half that waited, without the half that begins."""
        text = self._held.pop(place, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[place] = text[-1]
            text = text[:-1]
        whole: str = whole_characters(text)
        return whole

    def join_arguments(self, index: int, pieces: Any) -> None:
        """Join the argument texts of tool call pieces, in place."""
        for piece in pieces if isinstance(pieces, list) else ():
            function = piece.get("function") if isinstance(piece, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                place = (index, piece.get("index"))
                function["arguments"] = self.join(place, function["arguments"])

    def rest(self, place: object) -> str:
        """Return what is left of a half at the end of a choice's text."""
        return "\ufffd" if self._held.pop(place, "") else ""


def whole_characters(value: Any, depth: int = 0) -> Any:
    """Return JSON with U+FFFD for each half of a surrogate pair, which UTF-8 cannot hold."""
    if depth > NESTING_MAX:
        raise EngineProtocolError(f"the engine sent JSON nested deeper than {NESTING_MAX} levels")
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [whole_characters(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {
            whole_characters(name): whole_characters(item, depth + 1)
            for name, item in value.items()
        }
    return value


def _int64(digits: str) -> int:
    """Read an integer that what encodes it for the client can hold."""
    value = int(digits)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("an integer of more than 64 bits")
    return value


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _without_choices(chunk: Any, secret: str) -> tuple[list[Any], Any]:
    """Read a chunk without `choices`: an error, usage alone, or nothing known."""
    if not isinstance(chunk, dict):
        raise EngineProtocolError("the engine sent an event that is no object")
    error = chunk.get("error")
    if error or chunk.get("object") == "error":
        raise faults.in_stream(whole_characters(chunk), secret)
    if "usage" not in chunk:
        raise EngineProtocolError("the engine sent an event without choices")
    return [], chunk["usage"]


def _finish_reason(reason: Any) -> str:
    known = _FINISH_REASONS.get(reason) if isinstance(reason, str) else None
    if known is not None:
        return known
    if isinstance(reason, str) and reason in _ABORTED:
        raise EngineLost(f"the engine gave the answer up ({reason})")
    raise EngineProtocolError(f"the engine ended the answer with unknown reason {reason!r:.64}")


def _check_logprobs(logprobs: Any) -> None:
    """Refuse log probabilities that are not OpenAI's form: lists of them are put together here."""
    if not isinstance(logprobs, dict) or not all(
        isinstance(logprobs.get(name), list | None) for name in ("content", "refusal")
    ):
        raise EngineProtocolError("the engine sent logprobs that are none")
    _check_depth(logprobs)


def _check_depth(value: Any) -> None:
    """Refuse JSON that is nested too deep to be sent on. Cost: O(size)."""
    level = [value]
    for _ in range(NESTING_MAX):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return
        level = [
            inner for item in level for inner in (item.values() if isinstance(item, dict) else item)
        ]
    raise EngineProtocolError(f"the engine sent JSON nested deeper than {NESTING_MAX} levels")


def _token_count(logprobs: JsonObject) -> int:
    content = logprobs.get("content")
    return len(content) if content else 1


def _merged(old: Any, new: Any) -> Any:
    """Put two pieces of one delta field together, as SDKs do."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}
    return new
