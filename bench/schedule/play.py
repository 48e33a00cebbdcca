"""Plays sessions against a subject: each is an agent of its own, over HTTP, in one cheap process.

A turn is asked `gap_ns` after the end of the one before, with the whole history, as agents do. A
refusal that says when to come back is obeyed. What else fails for the moment (429, 5xx, a broken
connection) is asked again twice, as the usual client libraries do; then the session is lost. Times
count from the first try.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import aiohttp
import orjson

from bedplate.core.units import SECOND_NS
from bedplate.twin.workload.form import Session, Turn, Workload
from bench.live.base import MODEL
from bench.schedule.model import text

PATH = "/v1/chat/completions"
SYSTEM_TOKENS = 96
"""Of the first prompt: the system prompt, the same in all sessions of one kind of agent."""
RETRIES = 2
RETRY_SECONDS = 0.5
RETRY_MAX_SECONDS = 60.0
OVERHEAD_TOKENS = 8
"""About what the chat template adds to a message."""
KEEP_TOLERANCE = 1.1
"""A message is kept that ends so little beyond the tokens to keep: sizes are estimates."""
_DATA = b"data: {"

Message = dict[str, str]


class Ask(NamedTuple):
    """One turn as it is asked. `began_s`: when its session began, on the player's clock."""

    session: int
    turn: int
    tenant: str
    began_s: float
    messages: Sequence[Message]
    limit: int


class Heard(NamedTuple):
    """What came back; times on the player's clock, −1 for a first token that never came."""

    first_s: float
    end_s: float
    prompt: int
    cached: int
    out: int
    text: str
    error: str = ""
    retry_s: float = -1.0
    """Seconds after which the server says to ask again; 0: it says nothing; −1: it is final."""


class Endpoint(Protocol):
    """A subject that runs."""

    async def ask(self, http: aiohttp.ClientSession, ask: Ask) -> Heard:
        """Return what is answered to a turn."""
        ...


class Played(NamedTuple):
    """One turn. Seconds since the beginning of the play; tokens as the subject counts them."""

    session: int
    turn: int
    asked_s: float
    first_s: float
    end_s: float
    prompt: int
    cached: int
    out: int
    retries: int
    error: str


def client() -> aiohttp.ClientSession:
    """Return a client without limits, a connection a call: servers close them after a stream."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None),
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
    )


async def chat(
    http: aiohttp.ClientSession, url: str, ask: Ask, headers: Mapping[str, str], **more: Any
) -> Heard:
    """Ask a turn of a server that speaks OpenAI's chat completions, and hear its stream."""
    body = {
        "model": MODEL,
        "messages": ask.messages,
        "max_tokens": ask.limit,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    first_s = -1.0
    usage: dict[str, Any] = {}
    parts: list[str] = []
    try:
        headers = {"content-type": "application/json", **headers}
        async with http.post(url + PATH, data=orjson.dumps(body), headers=headers) as answer:
            if answer.status != 200:
                return _refused(answer.status, answer.headers, await answer.text())
            async for line in answer.content:
                if not line.startswith(_DATA):
                    continue
                event = orjson.loads(line[6:])
                if "error" in event:
                    return _failed(str(event["error"])[:200], 0.0)
                for choice in event.get("choices", ()):
                    piece = choice["delta"].get("content")
                    if piece:
                        first_s = first_s if first_s >= 0 else time.perf_counter()
                        parts.append(piece)
                usage = event.get("usage") or usage
    except (aiohttp.ClientError, ConnectionError) as error:
        return _failed(f"{type(error).__name__}: {error}", 0.0)
    if not usage:
        return _failed("the stream ended without its usage", 0.0)
    details = usage.get("prompt_tokens_details") or {}
    return Heard(
        first_s,
        time.perf_counter(),
        int(usage["prompt_tokens"]),
        int(details.get("cached_tokens") or 0),
        int(usage["completion_tokens"]),
        "".join(parts),
    )


def _refused(status: int, headers: Mapping[str, str], said: str) -> Heard:
    again = status == 429 or status >= 500
    after = headers.get("retry-after", "0")
    wait = float(after) if after.replace(".", "", 1).isdigit() else 0.0
    return _failed(f"{status} {said[:200]}", wait if again else -1.0)


def _failed(error: str, retry_s: float) -> Heard:
    return Heard(-1.0, time.perf_counter(), 0, 0, 0, "", error, retry_s)


@dataclass(slots=True)
class Player:
    """One play of a workload. `label` keeps the texts of two plays apart."""

    endpoint: Endpoint
    workload: Workload
    label: str
    rows: list[Played] = field(default_factory=list)
    _began: float = 0.0

    async def play(self, within_s: float, *, until: Collection[str] = ()) -> list[Played]:
        """Play every session to its end and return what happened, turn by turn.

        What has not ended after `within_s`, or when all sessions of the tenants in `until` have
        ended, if any are named, is given up; those turns have the error `time`.
        """
        async with client() as http:
            self._began = time.perf_counter()
            sessions = self.workload.sessions
            tasks = [asyncio.create_task(self._session(http, n, s)) for n, s in enumerate(sessions)]
            awaited = [
                task
                for task, session in zip(tasks, sessions, strict=True)
                if not until or session.tenant in until
            ]
            await asyncio.wait(awaited, timeout=within_s)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
        return self.rows

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def _session(self, http: aiohttp.ClientSession, number: int, session: Session) -> None:
        await asyncio.sleep(max(0.0, session.start_ns / SECOND_NS - self._now()))
        began_s = self._now()
        messages: list[Message] = []
        for index, turn in enumerate(session.turns):
            if index:
                await asyncio.sleep(turn.gap_ns / SECOND_NS)
            messages, size = history(messages, turn) if index else opening(session)
            content = text(f"{self.label}/{number}/{index}", size)
            messages.append({"role": "user", "content": content})
            ask = Ask(number, index, session.tenant, began_s, list(messages), turn.out_tokens)
            answer = await self._turn(http, ask)
            if answer.error:
                return
            messages.append({"role": "assistant", "content": answer.text})

    async def _turn(self, http: aiohttp.ClientSession, ask: Ask) -> Heard:
        asked_s = self._now()
        retries = failures = 0
        row = Played(ask.session, ask.turn, asked_s, -1.0, -1.0, 0, 0, 0, 0, "time")
        try:
            while True:
                heard = await self.endpoint.ask(http, ask)
                if not heard.error or heard.retry_s < 0 or failures == RETRIES:
                    break
                wait_s = heard.retry_s or RETRY_SECONDS * 2**failures
                failures += not heard.retry_s
                await asyncio.sleep(min(wait_s, RETRY_MAX_SECONDS))
                retries += 1
            first_s = heard.first_s - self._began if heard.first_s >= 0 else -1.0
            row = row._replace(
                first_s=first_s,
                end_s=heard.end_s - self._began,
                prompt=heard.prompt,
                cached=heard.cached,
                out=heard.out,
                retries=retries,
                error=heard.error,
            )
            return heard
        finally:
            self.rows.append(row)


def opening(session: Session) -> tuple[list[Message], int]:
    """Return the system prompt, which all sessions of one kind of agent share, and what is left."""
    system = {"role": "system", "content": text(f"system/{session.kind}", SYSTEM_TOKENS)}
    return [system], max(1, session.turns[0].new_tokens - SYSTEM_TOKENS)


def history(messages: Sequence[Message], turn: Turn) -> tuple[list[Message], int]:
    """Return the messages that a turn builds on, and the tokens of its new one.

    Agents edit their history by whole messages: of one that is cut to `keep_tokens`, the messages
    that fit stay, and the rest is sent anew, so that the prompt has the size that it should.
    """
    if turn.keep_tokens < 0:
        return list(messages), turn.new_tokens
    found: list[Message] = []
    total = 0
    for message in messages:
        size = OVERHEAD_TOKENS + message["content"].count(" ")
        if total + size > turn.keep_tokens * KEEP_TOLERANCE:
            break
        found.append(message)
        total += size
    return found, max(1, turn.keep_tokens + turn.new_tokens - total)
