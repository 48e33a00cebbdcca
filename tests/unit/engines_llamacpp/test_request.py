"""What is refused by name, and the body that the server gets."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core.ids import BranchId, CardId, ModelId, SessionId, SlotId, TenantId, TurnId
from bedplate.core.limits import BATCH
from bedplate.engines.base import ChatRequest, Lineage, Prompt, TurnRun
from bedplate.engines.llamacpp.grammar import grammar_for
from bedplate.engines.llamacpp.grammars import Grammars
from bedplate.engines.llamacpp.prompting import PromptIds
from bedplate.engines.llamacpp.request import (
    check_request,
    completion_body,
    extends_slot,
    is_resumable,
    line_to_keep,
    reads_calls,
)
from bedplate.engines.llamacpp.transcript import pack
from bedplate.errors import InvalidRequest

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
OTHER = {"type": "function", "function": {"name": 'say "hi"'}}


def request(**more: Any) -> ChatRequest:
    return ChatRequest(model=ModelId("m"), messages=({"role": "user", "content": "x"},), **more)


def body(chat: ChatRequest, *, stops: tuple[str, ...] = (), limit: int = 32) -> dict[str, Any]:
    run = resumed(chat, limit=limit)
    assert isinstance(run.prompt.payload, PromptIds)
    return completion_body(run, run.prompt.payload, stops)


def resumed(chat: ChatRequest, *, limit: int = 32, lane: int = 0, exact: bool = True) -> TurnRun:
    """A turn of three prompt tokens that gave two."""
    payload = PromptIds(b"", b"", [], pack([1, 2, 3]), 0, grammar_for(chat))
    payload.delivered.add("ab", tokens=2, ids=[8, 9], exact=exact)
    lineage = Lineage(TenantId("t"), SessionId("s"), BranchId(0), -1, lane)
    return TurnRun(
        turn=TurnId("t1"),
        attempt=1,
        lineage=lineage,
        request=chat,
        prompt=Prompt(3, 0, True, True, payload),
        card=CardId("c"),
        slot=SlotId(2),
        limit_tokens=limit,
        expect_cached_tokens=0,
        loaded=False,
        resume_tokens=2,
        deadline_s=1.0,
        delivered="ab",
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"extra": {"mirostat": 2}}, "mirostat"),
        ({"extra": {"top_k": 5, "guided_regex": "x"}}, "guided_regex"),
        ({"tools": ({"type": "web_search"},)}, "tools[0]"),
        ({"tools": (TOOL, {"type": "function", "function": {}})}, "tools[1].function.name"),
        ({"tool_choice": "required"}, "tools"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {str(1 << 70): 1}}, "logit_bias"),
        ({"logit_bias": {"1": float("nan")}}, "logit_bias"),
        ({"logit_bias": {str(n): 1 for n in range(1_025)}}, "logit_bias"),
        ({"extra": {"repeat_last_n": 500_000_000}}, "repeat_last_n"),
        ({"extra": {"repeat_last_n": -2}}, "repeat_last_n"),
        ({"extra": {"top_k": 1 << 62}}, "top_k"),
        ({"extra": {"top_k": 1.5}}, "top_k"),
        ({"extra": {"top_k": True}}, "top_k"),
        ({"extra": {"min_p": 1.1}}, "min_p"),
        ({"extra": {"typical_p": float("nan")}}, "typical_p"),
        ({"extra": {"repeat_penalty": "1"}}, "repeat_penalty"),
        ({"extra": {"ignore_eos": 1}}, "ignore_eos"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(request(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "objekt"}},
                }
            },
            "response_format",
        ),
        (
            {
                "tools": (
                    {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}},
                ),
                "tool_choice": "required",
            },
            "tools",
        ),
        (
            {
                "tools": ({"type": "function", "function": {"name": "f", "parameters": "x"}},),
                "tool_choice": "required",
            },
            "tools",
        ),
        (
            {
                "tools": (TOOL,),
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            "tool_choice",
        ),
    ],
)
async def test_what_no_grammar_can_hold_is_refused(fields: dict[str, Any], param: str) -> None:
    grammars = Grammars()
    with pytest.raises(InvalidRequest) as caught:
        await grammars.admit(request(**fields), TenantId("acme"))
    await grammars.close()
    assert caught.value.param == param
    assert "%llguidance" not in caught.value.message


def test_free_text_has_no_grammar() -> None:
    assert grammar_for(request()) is None
    assert grammar_for(request(tools=(TOOL,))) is None
    assert grammar_for(request(tools=(TOOL,), tool_choice="none")) is None
    assert grammar_for(request(response_format={"type": "text"})) is None


NAMED = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize(
    ("choice", "parallel", "several"),
    [
        ("required", None, False),
        ("required", False, False),
        ("required", True, True),
        (NAMED, None, False),
        (NAMED, False, False),
        (NAMED, True, False),
    ],
)
def test_a_call_that_must_be_is_one_unless_the_client_asks_for_several(
    choice: str | dict[str, Any], parallel: bool | None, several: bool
) -> None:
    asked = request(tools=(TOOL, OTHER), tool_choice=choice, parallel_tool_calls=parallel)
    grammar = grammar_for(asked)
    assert grammar is not None
    start = 'start: call ("\\n" call){0,15}' if several else "start: call"
    assert grammar.splitlines()[1] == start
    assert ("call: call_0 | call_1" in grammar) == (choice == "required")
    assert ("call_1" in grammar) == (choice == "required")


def test_response_format_beside_tools_leaves_the_choice() -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    both = grammar_for(request(tools=(TOOL,), response_format=schema))
    assert both is not None
    assert "start: answer | calls" in both


def test_body_continues_after_what_was_delivered() -> None:
    sent = body(request())
    assert sent["prompt"] == [1, 2, 3, 8, 9]
    assert sent["n_predict"] == 30
    assert sent["id_slot"] == 2
    assert sent["cache_prompt"]
    assert sent["stream"]
    assert sent["return_progress"]


def test_only_what_was_asked_for_is_sent() -> None:
    sent = body(request())
    for name in ("temperature", "top_p", "seed", "stop", "n_probs", "grammar", "logit_bias"):
        assert name not in sent


def test_sampling_is_passed_on() -> None:
    sent = body(
        request(
            temperature=0.0,
            top_p=0.5,
            seed=-1,
            stop=("END",),
            logprobs=True,
            frequency_penalty=0.5,
            logit_bias={"5": -100},
            extra={"top_k": 3},
        ),
        stops=("<|im_end|>",),
    )
    assert (sent["temperature"], sent["top_p"], sent["top_k"]) == (0.0, 0.5, 3)
    assert sent["seed"] != 2**32 - 1
    assert sent["stop"] == ["END", "<|im_end|>"]
    assert sent["n_probs"] == 1
    assert sent["logit_bias"] == [[5, -100.0]]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"frequency_penalty": 0.5}, 5 + 30),
        ({"presence_penalty": -1.0}, 5 + 30),
        ({"frequency_penalty": 0.5, "extra": {"repeat_last_n": 64}}, 64),
        ({"extra": {"repeat_penalty": 1.1, "repeat_last_n": -1}}, 5 + 30),
        ({"frequency_penalty": 0.0}, None),
    ],
)
def test_penalties_are_for_the_whole_sequence(fields: dict[str, Any], expected: int | None) -> None:
    """The server takes a length only; five tokens are there and thirty may come."""
    assert body(request(**fields)).get("repeat_last_n") == expected


def test_calls_are_read_unless_they_are_ruled_out() -> None:
    assert reads_calls(request(tools=(TOOL,)))
    assert not reads_calls(request(tools=(TOOL,), tool_choice="none"))
    assert not reads_calls(request())


def test_only_plain_text_may_go_on_elsewhere() -> None:
    assert is_resumable(request(), None)
    assert not is_resumable(request(), "grammar")
    assert not is_resumable(request(tools=(TOOL,)), None)
    assert not is_resumable(request(logprobs=True), None)
    assert not is_resumable(request(seed=7), None)
    assert not is_resumable(request(seed=0, temperature=0.7), None)
    assert is_resumable(request(seed=7, temperature=0.0), None)
    assert is_resumable(request(temperature=0.7, presence_penalty=1.0), None)


def test_a_turn_that_may_make_way_leaves_all_but_its_last_token() -> None:
    assert line_to_keep(resumed(request(), lane=BATCH)) == pack([1, 2, 3, 8])
    assert line_to_keep(resumed(request())) == b"", "an interactive turn makes no way"
    assert line_to_keep(resumed(request(), lane=BATCH, exact=False)) == b""
    other = resumed(request(), lane=BATCH)
    other.prompt.resumable = False
    assert line_to_keep(other) == b""


def test_a_slot_is_reused_without_a_cut_only_where_the_prompt_begins_with_all_of_it() -> None:
    run = resumed(request())
    payload = run.prompt.payload
    assert isinstance(payload, PromptIds)
    assert not extends_slot(run, payload), "the core expects nothing there"
    run.expect_cached_tokens = 2
    assert extends_slot(run, payload)
    payload.delivered.exact = False
    assert not extends_slot(run, payload), "other ids may stand for the same text"
    run.resume_tokens = 0
    assert extends_slot(run, payload)
    run.expect_cached_tokens, run.prefix_tokens = 0, 2
    assert extends_slot(run, payload), "its opening was computed in this slot just now"
