"""Shape of streams (F15), and that both forms of one answer are equal byte for byte."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bedplate.engines.base import Delta, Finished, Output, Started
from bedplate.errors import EngineLost, EngineProtocolError
from bedplate.gateway.openai.completion import Collector
from bedplate.gateway.openai.stream import DONE, ChunkEncoder, Identity

WHO = Identity("chatcmpl-1", 1_700_000_000, "m", "fp_1")


def end(reason: str = "stop", *others: str) -> Finished:
    return Finished(reason, 7, 3, 5, 12, True, {"role": "assistant"}, others)


def call(index: int, arguments: str, *, name: str = "", call_id: str = "") -> Delta:
    piece: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name:
        piece |= {"id": call_id, "type": "function"}
        piece["function"]["name"] = name
    return Delta(tool_calls=(piece,), tokens=1)


def events(outputs: list[Output], *, usage: bool = False) -> list[dict[str, Any]]:
    data = ChunkEncoder(WHO, include_usage=usage).encode(outputs)
    assert data.endswith(DONE)
    parts = data.split(b"\n\n")
    assert parts[-1] == b""
    assert parts[-2] == b"data: [DONE]"
    assert all(part.startswith(b"data: ") for part in parts[:-1])
    return [orjson.loads(part[6:]) for part in parts[:-2]]


def whole(outputs: list[Output]) -> dict[str, Any]:
    collector = Collector()
    collector.add(outputs)
    loaded: dict[str, Any] = orjson.loads(collector.body(WHO))
    return loaded


def joined(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """Put a stream together as a client does."""
    content: str | None = None
    calls: dict[int, dict[str, str]] = {}
    reason = None
    for choice in (c for chunk in chunks for c in chunk["choices"] if c["index"] == index):
        delta = choice["delta"]
        if delta.get("content") is not None:
            content = (content or "") + delta["content"]
        for piece in delta.get("tool_calls", ()):
            found = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
            found["id"] += piece.get("id", "")
            found["name"] += piece["function"].get("name", "")
            found["arguments"] += piece["function"].get("arguments", "")
        assert reason is None, "nothing follows the finish_reason"
        reason = choice["finish_reason"]
    return {"content": content, "calls": [calls[i] for i in sorted(calls)], "reason": reason}


def said(body: dict[str, Any], index: int = 0) -> dict[str, Any]:
    choice = body["choices"][index]
    calls = [
        {"id": c["id"], "name": c["function"]["name"], "arguments": c["function"]["arguments"]}
        for c in choice["message"].get("tool_calls", ())
    ]
    return {
        "content": choice["message"]["content"],
        "calls": calls,
        "reason": choice["finish_reason"],
    }


TEXT: list[Output] = [
    Started(7, 3),
    Delta("He", tokens=1),
    Delta(""),
    Delta('"\n\\é\u2028', tokens=1),
    end(),
]
ONE_CALL: list[Output] = [
    Started(7, 3),
    call(0, "", name="f", call_id="c0"),
    call(0, '{"a":"\\u00'),
    call(0, "e9 \U0001f600"),
    call(0, '"}'),
    end("tool_calls"),
]
TWO_CALLS: list[Output] = [
    Started(7, 3),
    Delta("I look. ", tokens=2),
    call(0, "{}", name="f", call_id="c0"),
    call(1, '{"q":', name="g", call_id="c1"),
    call(1, "1}"),
    end("tool_calls"),
]
CUT: list[Output] = [Started(7, 3), call(0, '{"a":"lon', name="f", call_id="c0"), end("length")]
EMPTY: list[Output] = [Started(7, 3), end()]


@pytest.mark.parametrize("outputs", [TEXT, ONE_CALL, TWO_CALLS, CUT, EMPTY])
def test_a_stream_put_together_equals_the_unstreamed_answer(outputs: list[Output]) -> None:
    assert joined(events(outputs)) == said(whole(outputs))


@pytest.mark.parametrize("outputs", [TEXT, ONE_CALL, TWO_CALLS, CUT, EMPTY])
def test_role_first_then_pieces_then_one_empty_delta_with_the_reason(outputs: list[Output]) -> None:
    chunks = events(outputs)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (
        len(chunks) - 1
    )
    finished = outputs[-1]
    assert isinstance(finished, Finished)
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == finished.finish_reason


def test_id_and_name_come_in_the_first_piece_of_a_call_only() -> None:
    pieces = [
        piece
        for chunk in events(TWO_CALLS)
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    named = [(piece["index"], piece.get("id")) for piece in pieces]
    assert named == [(0, "c0"), (1, "c1"), (1, None)]


def test_a_cut_call_keeps_its_half_arguments() -> None:
    assert said(whole(CUT))["calls"][0]["arguments"] == '{"a":"lon'


def test_content_is_null_beside_a_call_and_empty_without() -> None:
    assert said(whole(ONE_CALL))["content"] is None
    assert said(whole(EMPTY))["content"] == ""


def test_usage_comes_last_if_asked_and_is_null_before() -> None:
    chunks = events(TEXT, usage=True)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 5, 12)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3
    assert usage == whole(TEXT)["usage"]
    assert all("usage" not in chunk for chunk in events(TEXT))


def test_every_chunk_carries_the_identity() -> None:
    for chunk in events(TWO_CALLS, usage=True):
        assert chunk["id"] == "chatcmpl-1"
        assert chunk["object"] == "chat.completion.chunk"
        assert (chunk["created"], chunk["model"]) == (1_700_000_000, "m")
        assert chunk["system_fingerprint"] == "fp_1"


def test_several_choices_are_kept_apart() -> None:
    outputs: list[Output] = [
        Delta("a", index=0, tokens=1),
        Delta("x", index=1, tokens=1),
        Delta("b", index=0, tokens=1),
        end("stop", "length"),
    ]
    chunks = events(outputs)
    for index, text, reason in ((0, "ab", "stop"), (1, "x", "length")):
        assert joined(chunks, index) == {"content": text, "calls": [], "reason": reason}
        assert said(whole(outputs), index) == {"content": text, "calls": [], "reason": reason}


def test_log_probabilities_travel_with_their_piece() -> None:
    def of(token: str) -> dict[str, Any]:
        item = {"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []}
        return {"content": [item], "refusal": None}

    outputs: list[Output] = [Delta("a", logprobs=of("a")), Delta("", logprobs=of("b")), end()]
    streamed = [c["choices"][0]["logprobs"] for c in events(outputs)]
    assert streamed == [None, of("a"), of("b"), None]
    body = whole(outputs)["choices"][0]["logprobs"]
    assert [item["token"] for item in body["content"]] == ["a", "b"]
    assert body["refusal"] is None


def test_further_fields_of_a_delta_reach_the_client() -> None:
    outputs: list[Output] = [
        Delta(extra={"reasoning_content": "th"}),
        Delta("a", extra={"reasoning_content": "ink"}),
        end(),
    ]
    deltas = [chunk["choices"][0]["delta"] for chunk in events(outputs)]
    assert deltas[1:3] == [
        {"reasoning_content": "th"},
        {"reasoning_content": "ink", "content": "a"},
    ]
    assert whole(outputs)["choices"][0]["message"]["reasoning_content"] == "think"


def test_started_alone_gives_no_byte() -> None:
    assert ChunkEncoder(WHO, include_usage=False).encode([Started(1, 0)]) == b""


def test_bytes_do_not_depend_on_how_outputs_are_grouped() -> None:
    apart = ChunkEncoder(WHO, include_usage=True)
    together = ChunkEncoder(WHO, include_usage=True)
    assert b"".join(apart.encode([one]) for one in TWO_CALLS) == together.encode(TWO_CALLS)


def test_a_choice_without_an_end_is_the_engines_fault() -> None:
    collector = Collector()
    collector.add([Delta("a", index=1), end()])
    with pytest.raises(EngineProtocolError):
        collector.body(WHO)


def test_a_failed_stream_ends_with_an_error_and_no_done() -> None:
    """F16: never a fabricated success."""
    encoder = ChunkEncoder(WHO, include_usage=False)
    data = encoder.encode([Delta("a")]) + encoder.error(EngineLost("gone"))
    last = data.split(b"\n\n")[-2]
    assert orjson.loads(last[6:])["error"]["code"] == "engine_lost"
    assert b"[DONE]" not in data
