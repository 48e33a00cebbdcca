"""Tool calls come out in one shape, with argument text untouched."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.engines.openai.tool_calls import CALLS_MAX, ToolCalls
from bedplate.errors import EngineProtocolError


def piece(
    index: int | None = None, ident: str | None = None, name: str | None = None, args: Any = None
) -> dict[str, Any]:
    made: dict[str, Any] = {"function": {}}
    if index is not None:
        made["index"] = index
    if ident is not None:
        made["id"] = ident
    if name is not None:
        made["function"]["name"] = name
    if args is not None:
        made["function"]["arguments"] = args
    return made


def summary(calls: ToolCalls) -> list[tuple[str, str, str]]:
    return [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in calls.whole()
    ]


def test_the_first_delta_names_the_call_and_later_ones_only_add() -> None:
    calls = ToolCalls()
    sent = [
        calls.feed([piece(0, "a", "f", "")]),
        calls.feed([piece(0, args='{"x"')]),
        calls.feed([piece(0, args=": 1}")]),
    ]
    assert sent == [
        [
            {
                "index": 0,
                "id": "a",
                "type": "function",
                "function": {"name": "f", "arguments": ""},
            }
        ],
        [{"index": 0, "function": {"arguments": '{"x"'}}],
        [{"index": 0, "function": {"arguments": ": 1}"}}],
    ]
    assert summary(calls) == [("a", "f", '{"x": 1}')]


def test_parallel_calls_do_not_mix() -> None:
    calls = ToolCalls()
    calls.feed([piece(0, "a", "f", "{"), piece(1, "b", "g", "[")])
    calls.feed([piece(1, args="]"), piece(0, args="}")])
    assert summary(calls) == [("a", "f", "{}"), ("b", "g", "[]")]


def test_id_and_name_that_a_server_repeats_are_sent_once() -> None:
    calls = ToolCalls()
    calls.feed([piece(0, "a", "f", "{")])
    assert calls.feed([piece(0, "a", "f", "}")]) == [{"index": 0, "function": {"arguments": "}"}}]
    assert calls.feed([piece(0, "a", "f", "")]) == []
    assert summary(calls) == [("a", "f", "{}")]


def test_a_missing_id_is_made_once_and_stays() -> None:
    calls = ToolCalls()
    (first,) = calls.feed([piece(0, None, "f", "{}")])
    calls.feed([piece(0, "late", args="")])
    (other,) = calls.feed([piece(1, None, "f", "{}")])
    assert summary(calls)[0][0] == first["id"]
    assert first["id"].startswith("call_")
    assert first["id"] != other["id"]


def test_arguments_before_the_name_wait_for_it() -> None:
    calls = ToolCalls()
    assert calls.feed([piece(0, "a", args='{"x"')]) == []
    (delta,) = calls.feed([piece(0, name="f", args=": 1")])
    assert delta["function"] == {"name": "f", "arguments": '{"x": 1'}


def test_a_missing_index_follows_the_id_or_the_latest_call() -> None:
    calls = ToolCalls()
    calls.feed([piece(None, "a", "f", "{"), piece(None, "b", "g", "[")])
    calls.feed([piece(None, None, args="]")])
    calls.feed([piece(None, "a", args="}")])
    assert summary(calls) == [("a", "f", "{}"), ("b", "g", "[]")]


def test_indexes_that_do_not_begin_at_nought_are_counted_anew() -> None:
    calls = ToolCalls()
    sent = calls.feed([piece(3, "a", "f", ""), piece(7, "b", "g", "")])
    assert [delta["index"] for delta in sent] == [0, 1]


def test_arguments_given_as_an_object_become_text() -> None:
    calls = ToolCalls()
    calls.feed([piece(0, "a", "f", {"x": [1]})])
    assert summary(calls) == [("a", "f", '{"x":[1]}')]


def test_cut_or_missing_arguments_are_never_completed() -> None:
    calls = ToolCalls()
    calls.feed([piece(0, "a", "f"), piece(1, "b", "g", '{"x')])
    assert summary(calls) == [("a", "f", ""), ("b", "g", '{"x')]


@pytest.mark.parametrize("bad", ["text", [5], [{"index": 0, "function": 5}], [piece(0, args=5)]])
def test_what_is_no_tool_call_is_an_error(bad: Any) -> None:
    with pytest.raises(EngineProtocolError):
        ToolCalls().feed(bad)


def test_a_call_without_a_name_is_an_error_at_the_end() -> None:
    calls = ToolCalls()
    calls.feed([piece(0, "a", args="{}")])
    with pytest.raises(EngineProtocolError, match="without a name"):
        calls.whole()


def test_calls_are_bounded() -> None:
    calls = ToolCalls()
    with pytest.raises(EngineProtocolError, match=str(CALLS_MAX)):
        calls.feed([piece(at, f"c{at}", "f", "") for at in range(CALLS_MAX + 1)])
