"""Plays a workload against a running service: each session is an agent of its own, over HTTP.

A turn is sent `gap_ns` after the answer to the one before, with the whole history, as agents do. A
message is text of about as many tokens as the workload says; how many there really were is in the
journal. The random model says nothing of use: what counts is what it costs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from bedplate.core.units import SECOND_NS
from bedplate.twin.workload.form import Session, Turn, Workload
from bench.harness.run import BenchError
from bench.spine.text import long_text

PATH = "/v1/chat/completions"
PROBE_CHARACTERS = 4_000
DONE = b"[DONE]"


class Played(NamedTuple):
    """One turn as its client saw it. Seconds since the beginning; `first_s` is the first token."""

    session: int
    turn: int
    asked_s: float
    first_s: float
    end_s: float
    error: str


@dataclass(slots=True)
class Player:
    """One play of a workload. `url` is the service's, `key` a credential for all of it."""

    url: str
    key: str
    model: str
    workload: Workload
    rows: list[Played] = field(default_factory=list)
    _ends: dict[tuple[int, int], asyncio.Event] = field(default_factory=dict)
    _characters: float = 4.0
    _http: aiohttp.ClientSession | None = None
    _began: float = 0.0

    async def play(self) -> list[Played]:
        """Play every session to its end and return what happened, turn by turn.

        Raises:
            BenchError: the service does not answer the first, probing call.
        """
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            self._http = http
            self._characters = await self._probe()
            self._began = time.perf_counter()
            sessions = self.workload.sessions
            self._ends = {
                (number, turn): asyncio.Event()
                for number, session in enumerate(sessions)
                for turn in range(len(session.turns))
            }
            await asyncio.gather(*(self._session(n, s) for n, s in enumerate(sessions)))
        return self.rows

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def _probe(self) -> float:
        """Return how many characters of the text make a token."""
        message = {"role": "user", "content": long_text(0, PROBE_CHARACTERS)}
        usage = await self._ask("probe", [message], limit=1)
        if isinstance(usage, str):
            raise BenchError(f"the service at {self.url} does not answer: {usage}")
        return PROBE_CHARACTERS / usage[0]

    async def _session(self, number: int, session: Session) -> None:
        if session.spawn is not None:
            await self._ends[session.spawn.session, session.spawn.turn].wait()
            await asyncio.sleep(session.start_ns / SECOND_NS)
        else:
            await asyncio.sleep(max(0.0, session.start_ns / SECOND_NS - self._now()))
        messages: list[dict[str, str]] = []
        for index, turn in enumerate(session.turns):
            if index:
                await self._joined(number, index - 1)
                await asyncio.sleep(turn.gap_ns / SECOND_NS)
            messages = _kept(messages, turn, self._characters)
            text = long_text(1 + number * 131 + index, round(turn.new_tokens * self._characters))
            messages.append({"role": "user", "content": text or "."})
            answer = await self._turn(number, index, messages, turn)
            self._ends[number, index].set()
            if answer is None:
                break
            messages.append({"role": "assistant", "content": answer})
        for index in range(len(session.turns)):
            self._ends[number, index].set()

    async def _joined(self, number: int, turn: int) -> None:
        """Wait for the sub-agents that the turn sent out and that the session waits for."""
        for child, session in enumerate(self.workload.sessions):
            spawn = session.spawn
            if spawn is not None and spawn.joins and (spawn.session, spawn.turn) == (number, turn):
                await self._ends[child, len(session.turns) - 1].wait()

    async def _turn(
        self,
        number: int,
        index: int,
        messages: Sequence[dict[str, str]],
        turn: Turn,
    ) -> str | None:
        asked_s = self._now()
        found = await self._ask(f"s{number}", messages, limit=max(1, turn.out_tokens))
        if isinstance(found, str):
            self.rows.append(Played(number, index, asked_s, -1.0, self._now(), found))
            return None
        _, first_s, text = found
        self.rows.append(Played(number, index, asked_s, first_s, self._now(), ""))
        return text

    async def _ask(
        self, name: str, messages: Sequence[dict[str, str]], *, limit: int
    ) -> tuple[int, float, str] | str:
        """Return (prompt tokens, time of the first token, text), or what went wrong."""
        assert self._http is not None
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": limit,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"authorization": f"Bearer {self.key}", "x-session-id": name}
        first_s, prompt, parts = -1.0, 0, []
        async with self._http.post(self.url + PATH, json=body, headers=headers) as answer:
            if answer.status != 200:
                return f"{answer.status} {(await answer.text())[:200]}"
            async for line in answer.content:
                if not line.startswith(b"data: ") or DONE in line:
                    continue
                event: dict[str, Any] = json.loads(line[6:])
                if "error" in event:
                    return str(event["error"])[:200]
                for choice in event.get("choices", ()):
                    piece = choice["delta"].get("content")
                    if piece:
                        first_s = first_s if first_s >= 0 else self._now()
                        parts.append(piece)
                if event.get("usage"):
                    prompt = event["usage"]["prompt_tokens"]
        return prompt, first_s, "".join(parts)


def _kept(messages: list[dict[str, str]], turn: Turn, characters: float) -> list[dict[str, str]]:
    """Return the history that the turn builds on: the first messages, as far as it keeps them."""
    if turn.keep_tokens < 0:
        return messages
    left = turn.keep_tokens * characters
    kept: list[dict[str, str]] = []
    for message in messages:
        left -= len(message["content"])
        if left < 0:
            break
        kept.append(message)
    return kept
