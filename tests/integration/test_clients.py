"""Clients as they are published, unmodified, against `bedplate serve` on embedded cards.

Each runs a session of three turns, each of which calls a tool. The model's weights are random, so
`tool_choice` is `required`: the call is forced by the tool's schema, on a real engine.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, Literal

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from tests.integration.served import Served

TURNS = 3
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Return the balance of an account.",
        "parameters": {
            "type": "object",
            "properties": {"account": {"type": "string", "enum": ["7", "42"]}},
            "required": ["account"],
            "additionalProperties": False,
        },
    },
}


def options(**more: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 200,
        "temperature": 0,
        **more,
    }


def question() -> dict[str, Any]:
    """Return a first message that no other test sends, so that the session is a new one."""
    return {"role": "user", "content": f"Case {uuid.uuid4()}: what is the balance of account 42?"}


def answered(message: Any) -> dict[str, Any]:
    """Return what the tool says to the one call of an answer."""
    (call,) = message.tool_calls
    assert call.function.name == "look_up"
    account = json.loads(call.function.arguments)
    assert account in ({"account": "7"}, {"account": "42"})
    content = f"The balance of account {account['account']} is 1,000 euros."
    return {"role": "tool", "tool_call_id": call.id, "content": content}


class Uses:
    """The uses that a client was told, compared with each other and with the journal."""

    def __init__(self) -> None:
        self.prompt: list[int] = []
        self.cached: list[int] = []
        self.out: list[int] = []

    def add(self, usage: Any) -> None:
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        self.prompt.append(usage.prompt_tokens)
        self.cached.append(usage.prompt_tokens_details.cached_tokens)
        self.out.append(usage.completion_tokens)

    def check(self, served: Served, session: str) -> None:
        assert len(self.prompt) == TURNS
        assert self.cached[0] == 0
        for turn in range(1, TURNS):
            # All but the last sampled token of the turn before stands in the slot.
            assert self.cached[turn] == self.prompt[turn - 1] + self.out[turn - 1] - 1
        rows = [record for record in served.records("usage") if record.session == session]
        rows = [record for record in rows if record.body["turn"]]
        assert [row.tenant for row in rows] == ["acme"] * TURNS
        told = list(zip(self.prompt, self.cached, self.out, strict=True))
        names = ("prompt_tokens", "cached_tokens", "out_tokens")
        assert [tuple(row.body[name] for name in names) for row in rows] == told
        assert served.session(session)["branches"][0]["turns"] == 0


def close(served: Served, session: str) -> None:
    """End the session as a client does, and see that it is gone."""
    answer = served.http("DELETE", f"/v1/sessions/{session}")
    assert answer.json() == {"id": session, "object": "session", "deleted": True}
    assert served.http("GET", f"/v1/sessions/{session}").status_code == 404
    assert served.http("DELETE", f"/v1/sessions/{session}").status_code == 404


def test_the_openai_client_runs_a_tool_session(served_tiny: Served) -> None:
    client = served_tiny.client()
    history: list[Any] = [question()]
    sessions, uses = set(), Uses()
    for _ in range(TURNS):
        raw = client.chat.completions.with_raw_response.create(messages=history, **options())
        sessions.add(raw.headers["x-session-id"])
        answer = raw.parse()
        assert answer.choices[0].finish_reason == "tool_calls"
        uses.add(answer.usage)
        message = answer.choices[0].message
        history += [message, answered(message)]
    (session,) = sessions
    uses.check(served_tiny, session)
    close(served_tiny, session)


async def test_the_async_client_runs_a_streamed_tool_session(served_tiny: Served) -> None:
    async with served_tiny.aclient() as client:
        history: list[Any] = [question()]
        sessions, uses = set(), Uses()
        for _ in range(TURNS):
            async with client.chat.completions.stream(
                messages=history, stream_options={"include_usage": True}, **options()
            ) as stream:
                async for _ in stream:
                    pass
                final = await stream.get_final_completion()
            sessions.add(stream._response.headers["x-session-id"])
            assert final.choices[0].finish_reason == "tool_calls"
            uses.add(final.usage)
            message = final.choices[0].message
            history += [message.model_dump(exclude_none=True), answered(message)]
    (session,) = sessions
    uses.check(served_tiny, session)
    close(served_tiny, session)


@tool
def look_up(account: Literal["7", "42"]) -> str:
    """Return the balance of an account."""
    return f"The balance of account {account} is 1,000 euros."


@pytest.mark.parametrize("streaming", [False, True])
def test_a_langgraph_agent_runs_a_tool_session(served_tiny: Served, streaming: bool) -> None:
    headers: list[httpx.Headers] = []
    client = httpx.Client(event_hooks={"response": [lambda answer: headers.append(answer.headers)]})
    model = ChatOpenAI(
        model="tiny",
        max_completion_tokens=200,
        temperature=0,
        max_retries=0,
        streaming=streaming,
        stream_usage=True,
        http_client=client,
        **served_tiny.to(),
    ).bind_tools([look_up], tool_choice="required", parallel_tool_calls=False, strict=True)

    def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def next_of(state: MessagesState) -> str:
        answers = [one for one in state["messages"] if isinstance(one, AIMessage)]
        return "tools" if len(answers) < TURNS else END

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode([look_up]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", next_of)
    graph.add_edge("tools", "agent")
    state = graph.compile().invoke({"messages": [HumanMessage(question()["content"])]})
    answers = [one for one in state["messages"] if isinstance(one, AIMessage)]
    results = [one for one in state["messages"] if isinstance(one, ToolMessage)]
    assert (len(answers), len(results)) == (TURNS, TURNS - 1)
    assert all(result.status == "success" for result in results)
    assert {one["x-session-id"] for one in headers} == {headers[0]["x-session-id"]}
    session = headers[0]["x-session-id"]
    uses = Uses()
    for answer in answers:
        assert answer.response_metadata["finish_reason"] == "tool_calls"
        told = answer.usage_metadata
        assert told is not None
        uses.prompt.append(told["input_tokens"])
        uses.out.append(told["output_tokens"])
        uses.cached.append(told["input_token_details"]["cache_read"])
    uses.check(served_tiny, session)
    close(served_tiny, session)


def test_errors_are_the_clients_own(served_tiny: Served) -> None:
    client = served_tiny.client()
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "The adviser. " * 9_000}]
        )
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        served_tiny.client("bp_x_y").models.list()
    assert [model.id for model in client.models.list()] == ["tiny"]
