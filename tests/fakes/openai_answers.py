"""What a fake engine answers: behaviours, and their rendering as a stream or as one body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

ID_MARK = b"chatcmpl-fake-0000000000"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
WORDS = ("ledger ", "review ", "risk ", "claim ", "audit ", "limit ", "trade ", "policy ")


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool: `pieces` are sent as they are, one chunk each; the id may be left out."""

    name: str
    pieces: tuple[str, ...]
    id: str | None = "call_fake"


@dataclass(frozen=True, eq=False)
class Behaviour:
    """How one chat request is answered.

    The answer is `texts`, or `chunks` words, cut at the request's `max_tokens`; then `tool_calls`,
    one after the other or `interleaved`; or `events`, sent as given instead of all that.
    """

    chunks: int = 32
    texts: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    interleaved: bool = False
    events: tuple[str, ...] = ()
    """Payloads of SSE events, JSON or not; `done` still adds `[DONE]`."""
    extra_delta: dict[str, Any] = field(default_factory=dict)
    """Fields that each content delta carries besides content, as reasoning models send them."""
    logprobs: bool = False
    finish_reason: str | None = None
    """None: `tool_calls`, `length` or `stop`, as the answer has it; "" sends none at all."""
    usage: bool = True
    """Send usage in the last chunk, where the request asked for it."""
    usage_null: bool = False
    """Send `usage: null` in every other chunk."""
    cached_tokens: int | None = 0
    done: bool = True
    close: bool = False
    """Close the connection after a whole answer."""
    stale: bool = False
    """Keep the connection after the answer, and reset it when the next request comes on it."""
    first_delay_s: float = 0.0
    headers_first: bool = False
    """Send the headers before the first delay."""
    chunk_delay_s: float = 0.0
    split_bytes: int = 0
    """Cut the stream into writes of this size, wherever that falls; 0 for one write."""
    hang: bool = False
    """Take the request and never answer (after the headers, with `headers_first`)."""
    die_after: int | None = None
    """Reset the connection after so many events; 0 after the headers, -1 before them."""
    status: int = 200
    error: dict[str, Any] = field(default_factory=dict)
    """The error object sent with another status."""
    retry_after: str | None = None
    refuse: tuple[str, ...] = ()
    """Request fields that are answered with 400, as strict servers do."""
    ignore_stream: bool = False
    """Answer a streamed request with one JSON body."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Behaviour:
        """Build from JSON; an unknown field is an error."""
        given = dict(values)
        for name in ("texts", "events", "refuse"):
            if name in given:
                given[name] = tuple(given[name])
        if "tool_calls" in given:
            given["tool_calls"] = tuple(
                ToolCall(**{**call, "pieces": tuple(call["pieces"])})
                for call in given["tool_calls"]
            )
        return cls(**given)

    @property
    def waits(self) -> bool:
        """True when the answer takes time, or ends in a way that needs more than one write."""
        return bool(
            self.first_delay_s
            or self.chunk_delay_s
            or self.split_bytes
            or self.hang
            or self.headers_first
            or self.die_after is not None
        )


@dataclass
class Answer:
    """One answer as it will be sent: the behaviour applied to the request."""

    behaviour: Behaviour
    model: str
    prompt_tokens: int
    limit: int
    usage: bool
    choices: int = 1

    @property
    def texts(self) -> tuple[str, ...]:
        behaviour = self.behaviour
        if behaviour.texts or behaviour.tool_calls:
            texts = behaviour.texts
        else:
            texts = tuple(WORDS[i % len(WORDS)] for i in range(behaviour.chunks))
        return texts[: self.limit] if self.limit else texts

    @property
    def tool_pieces(self) -> int:
        return sum(len(call.pieces) for call in self.behaviour.tool_calls)

    @property
    def out_tokens(self) -> int:
        return (len(self.texts) + self.tool_pieces) * self.choices

    @property
    def finish_reason(self) -> str:
        behaviour = self.behaviour
        if behaviour.finish_reason is not None:
            return behaviour.finish_reason
        if behaviour.tool_calls:
            return "tool_calls"
        whole = len(behaviour.texts) or behaviour.chunks
        return "length" if self.limit and self.limit < whole else "stop"

    def usage_object(self) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.out_tokens,
            "total_tokens": self.prompt_tokens + self.out_tokens,
        }
        if self.behaviour.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.behaviour.cached_tokens}
        return usage


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def events(answer: Answer) -> Iterator[bytes]:
    """Yield the SSE events of a streamed answer, `[DONE]` included."""
    behaviour = answer.behaviour
    if behaviour.events:
        yield from (f"data: {event}\n\n".encode() for event in behaviour.events)
    else:
        yield from _own_events(answer)
    if behaviour.done:
        yield b"data: [DONE]\n\n"


def _own_events(answer: Answer) -> Iterator[bytes]:
    behaviour = answer.behaviour

    def event(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": ID_MARK.decode(),
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": answer.model,
            "choices": choices,
        }
        if usage is not None or behaviour.usage_null:
            body["usage"] = usage
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def choice(
        index: int, delta: dict[str, Any], finish: str | None = None, **more: Any
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "finish_reason": finish, **more}

    indexes = range(answer.choices)
    for index in indexes:
        yield event([choice(index, {"role": "assistant", "content": ""})])
    for text in answer.texts:
        for index in indexes:
            more: dict[str, Any] = {"logprobs": _logprobs(text)} if behaviour.logprobs else {}
            yield event([choice(index, {"content": text, **behaviour.extra_delta}, **more)])
    for delta in _tool_deltas(behaviour):
        yield event([choice(0, {"tool_calls": [delta]})])
    if answer.finish_reason:
        for index in indexes:
            yield event([choice(index, {}, answer.finish_reason)])
    if answer.usage and behaviour.usage:
        yield event([], answer.usage_object())


def _tool_deltas(behaviour: Behaviour) -> Iterator[dict[str, Any]]:
    """Yield tool call deltas: id and name once, then the pieces, call by call or interleaved."""
    calls = behaviour.tool_calls
    for index, call in enumerate(calls):
        head: dict[str, Any] = {
            "index": index,
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }
        if call.id is not None:
            head["id"] = call.id
        yield head
        if not behaviour.interleaved:
            yield from _pieces(index, call.pieces)
    if behaviour.interleaved:
        longest = max((len(call.pieces) for call in calls), default=0)
        for at in range(longest):
            for index, call in enumerate(calls):
                yield from _pieces(index, call.pieces[at : at + 1])


def _pieces(index: int, pieces: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for piece in pieces:
        yield {"index": index, "function": {"arguments": piece}}


def _logprobs(text: str) -> dict[str, Any]:
    entry = {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}
    return {"content": [entry], "refusal": None}


def whole(answer: Answer, serial: int) -> dict[str, Any]:
    """Return the unstreamed answer."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.texts) or None}
    calls = answer.behaviour.tool_calls
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id or f"call_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(call.pieces)},
            }
            for index, call in enumerate(calls)
        ]
    return {
        "id": f"chatcmpl-fake-{serial:010d}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": answer.model,
        "choices": [
            {"index": index, "message": message, "finish_reason": answer.finish_reason}
            for index in range(answer.choices)
        ],
        "usage": answer.usage_object(),
    }


def words_in(body: dict[str, Any]) -> int:
    """Count a prompt in the fake's own tokens: the words of its messages and tools."""
    total = 0
    for message in body.get("messages") or ():
        content = message.get("content")
        if isinstance(content, str):
            total += content.count(" ") + 1
        elif isinstance(content, list):
            total += sum(str(part.get("text", "")).count(" ") + 1 for part in content)
        total += 1
    return total + sum(10 for _ in body.get("tools") or ())
