"""The engines under test, and what the suite needs to know of each.

To add an engine, write a module here that has `open_case(tmp_path)`, an async context manager that
gives a started `Case`, and name it in CASES.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bedplate.config.engines import OpenaiEngine
from bedplate.core.events import CardUp, Event
from bedplate.core.ids import BranchId, CardId, ModelId, SessionId, SlotId, TenantId, TurnId
from bedplate.engines.base import (
    ChatRequest,
    Delta,
    Engine,
    Finished,
    JsonObject,
    Lineage,
    Output,
    Started,
    TurnRun,
)
from bedplate.engines.openai import OpenAIEngine
from bedplate.errors import BedplateError
from tests.fakes.openai_engine import Behaviour, FakeEngine, ToolCall

CASES = {
    "openai": "tests.conformance.engines.cases",
    "llamacpp": "tests.conformance.engines.llamacpp_case",
}
BANK = TenantId("bank")
QUESTION: JsonObject = {"role": "user", "content": "What does the ledger say about the claim?"}


@dataclass
class Case:
    """A started engine and its events so far.

    `slowly` makes the next run long enough to be cut; `with_tools` makes it call a tool, where the
    engine does not decide that itself.
    """

    engine: Engine
    events: list[Event]
    slowly: Callable[[], None] = lambda: None
    with_tools: Callable[[], None] = lambda: None
    lane: int = 0
    tenant: TenantId = BANK
    turns: int = 0

    @property
    def cards(self) -> list[CardUp]:
        """The cards that came up."""
        return [event for event in self.events if isinstance(event, CardUp)]

    def request(self, *messages: JsonObject, **fields: Any) -> ChatRequest:
        """Return a greedy request of this engine's model."""
        fields.setdefault("temperature", 0.0)
        return ChatRequest(
            model=ModelId(self.engine.model), messages=messages or (QUESTION,), **fields
        )

    def lineage(self, session: str = "s", branch: int = 0, fork_of: int = -1) -> Lineage:
        """Return a place in a session's tree."""
        return Lineage(self.tenant, SessionId(session), BranchId(branch), fork_of, self.lane)

    async def turn(
        self,
        request: ChatRequest,
        lineage: Lineage | None = None,
        *,
        limit_tokens: int = 8,
        slot: int = 0,
        **fields: Any,
    ) -> TurnRun:
        """Prepare a turn as the runtime does."""
        where = lineage if lineage is not None else self.lineage()
        prompt = await self.engine.prepare(request, where)
        self.turns += 1
        values: dict[str, Any] = {
            "turn": TurnId(f"t{self.turns}"),
            "attempt": 1,
            "lineage": where,
            "request": request,
            "prompt": prompt,
            "card": CardId(self.cards[0].card),
            "slot": SlotId(slot),
            "limit_tokens": limit_tokens,
            "expect_cached_tokens": 0,
            "loaded": False,
            "resume_tokens": 0,
            "deadline_s": 60.0,
        }
        return TurnRun(**{**values, **fields})


@dataclass
class Heard:
    """What a run gave."""

    sequences: list[Sequence[Output]] = field(default_factory=list)
    error: BedplateError | None = None

    @property
    def outputs(self) -> list[Output]:
        return [output for sequence in self.sequences for output in sequence]

    @property
    def started(self) -> list[Started]:
        return [output for output in self.outputs if isinstance(output, Started)]

    @property
    def deltas(self) -> list[Delta]:
        return [output for output in self.outputs if isinstance(output, Delta)]

    @property
    def finished(self) -> Finished:
        (end,) = (output for output in self.outputs if isinstance(output, Finished))
        return end

    @property
    def text(self) -> str:
        return "".join(delta.content for delta in self.deltas if delta.index == 0)

    @property
    def tokens(self) -> int:
        return sum(delta.tokens for delta in self.deltas)

    def tool_calls(self) -> list[JsonObject]:
        """Put the tool call deltas together as a client does, strictly."""
        calls: dict[int, JsonObject] = {}
        for delta in self.deltas:
            for piece in delta.tool_calls:
                if piece["index"] not in calls:
                    assert piece["id"]
                    assert piece["type"] == "function"
                    assert piece["function"]["name"]
                    calls[piece["index"]] = {
                        "id": piece["id"],
                        "type": "function",
                        "function": dict(piece["function"]),
                    }
                else:
                    assert "id" not in piece
                    assert "name" not in piece["function"]
                    call = calls[piece["index"]]["function"]
                    call["arguments"] += piece["function"]["arguments"]
        assert sorted(calls) == list(range(len(calls)))
        return [calls[index] for index in sorted(calls)]


async def hear(engine: Engine, turn: TurnRun) -> Heard:
    """Run to the end; an error is kept beside what came before it."""
    heard = Heard()
    try:
        async for sequence in engine.run(turn):
            heard.sequences.append(sequence)
    except BedplateError as error:
        heard.error = error
    return heard


async def ask(case: Case, **fields: Any) -> Heard:
    """Run one turn with room for a whole answer."""
    return await hear(case.engine, await case.turn(case.request(**fields), limit_tokens=500))


async def until(condition: Callable[[], Any], *, within_s: float = 1.0) -> None:
    """Wait for a condition; fail when it does not come true in time."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the condition is of another loop or thread
            await asyncio.sleep(0.005)


@asynccontextmanager
async def open_endpoint(
    behaviour: Behaviour | None = None, *, fake: FakeEngine | None = None, **settings: Any
) -> AsyncIterator[tuple[FakeEngine, Case]]:
    """Start a fake endpoint and the adapter in front of it."""
    upstream = fake if fake is not None else FakeEngine(behaviour)
    url = await upstream.start()
    values = {"name": "endpoint", "model": "fake", "url": url, "server": "vllm", **settings}
    events: list[Event] = []
    engine = OpenAIEngine(OpenaiEngine(**values), probe_interval_s=0.05)
    await engine.start(events.append)
    try:
        yield upstream, Case(engine, events)
    finally:
        await engine.stop()
        await upstream.stop()


@asynccontextmanager
async def open_case(tmp_path: Path) -> AsyncIterator[Case]:
    """Start the openai engine for the suite."""
    async with open_endpoint() as (fake, case):
        call = ToolCall("look_up", ('{"acc', 'ount": "4', '2"}'))
        case.slowly = lambda: fake.script(Behaviour(chunks=2_000, chunk_delay_s=0.005))
        case.with_tools = lambda: fake.script(Behaviour(tool_calls=(call,)))
        yield case
