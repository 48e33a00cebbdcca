"""An agent that plays one script over HTTP, as agents do: call, tool, call again with all of it.

Every call carries the whole history. A named agent sends X-Session-Id and an idempotency key for
each turn; an unnamed one sends neither, so that the service has to know it by its history. What the
service refuses for now (429, 502, 503, 504, and 409 while the same call still runs) or breaks off
is sent again a bounded number of times, after Retry-After where the service gives one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from bedplate.demo.answer import Answer, BrokenAnswer
from bedplate.demo.scripts import Script, Step
from bedplate.engines.base import JsonObject

RETRY_STATUS = frozenset({409, 429, 502, 503, 504})
RETRY_WAIT_MAX_S = 30.0
TIMEOUT_S = 300.0
"""After which an agent gives a call up. Long: a loaded host is slow, and a repeat loads it more."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How agents behave. `base_url` ends before `/v1`; `attempts_max` bounds each turn.

    `run` is part of session names and idempotency keys: give each run against one service its own,
    or the second gets the stored answers of the first.
    """

    base_url: str
    model: str
    run: str = "0"
    seed: int = 0
    output_tokens: int = 32
    gap_min_s: float = 0.2
    gap_max_s: float = 2.0
    attempts_max: int = 5
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn as the agent saw it.

    Times run from the start of the first attempt. `ttft_s` ends with the first part of the answer.
    `session` and `request` are the service's X-Session-Id and X-Request-Id.
    """

    number: int
    attempts: int
    ttft_s: float
    seconds: float
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    session: str
    request: str


@dataclass(frozen=True, slots=True)
class SessionResult:
    """One session as the agent saw it. `error` is empty if all its turns were answered."""

    tenant: str
    lane: str
    script: str
    named: bool
    turns: tuple[TurnResult, ...]
    seconds: float
    error: str

    @property
    def sessions(self) -> tuple[str, ...]:
        """Return the different X-Session-Id values, in order: one if the service knew it again."""
        return tuple(dict.fromkeys(turn.session for turn in self.turns))


class TurnFailed(Exception):
    """A turn was given up; the message says after what."""


class Agent:
    """Plays one script with one key."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        settings: AgentSettings,
        script: Script,
        *,
        key: str,
        named: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        on_turn: Callable[[Script, TurnResult], None] | None = None,
    ) -> None:
        """Make an agent; the client is shared and stays open.

        Args:
            client: HTTP client for all agents.
            settings: Behaviour that all agents share.
            script: What to say.
            key: API key of the script's tenant.
            named: Whether to send X-Session-Id and idempotency keys.
            sleep: Waits so many seconds.
            clock: Seconds that never go back.
            on_turn: Told of each answered turn.
        """
        self._client = client
        self._settings = settings
        self._script = script
        self._key = key
        self._name = f"{script.tenant}.{script.id}.{settings.run}" if named else ""
        self._sleep = sleep
        self._clock = clock
        self._on_turn = on_turn
        self._random = random.Random(f"{settings.seed}/{script.tenant}/{script.id}")

    async def play(self) -> SessionResult:
        """Play all turns, or up to the first that is given up."""
        script = self._script
        begin = self._clock()
        turns: list[TurnResult] = []
        error = ""
        messages: list[JsonObject] = [
            {"role": "system", "content": script.system},
            {"role": "user", "content": script.question},
        ]
        try:
            for number in range(1 + len(script.steps)):
                result, answer = await self._turn(number, messages)
                turns.append(result)
                if self._on_turn is not None:
                    self._on_turn(script, result)
                if number < len(script.steps):
                    messages += [answer, *observations(answer, script.steps[number])]
                    gap = self._random.uniform(self._settings.gap_min_s, self._settings.gap_max_s)
                    await self._sleep(gap)
        except TurnFailed as failure:
            error = str(failure)
        return SessionResult(
            tenant=script.tenant,
            lane=script.lane,
            script=script.id,
            named=bool(self._name),
            turns=tuple(turns),
            seconds=self._clock() - begin,
            error=error,
        )

    async def _turn(self, number: int, messages: list[JsonObject]) -> tuple[TurnResult, JsonObject]:
        begin = self._clock()
        attempt = 0
        while True:
            attempt += 1
            wait_s = self._backoff(attempt)
            try:
                return await self._attempt(number, messages, attempt=attempt, begin=begin)
            except _Refused as refusal:
                last, again = str(refusal), refusal.retryable
                wait_s = wait_s if refusal.retry_after_s is None else refusal.retry_after_s
            except (BrokenAnswer, aiohttp.ClientError, TimeoutError) as error:
                last, again = f"{type(error).__name__}: {error}", True
            if not again or attempt >= self._settings.attempts_max:
                raise TurnFailed(f"turn {number + 1} was given up, attempt {attempt}: {last}")
            await self._sleep(wait_s)

    def _backoff(self, attempt: int) -> float:
        return min(RETRY_WAIT_MAX_S, 0.5 * float(2**attempt) * self._random.uniform(0.5, 1.0))

    async def _attempt(
        self, number: int, messages: list[JsonObject], *, attempt: int, begin: float
    ) -> tuple[TurnResult, JsonObject]:
        body = {
            "model": self._settings.model,
            "messages": messages,
            "tools": self._script.tools,
            "max_tokens": self._settings.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer = Answer()
        first_s = 0.0
        async with self._client.post(
            f"{self._settings.base_url}/v1/chat/completions",
            json=body,
            headers=self._headers(number),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
        ) as response:
            if response.status != 200:
                raise _Refused(response.status, await response.text(), retry_after(response))
            async for line in response.content:
                if answer.feed(line) and not first_s:
                    first_s = self._clock()
            headers = response.headers
        message = answer.message()
        usage = answer.usage or {}
        end = self._clock()
        result = TurnResult(
            number=number,
            attempts=attempt,
            ttft_s=(first_s or end) - begin,
            seconds=end - begin,
            finish_reason=answer.finish_reason,
            prompt_tokens=usage.get("prompt_tokens", 0),
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            output_tokens=usage.get("completion_tokens", 0),
            session=headers.get("X-Session-Id", ""),
            request=headers.get("X-Request-Id", ""),
        )
        return result, message

    def _headers(self, number: int) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._key}"}
        if self._name:
            headers["X-Session-Id"] = self._name
            headers["Idempotency-Key"] = f"{self._name}/{number}"
        return headers


class _Refused(Exception):
    """The service answered with an error status."""

    def __init__(self, status: int, text: str, retry_after_s: float | None) -> None:
        super().__init__(f"HTTP {status}: {text[:300]}")
        self.retry_after_s = retry_after_s
        conflict = status == 409 and "idempotency_in_progress" not in text
        self.retryable = status in RETRY_STATUS and not conflict


def retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Return the bounded wait that Retry-After asks for, None where it asks for none."""
    try:
        seconds = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return None
    return min(max(seconds, 0.0), RETRY_WAIT_MAX_S)


def observations(answer: JsonObject, step: Step) -> list[JsonObject]:
    """Return what goes into the history after an answer: one result for each tool call in it.

    A model that called no tool is told what the tool found all the same, as a user's message.
    """
    calls = answer.get("tool_calls") or []
    if not calls:
        return [{"role": "user", "content": f"{step.tool}:\n{step.result}"}]
    return [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": step.result if at == 0 else "See the first result.",
        }
        for at, call in enumerate(calls)
    ]
