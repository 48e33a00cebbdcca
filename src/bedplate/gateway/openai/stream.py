"""A streamed answer as bytes: `chat.completion.chunk` events, built from constant heads.

Shape of a stream (F15): one chunk with the role for each choice; the pieces, with `finish_reason`
null, tool calls with id and name in their first piece only; one chunk with an empty delta and the
finish_reason for each choice; a chunk with `usage` and no choices where the client asked for it;
`[DONE]`. A stream that fails ends with an error event and without `[DONE]` (F16).

Every chunk of a stream begins with the same bytes, so they are encoded once. All pieces at hand
become one run of bytes, for one write.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from bedplate.engines.base import Delta, Finished, JsonObject, Output, Started
from bedplate.errors import BedplateError
from bedplate.gateway.errors_http import error_body

DONE = b"data: [DONE]\n\n"
_ROLE = b'"delta":{"role":"assistant","content":%s,"refusal":null},"logprobs":null'
_END = b'"delta":{},"logprobs":null'
_OPEN = b',"finish_reason":null}'


def usage_of(finished: Finished) -> JsonObject:
    """Return OpenAI's usage object. Kinds of tokens that no engine here makes are 0."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.out_tokens,
        "total_tokens": finished.prompt_tokens + finished.out_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


class Identity:
    """What every object of one answer carries."""

    __slots__ = ("created", "fingerprint", "id", "model")

    def __init__(self, answer_id: str, created: int, model: str, fingerprint: str) -> None:
        self.id = answer_id
        self.created = created
        self.model = model
        self.fingerprint = fingerprint

    def head(self, kind: str) -> JsonObject:
        """Return the leading fields of an object of this kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ChunkEncoder:
    """Turns the outputs of one turn into server-sent events; `finished` is its end once it came."""

    __slots__ = (
        "_choice",
        "_content",
        "_content_end",
        "_head",
        "_opened",
        "_tail",
        "_usage",
        "finished",
    )

    def __init__(self, identity: Identity, *, include_usage: bool) -> None:
        head = orjson.dumps(identity.head("chat.completion.chunk"))
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._choice = self._head + b'{"index":%d,'
        self._content = self._head + b'{"index":0,"delta":{"content":'
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._content_end = b'},"logprobs":null' + _OPEN + self._tail
        self._usage = include_usage
        self._opened: set[int] = set()
        self.finished: Finished | None = None

    def encode(self, outputs: Sequence[Output]) -> bytes:
        """Return the events of these outputs in order; empty for a Started alone."""
        pieces: list[bytes] = []
        for output in outputs:
            if type(output) is Delta:
                if (
                    output.content
                    and 0 in self._opened
                    and output.index == 0
                    and output.logprobs is None
                    and not output.tool_calls
                    and not output.extra
                ):  # nearly all deltas are plain text: the short way, with the same bytes
                    pieces += (self._content, orjson.dumps(output.content), self._content_end)
                else:
                    self._delta(output, pieces)
            elif type(output) is Finished:
                self._finish(output, pieces)
            else:
                assert type(output) is Started
        return b"".join(pieces)

    def error(self, error: BedplateError) -> bytes:
        """Return the event that ends a stream which failed after its status was sent."""
        return b"data: " + error_body(error) + b"\n\n"

    def _open(self, index: int, pieces: list[bytes], *, text: bool) -> None:
        """Add the chunk with the role; the content of an answer that begins with a call is null."""
        self._opened.add(index)
        role = _ROLE % (b'""' if text else b"null")
        pieces += (self._choice % index, role, _OPEN, self._tail)

    def _delta(self, delta: Delta, pieces: list[bytes]) -> None:
        index = delta.index
        if index not in self._opened:
            self._open(index, pieces, text=bool(delta.content) or not delta.tool_calls)
        fields: JsonObject = dict(delta.extra) if delta.extra else {}
        if delta.content or (delta.logprobs is not None and not delta.tool_calls):
            fields["content"] = delta.content
        if delta.tool_calls:
            fields["tool_calls"] = delta.tool_calls
        if not fields and delta.logprobs is None:
            return
        said = b'"delta":' + orjson.dumps(fields) + b',"logprobs":' + orjson.dumps(delta.logprobs)
        pieces += (self._choice % index, said, _OPEN, self._tail)

    def _finish(self, finished: Finished, pieces: list[bytes]) -> None:
        assert self.finished is None, "a turn ends once"
        self.finished = finished
        for index, reason in enumerate((finished.finish_reason, *finished.others)):
            if index not in self._opened:
                self._open(index, pieces, text=True)
            end = b',"finish_reason":' + orjson.dumps(reason) + b"}"
            pieces += (self._choice % index, _END, end, self._tail)
        if self._usage:
            usage = orjson.dumps(usage_of(finished))
            pieces += (self._head, b'],"usage":', usage, b"}\n\n")
        pieces.append(DONE)
