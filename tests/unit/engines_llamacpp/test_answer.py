"""Server events to outputs and endings; the event sequences are those that a real server sends."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.engines.base import Delta, Finished, Output, Started
from bedplate.engines.llamacpp.answer import Answer, Delivered, Ending, openai_logprob
from bedplate.engines.llamacpp.fragments import Fragments

FRAGMENTS = Fragments([(44, b"\xe5"), (45, b"\xa5"), (427, b"\xbd")])


def progress(cache: int, processed: int) -> dict[str, Any]:
    return {
        "content": "",
        "tokens": [0],
        "stop": False,
        "tokens_predicted": 0,
        "prompt_progress": {"total": 10, "cache": cache, "processed": processed, "time_ms": 1},
    }


def token(content: str, ids: list[int], count: int, **more: Any) -> dict[str, Any]:
    return {"content": content, "tokens": ids, "stop": False, "tokens_predicted": count, **more}


def final(stop_type: str, count: int, *, cached: int = 4) -> dict[str, Any]:
    return {
        "content": "",
        "stop": True,
        "stop_type": stop_type,
        "tokens_predicted": count,
        "tokens_cached": 10 + count - 1,
        "timings": {"cache_n": cached},
        "id_slot": 0,
    }


def run(
    events: list[dict[str, Any]],
    *,
    together: bool = False,
    tools: bool = False,
    logprobs: int | None = None,
    earlier: Delivered | None = None,
) -> tuple[list[Output], Ending | None]:
    answer = Answer(
        prompt_tokens=10,
        earlier=earlier or Delivered(),
        fragments=FRAGMENTS,
        tools=tools,
        logprobs=logprobs,
    )
    outputs: list[Output] = []
    for batch in [events] if together else [[event] for event in events]:
        outputs += answer.feed(batch)
    return outputs, answer.ending


def text_of(outputs: list[Output]) -> str:
    return "".join(output.content for output in outputs if isinstance(output, Delta))


PLAIN = [progress(4, 4), progress(4, 10), token("a", [7], 1), token("b", [8], 2)]


@pytest.mark.parametrize("together", [False, True])
def test_started_deltas_finished(together: bool) -> None:
    outputs, ending = run([*PLAIN, final("limit", 2)], together=together)
    assert outputs[0] == Started(10, 4)
    assert text_of(outputs) == "ab"
    assert sum(output.tokens for output in outputs if isinstance(output, Delta)) == 2
    assert outputs[-1] == Finished(
        finish_reason="length",
        prompt_tokens=10,
        cached_tokens=4,
        out_tokens=2,
        kv_tokens=11,
        exact=True,
        message={"role": "assistant", "content": "ab"},
    )
    assert len(outputs) == (3 if together else 4)
    assert ending == Ending(ids=[7, 8], whole=True, fillable=False, tail=8, kv_tokens=11)


def test_progress_alone_gives_nothing() -> None:
    assert run([progress(0, 0), progress(0, 5)]) == ([], None)


def test_measured_cache_of_the_end_counts() -> None:
    outputs, _ = run([*PLAIN, final("limit", 2, cached=0)])
    assert isinstance(outputs[-1], Finished)
    assert outputs[-1].cached_tokens == 0


def test_end_token_is_no_part_of_the_answer() -> None:
    outputs, ending = run([*PLAIN, token("", [2], 3), final("eos", 3)])
    assert ending == Ending(ids=[7, 8], whole=True, fillable=False, tail=-1, kv_tokens=12)
    assert isinstance(outputs[-1], Finished)
    assert (outputs[-1].finish_reason, outputs[-1].out_tokens) == ("stop", 3)


def test_split_character_makes_ids_unknown_but_fillable() -> None:
    events = [token("é", [5], 1), token("你", [398], 4), token("", [2], 5), final("eos", 5)]
    outputs, ending = run(events)
    assert text_of(outputs) == "é你"
    assert sum(output.tokens for output in outputs if isinstance(output, Delta)) == 5
    assert ending == Ending(ids=[5], whole=False, fillable=True, tail=-1, kv_tokens=14)


def test_split_character_whose_parts_are_known_leaves_whole_ids() -> None:
    events = [token("é", [5], 1), token("好", [427], 4), final("limit", 4)]
    _, ending = run(events)
    assert ending == Ending([5, 44, 45, 427], whole=True, fillable=False, tail=427, kv_tokens=13)


def test_split_character_at_the_limit_knows_its_last_token() -> None:
    _, ending = run([token("é", [5], 1), token("你", [398], 4), final("limit", 4)])
    assert ending == Ending(ids=[5], whole=False, fillable=True, tail=398, kv_tokens=13)


def test_half_a_character_at_the_limit_is_in_no_text_and_no_transcript() -> None:
    outputs, ending = run([token("é", [5], 1), final("limit", 3)])
    assert text_of(outputs) == "é"
    assert isinstance(outputs[-1], Finished)
    assert outputs[-1].out_tokens == 3
    assert ending == Ending(ids=[5], whole=True, fillable=False, tail=-1, kv_tokens=12)


def test_stop_inside_a_token_ends_before_that_token() -> None:
    events = [
        token("on", [1], 1),
        token("", [2], 2),
        token("", [3], 3),
        token("U", [4], 4),
        final("word", 4),
    ]
    outputs, ending = run(events)
    assert text_of(outputs) == "onU"
    assert ending is not None
    assert (ending.ids, ending.whole, ending.fillable) == ([1], False, False)


def test_stop_at_a_token_leaves_whole_ids() -> None:
    _, ending = run([token("on", [1], 1), token("", [2], 2), token("", [3], 3), final("word", 3)])
    assert ending is not None
    assert (ending.ids, ending.whole) == ([1], True)


def test_text_held_back_at_the_limit_is_not_in_the_transcript() -> None:
    _, ending = run([token("on", [1], 1), token("", [2], 2), final("limit", 2)])
    assert ending is not None
    assert (ending.ids, ending.whole, ending.fillable) == ([1], False, False)


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def call_events(text: str) -> list[dict[str, Any]]:
    return [token(letter, [number], number + 1) for number, letter in enumerate(text)]


def test_call_becomes_tool_calls() -> None:
    events = [*call_events(CALL), token("", [2], len(CALL) + 1), final("eos", len(CALL) + 1)]
    outputs, ending = run(events, tools=True)
    end = outputs[-1]
    assert isinstance(end, Finished)
    assert end.finish_reason == "tool_calls"
    assert end.message["content"] is None
    (call,) = end.message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert text_of(outputs) == ""
    assert ending is not None
    assert ending.whole


def test_call_cut_at_the_limit_is_length_and_stays_cut() -> None:
    text = CALL[: CALL.index("1}") + 1]
    outputs, _ = run([*call_events(text), final("limit", len(text))], tools=True)
    end = outputs[-1]
    assert isinstance(end, Finished)
    assert end.finish_reason == "length"
    assert end.message["tool_calls"][0]["function"]["arguments"] == '{"a": 1'


def test_without_tools_a_call_is_text() -> None:
    outputs, _ = run([*call_events(CALL), final("limit", len(CALL))])
    assert text_of(outputs) == CALL


def test_resumed_run_adds_to_what_was_delivered() -> None:
    earlier = Delivered()
    earlier.add("ab", tokens=2, ids=[7, 8], exact=True)
    outputs, ending = run([token("c", [9], 1), final("limit", 1)], earlier=earlier)
    assert text_of(outputs) == "c"
    end = outputs[-1]
    assert isinstance(end, Finished)
    assert end.message["content"] == "abc"
    assert end.out_tokens == 3
    assert ending is not None
    assert (ending.ids, ending.whole) == ([7, 8, 9], True)
    assert (earlier.text, earlier.tokens, earlier.ids) == ("abc", 3, [7, 8, 9])


def test_cut_of_what_was_delivered_goes_back_to_a_delta() -> None:
    delivered = Delivered()
    delivered.add("ab", tokens=2, ids=[7, 8], exact=True)
    delivered.add("", tokens=1, ids=[], exact=True)
    delivered.add("c", tokens=1, ids=[9, 10], exact=True)
    delivered.cut(3)
    assert (delivered.text, delivered.tokens, delivered.ids) == ("ab", 3, [7, 8])
    delivered.cut(1)
    assert (delivered.text, delivered.tokens, delivered.ids) == ("", 0, [])


def logprob(content: str, value: float, number: int = 5) -> dict[str, Any]:
    return {
        "id": number,
        "token": content,
        "bytes": list(content.encode()),
        "logprob": value,
        "top_logprobs": [
            {"id": number, "token": "real", "bytes": [1], "logprob": value},
            {"id": 6, "token": "other", "bytes": [2], "logprob": -3.4e38},
        ],
    }


def test_logprobs_in_openai_form() -> None:
    events = [token("x", [5], 1, completion_probabilities=[logprob("x", -0.5)])]
    outputs, _ = run([*events, final("limit", 1)], logprobs=2)
    delta = outputs[1]
    assert isinstance(delta, Delta)
    assert delta.logprobs == {
        "content": [
            {
                "token": "x",
                "logprob": -0.5,
                "bytes": [120],
                "top_logprobs": [
                    {"token": "real", "logprob": -0.5, "bytes": [1]},
                    {"token": "other", "logprob": -9999.0, "bytes": [2]},
                ],
            }
        ],
        "refusal": None,
    }


def test_logprob_of_held_text_takes_its_name_from_the_alternatives() -> None:
    entry = openai_logprob(logprob("", -0.5), 0)
    assert (entry["token"], entry["top_logprobs"]) == ("real", [])
