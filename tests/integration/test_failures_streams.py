"""F15 and F16 on the running service: what a stream may look like, and what it does when cards die.

The endpoint's part of F15 (ids, escapes, `usage: null`) stands in tests/conformance; here one whole
way from an odd endpoint to an official client, and tool calls of a real model.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bedplate.core.limits import BREAKER_STRIKES
from bedplate.journal import Reader
from tests.fakes.openai_engine import Behaviour, FakeEngine, ToolCall
from tests.fakes.tiny_gguf import Shape, write
from tests.integration.served import CHAT, Served, events_of, text_of, tiny_cards, until
from tests.integration.test_clients import TOOL

ASK = {"role": "user", "content": "What is the balance of account 42?"}


def call(served: Served, **body: Any) -> Any:
    """Call as a session of its own; the response of requests."""
    headers = {"X-Session-Id": str(uuid.uuid4())}
    body = {"messages": [ASK], "temperature": 0, **body}
    return served.http("POST", CHAT, json=body, headers=headers, stream=bool(body.get("stream")))


def choices_of(payloads: list[str]) -> list[dict[str, Any]]:
    return [choice for text in payloads[:-1] for choice in json.loads(text)["choices"]]


def calls_of(payloads: list[str]) -> list[dict[str, Any]]:
    """Put the tool calls of a stream together as the official clients do."""
    calls: dict[int, dict[str, Any]] = {}
    for choice in choices_of(payloads):
        for delta in choice["delta"].get("tool_calls", ()):
            known = calls.setdefault(delta["index"], {"function": {"arguments": ""}})
            for name, value in delta.items():
                if name not in ("function", "index"):
                    assert name not in known, f"{name} is sent once, in the first piece"
                    known[name] = value
            part = delta["function"]
            if "name" in part:
                assert "name" not in known["function"]
                known["function"]["name"] = part["name"]
            known["function"]["arguments"] += part.get("arguments", "")
    return [calls[index] for index in sorted(calls)]


def check_ends(payloads: list[str], reason: str) -> None:
    """F15: the reason comes after the arguments, alone, in an empty delta; then `[DONE]`."""
    assert payloads[-1] == "[DONE]"
    choices = choices_of(payloads)
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, reason)


# F15.


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("split_bytes", [0, 7])
def test_f15_calls_split_anywhere_are_whole_and_the_same_unstreamed(
    served_fake: Served, upstream: FakeEngine, interleaved: bool, split_bytes: int
) -> None:
    """F15: two calls, cut in UTF-8 and in an escape; id in the first piece only; null usage."""
    first, second = '{"city":"Zürich","note":"a\\u00e9\\n"}', '{"account":"第7条"}'
    upstream.default = Behaviour(
        tool_calls=(
            ToolCall("look_up", ('{"city":"Z', 'ürich","note":"a\\u00', "e9\\", 'n"}'), "call_a"),
            ToolCall("look_up", ('{"acc', 'ount":"第', '7条"}'), "call_b"),
        ),
        interleaved=interleaved,
        split_bytes=split_bytes,
        usage_null=True,
    )
    body = {"model": "fake", "tools": [TOOL]}
    payloads = events_of(call(served_fake, **body, stream=True).content)
    check_ends(payloads, "tool_calls")
    streamed = calls_of(payloads)
    assert [one["function"]["arguments"] for one in streamed] == [first, second]
    whole = call(served_fake, **body).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["tool_calls"] == streamed


def test_f15_a_call_cut_at_the_limit_is_passed_on_as_it_is(
    served_fake: Served, upstream: FakeEngine
) -> None:
    """F15: never an invented `{}` or an ending that the model did not write."""
    upstream.default = Behaviour(
        tool_calls=(ToolCall("look_up", ('{"account":', '"4')),), finish_reason="length"
    )
    body = {"model": "fake", "tools": [TOOL], "max_tokens": 32}
    payloads = events_of(call(served_fake, **body, stream=True).content)
    check_ends(payloads, "length")
    assert calls_of(payloads)[0]["function"]["arguments"] == '{"account":"4'
    whole = call(served_fake, **body).json()["choices"][0]
    assert whole["finish_reason"] == "length"
    assert whole["message"]["tool_calls"] == calls_of(payloads)


@pytest.mark.parametrize("limit", [8, 32, 200])
@pytest.mark.parametrize("tools", [False, True])
def test_f15_on_cards_both_forms_are_the_same_bytes(
    served_tiny: Served, tools: bool, limit: int
) -> None:
    """F15 with a real model: what a stream adds up to is the unstreamed answer, cut or not."""
    body: dict[str, Any] = {"model": "tiny", "max_tokens": limit}
    if tools:
        body |= {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    whole = call(served_tiny, **body).json()["choices"][0]
    payloads = events_of(call(served_tiny, **body, stream=True).content)
    check_ends(payloads, whole["finish_reason"])
    assert text_of(payloads) == (whole["message"]["content"] or "")
    got = [one["function"] for one in calls_of(payloads)]
    assert got == [one["function"] for one in whole["message"].get("tool_calls", ())]
    if tools and limit == 200:
        assert whole["finish_reason"] == "tool_calls"


# F16, an endpoint.


@pytest.fixture
def trusted(served_fake: Served, upstream: FakeEngine) -> FakeEngine:
    """The endpoint, after good answers: no breaker holds what it failed in tests before."""
    for _ in range(BREAKER_STRIKES):
        until(lambda: call(served_fake, model="fake").status_code == 200)
    upstream.log.clear()
    return upstream


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [-1, 0])
def test_f16a_an_endpoint_that_dies_before_content_is_a_real_error(
    served_fake: Served, trusted: FakeEngine, after: int, stream: bool
) -> None:
    """F16 (a): a status of 5xx, streamed too, and in OpenAI's form."""
    trusted.default = Behaviour(die_after=after)
    answer = call(served_fake, model="fake", stream=stream)
    assert answer.status_code == 502
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "engine_lost"
    until(served_fake.at_rest)


@pytest.mark.parametrize("stream", [False, True])
def test_f16b_an_endpoint_that_dies_after_ten_tokens_is_no_success(
    served_fake: Served, trusted: FakeEngine, stream: bool
) -> None:
    """F16 (b): an error event and no `[DONE]`; unstreamed an error, never half an answer."""
    trusted.default = Behaviour(chunks=30, chunk_delay_s=0.01, die_after=11)
    answer = call(served_fake, model="fake", stream=stream)
    if not stream:
        assert answer.status_code == 502
        assert set(answer.json()) == {"error"}
        return
    assert answer.status_code == 200
    payloads = events_of(answer.content)
    assert "[DONE]" not in payloads
    *chunks, last = map(json.loads, payloads)
    assert last["error"]["code"] == "engine_lost"
    assert all(one["finish_reason"] is None for chunk in chunks for one in chunk["choices"])
    assert 1 <= len(text_of(payloads).split()) <= 11
    assert len(trusted.chats()) == 1, "nothing is sent twice to an endpoint that took it"
    until(served_fake.at_rest)


# F16, cards.


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a service whose cards the tests of this module kill; slow ones, to be killed in time."""
    folder = tmp_path_factory.mktemp("doomed")
    model = write(folder / "slow.gguf", Shape(layers=16, hidden=256))
    with Served(folder / "served", tiny_cards(model)) as served:
        yield served
        served.stop()
        served.check_books()


@pytest.fixture
def cards_up(doomed: Served) -> Served:
    """Return the service once both cards are up."""
    until(lambda: all(card["up"] for card in doomed.state()["cards"]), within_s=60)
    return doomed


def running_card(served: Served) -> str:
    """Return the card that runs the one turn, as soon as one does."""

    def running() -> list[str]:
        return [card["card"] for card in served.state()["cards"] if card["up"] and card["running"]]

    return until(running, within_s=60)[0]


def read_text(lines: Iterator[str], characters: int) -> list[str]:
    """Read events until so much text came; return their payloads."""
    seen: list[str] = []
    while len(text_of(seen)) < characters:
        line = next(lines, None)
        assert line is not None, seen
        if line.startswith("data: "):
            seen.append(line[6:])
    return seen


def lines_of(answer: Any) -> Iterator[str]:
    return (line.decode() for line in answer.iter_lines(chunk_size=1))


def test_f16a_a_card_that_dies_before_content_is_replaced(cards_up: Served) -> None:
    """F16 (a): a clean failover: the other card answers, once, and the client sees no error."""
    text = f"case {uuid.uuid4()} " + "The adviser writes a note. " * 100
    results: list[Any] = []
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 16}
    thread = threading.Thread(target=lambda: results.append(call(cards_up, **body)))
    thread.start()
    cards_up.kill_card(running_card(cards_up))
    thread.join(60)
    (answer,) = results
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] <= 16
    turn = answer.headers["x-bedplate-turn"]
    row = until(lambda: cards_up.rows().get(turn))
    assert row["attempts"] == 2


def test_f16b_plain_text_goes_on_exactly_where_it_stopped(cards_up: Served) -> None:
    """F16 (b): nothing repeated, nothing missing: the stream is what the journal holds."""
    body = {"model": "tiny", "max_tokens": 400, "ignore_eos": True, "stream": True}
    answer = call(cards_up, **body, stream_options={"include_usage": True})
    lines = lines_of(answer)
    seen = read_text(lines, 40)
    cards_up.kill_card(running_card(cards_up))
    seen += [line[6:] for line in lines if line.startswith("data: ")]
    assert seen[-1] == "[DONE]"
    turn = answer.headers["x-bedplate-turn"]
    row = until(lambda: cards_up.rows().get(turn))
    assert (row["attempts"], row["status"], row["out_tokens"]) == (2, "length", 400)
    usage = next(u for u in (json.loads(one).get("usage") for one in seen[:-1]) if u)
    assert usage["completion_tokens"] == 400
    with Reader(cards_up.data / "journal") as reader:
        note = next(
            record
            for record in reader.read(kinds=("recognised",))
            if record.body.get("turn") == turn
        )
        kept = json.loads(reader.content(note.body["content"]) or b"")
    assert kept["content"] == text_of(seen)


@pytest.mark.parametrize("stream", [False, True])
def test_f16b_a_constrained_answer_ends_with_an_explicit_error(
    cards_up: Served, stream: bool
) -> None:
    """F16 (b): a tool call cannot be continued: an error, and what was sent is no success."""
    word = {"type": "string", "pattern": "^[a-z]{900}$"}
    schema = {"type": "array", "items": word, "minItems": 4, "maxItems": 4}
    form = {"type": "json_schema", "json_schema": {"name": "long", "schema": schema}}
    body = {"model": "tiny", "max_tokens": 3_000, "response_format": form, "stream": stream}
    if not stream:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(call(cards_up, **body)))
        known = len(cards_up.records("TokensEmitted"))
        thread.start()
        until(lambda: len(cards_up.records("TokensEmitted")) > known)
        cards_up.kill_card(running_card(cards_up))
        thread.join(60)
        assert results[0].status_code == 502, results[0].text
        return
    lines = lines_of(call(cards_up, **body))
    seen = read_text(lines, 20)
    cards_up.kill_card(running_card(cards_up))
    seen += [line[6:] for line in lines if line.startswith("data: ")]
    assert "[DONE]" not in seen
    assert json.loads(seen[-1])["error"]["code"] == "engine_lost"
    chunks = map(json.loads, seen[:-1])
    assert all(one["finish_reason"] is None for chunk in chunks for one in chunk["choices"])


def test_f16c_when_every_card_dies_it_is_never_a_success(cards_up: Served) -> None:
    """F16 (c): each card that takes the turn dies too, until the core gives up and says so."""
    body = {"model": "tiny", "max_tokens": 2_000, "ignore_eos": True, "stream": True}
    answer = call(cards_up, **body)
    lines = lines_of(answer)
    seen = read_text(lines, 20)
    over = threading.Event()

    def kill_all() -> None:
        while not over.is_set():
            for card in cards_up.state()["cards"]:
                if card["up"] and card["running"]:
                    with contextlib.suppress(ProcessLookupError):  # killed, and not yet noticed
                        cards_up.kill_card(card["card"])

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        seen += [line[6:] for line in lines if line.startswith("data: ")]
    finally:
        over.set()
        killer.join()
    assert "[DONE]" not in seen
    assert json.loads(seen[-1])["error"]["code"] == "engine_lost"
    turn = answer.headers["x-bedplate-turn"]
    row = until(lambda: cards_up.rows().get(turn))
    assert (row["status"], row["attempts"]) == ("error", 3)
    assert len(text_of(seen)) > 0
