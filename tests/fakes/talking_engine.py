"""An engine in this process that says what a test tells it, and a runtime that only passes it on.

`TalkingEngine` fits behind the real service too; `FakeRuntime` is for what concerns the door alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import Metric

from bedplate.core.events import CardUp, Event
from bedplate.core.ids import CardId, EntryId, ModelId, SessionId, SlotId, TenantId
from bedplate.core.limits import Policy, Slice, default_policy
from bedplate.engines.base import (
    Capabilities,
    ChatRequest,
    Delta,
    Embeddings,
    Finished,
    JsonObject,
    Lineage,
    Output,
    Prompt,
    Started,
    StoredKv,
    TurnRun,
    none_out,
)
from bedplate.errors import BedplateError, Draining, JournalError, UnknownModel
from bedplate.gateway.ports import RateLimits
from bedplate.journal import Content
from bedplate.runtime.stats import Histogram, Stats
from bedplate.runtime.turns import Call, TurnStream

EVERYTHING = Capabilities(
    kv="hints", tools=True, grammar=True, logprobs=True, embeddings=True, images=True, audio=True,
    choices=True, resumable=False, params=frozenset({"top_k"}),
)  # fmt: skip


@dataclass
class Script:
    """What one run does: deltas are given out one at a time, numbers are pauses in seconds, an
    event is waited for, an error is raised. Then the run ends with `finish`."""

    steps: Sequence[Delta | float | asyncio.Event | BedplateError] = (
        Delta("Hel", tokens=1),
        Delta("lo", tokens=1),
        Delta("!", tokens=1),
    )
    finish: str = "stop"
    others: tuple[str, ...] = ()


@dataclass
class TalkingEngine:
    model: ModelId = field(default_factory=lambda: ModelId("m"))
    name: str = "talking"
    capabilities: Capabilities = EVERYTHING
    default: Script = field(default_factory=Script)
    scripts: deque[Script] = field(default_factory=deque)
    requests: list[ChatRequest] = field(default_factory=list)
    stopped_at: list[float] = field(default_factory=list)
    problems: dict[CardId, str] = field(default_factory=dict)
    running: int = 0

    async def start(
        self, sink: Callable[[Event], None], is_out: Callable[[CardId], bool] = none_out
    ) -> None:
        sink(
            CardUp(
                card=CardId("card-0"),
                model=self.model,
                partition="",
                kv=self.capabilities.kv,
                can_cut=False,
                slots=4,
                running_max=4,
                kv_tokens=65_536,
                context_tokens=16_384,
                kv_bytes_per_token=0,
            )
        )

    async def stop(self) -> None:
        return None

    async def prepare(self, request: ChatRequest, lineage: Lineage) -> Prompt:
        return Prompt(10 * len(request.messages), 0, True, False, None)

    async def run(self, turn: TurnRun) -> AsyncIterator[Sequence[Output]]:
        async for outputs in self.talk(turn.request):
            yield outputs

    async def talk(self, request: ChatRequest) -> AsyncIterator[Sequence[Output]]:
        self.requests.append(request)
        script = self.scripts.popleft() if self.scripts else self.default
        prompt = 10 * len(request.messages)
        self.running += 1
        ended = False
        try:
            yield [Started(prompt, 0)]
            for step in script.steps:
                if isinstance(step, Delta):
                    yield [step]
                elif isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, BedplateError):
                    raise step
                else:
                    await asyncio.sleep(step)
            out = sum(step.tokens for step in script.steps if isinstance(step, Delta))
            ended = True
            message = _message(script.steps)
            yield [Finished(script.finish, prompt, 0, out, 0, True, message, script.others)]
        finally:
            self.running -= 1
            if not ended:
                self.stopped_at.append(time.monotonic())

    async def store_kv(
        self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId
    ) -> StoredKv:
        raise AssertionError("kv is hints")

    async def load_kv(self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId) -> int:
        raise AssertionError("kv is hints")

    async def drop_kv(self, card: CardId, slot: SlotId) -> None:
        return None

    async def forget(self, session: SessionId) -> None:
        return None

    async def embed(self, inputs: Sequence[str]) -> Embeddings:
        return Embeddings(tuple((float(len(text)), 0.5) for text in inputs), 3 * len(inputs))


def _message(steps: Sequence[object]) -> JsonObject:
    deltas = [step for step in steps if isinstance(step, Delta) and step.index == 0]
    calls: dict[int, JsonObject] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        call = calls.setdefault(
            piece["index"],
            {"id": piece.get("id"), "type": "function", "function": {"name": "", "arguments": ""}},
        )
        call["function"]["name"] += piece["function"].get("name", "")
        call["function"]["arguments"] += piece["function"].get("arguments", "")
    message: JsonObject = {
        "role": "assistant",
        "content": "".join(delta.content for delta in deltas) or None,
    }
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


class FakeRuntime:
    """Passes calls straight to the engine. No core, no journal: notes land in a list."""

    def __init__(self, engine: TalkingEngine) -> None:
        self.engine = engine
        self.notes: list[tuple[str, str, str, dict[str, Any]]] = []
        self.contents: dict[str, bytes] = {}
        self.events: list[Event] = []
        self.calls: list[Call] = []
        self.cancels: list[tuple[str, str]] = []
        self.closed: list[SessionId] = []
        self.queue: asyncio.Event | None = None
        """Calls wait for it before they reach the engine."""
        self.refusal: BedplateError | None = None
        self.is_ready = True
        self.stalled = False
        self.streams: dict[str, TurnStream] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._callbacks: list[Callable[[SessionId], None]] = []
        self._start_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return self._start_ns + time.monotonic_ns()

    def engine_for(self, model: ModelId) -> TalkingEngine:
        if model != self.engine.model:
            raise UnknownModel("no engine serves this model", param="model")
        return self.engine

    def models(self) -> tuple[ModelId, ...]:
        return (self.engine.model,)

    def submit(self, call: Call) -> TurnStream:
        self.calls.append(call)
        stream = TurnStream(call.turn, committed=self.committed, cancel=self._cancel)
        self.streams[call.turn] = stream
        stream.arrival_ns = self.now_ns()
        stream.open_gate(1)
        for content in call.contents:
            self.contents[content.hash] = content.data
        self._tasks[call.turn] = asyncio.create_task(self._play(call, stream))
        return stream

    def _cancel(self, turn: str, reason: str) -> None:
        self.cancels.append((turn, reason))
        self._tasks[turn].cancel()

    async def _play(self, call: Call, stream: TurnStream) -> None:
        if self.refusal is not None:
            stream.fail(self.refusal, 1)
            return
        if self.queue is not None:
            await self.queue.wait()
        outputs = self.engine.talk(call.request)
        try:
            async for batch in outputs:
                if isinstance(batch[-1], Finished):
                    if call.answered is not None and not stream.ended:
                        call.answered(batch[-1])
                    stream.finish(batch[-1], 1)
                else:
                    stream.push(batch)
                    await stream.room()
        except BedplateError as error:
            stream.fail(error, 1)
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]

    async def embed(
        self, tenant: TenantId, lane: int, model: ModelId, inputs: Sequence[str]
    ) -> Embeddings:
        return await self.engine.embed(inputs)

    def close_session(self, session: SessionId, reason: str) -> int:
        self.closed.append(session)
        for callback in self._callbacks:
            callback(session)
        return 1

    @property
    def ready(self) -> bool:
        return self.is_ready

    def stats(self) -> Stats:
        zero = dict.fromkeys(Stats._fields, 0)
        histograms = tuple(Histogram() for _ in range(3))
        return Stats(
            **{**zero, "turns_ended": {"stop": 1}, "ttft": histograms, "queue": histograms}  # type: ignore[arg-type]
        )

    def post(self, event: Event) -> int:
        self.events.append(event)
        return 1

    def note(
        self,
        kind: str,
        tenant: str,
        session: str,
        body: dict[str, Any],
        contents: Sequence[Content] = (),
    ) -> int:
        self.notes.append((kind, tenant, session, body))
        for content in contents:
            self.contents[content.hash] = content.data
        return 1

    def check_writable(self) -> None:
        if self.stalled:
            raise JournalError("stalled", retry_after_s=2.0)

    async def committed(self, seq: int) -> None:
        return None

    def on_session_end(self, callback: Callable[[SessionId], None]) -> None:
        self._callbacks.append(callback)

    async def drain(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while any(not task.done() for task in self._tasks.values()):
            if time.monotonic() > deadline:
                for task in self._tasks.values():
                    task.cancel()
                return
            await asyncio.sleep(0.01)

    async def cut(self) -> None:
        for call in self.calls:
            self.streams[call.turn].fail(Draining("cut"), 1)
            self._tasks[call.turn].cancel()

    async def wait_halted(self) -> BaseException:
        await asyncio.Event().wait()
        raise AssertionError


class FakeView:
    """What the gateway shows, from a dict."""

    def __init__(self) -> None:
        self.held: dict[SessionId, tuple[TenantId, JsonObject]] = {}
        self.rates: RateLimits | None = None
        self.draining = False

    def session(self, session: SessionId) -> JsonObject | None:
        found = self.held.get(session)
        return None if found is None else found[1]

    def sessions(self, tenant: TenantId | None) -> list[tuple[SessionId, JsonObject]]:
        return [
            (session, shown)
            for session, (owner, shown) in self.held.items()
            if tenant is None or owner == tenant
        ]

    def cards(self) -> list[JsonObject]:
        return [{"card": "card-0", "model": "m", "up": True, "draining": self.draining}]

    def policy(self) -> Policy:
        return default_policy()

    def slice_refusal(self, part: Slice) -> str:
        return ""

    def state(self) -> JsonObject:
        return {"cards": self.cards(), "pool": {}, "lanes": [], "counters": {}}

    def limits(self, tenant: TenantId) -> RateLimits | None:
        return self.rates

    def families(self) -> Iterator[Metric]:
        return iter(())
