"""The openai engine against a fake endpoint: every way to fail, and hang-ups (F08 F09 F16)."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from bedplate.config.engines import OpenaiEngine
from bedplate.core.events import Event
from bedplate.engines.base import ChatRequest, Delta
from bedplate.engines.openai import OpenAIEngine
from bedplate.errors import (
    BedplateError,
    CapacityError,
    ContextTooLong,
    EngineError,
    EngineLost,
    EngineProtocolError,
    EngineTimeout,
    InvalidRequest,
    NoEngine,
)
from tests.conformance.engines.cases import Case, ask, hear, open_endpoint, until
from tests.fakes.openai_engine import Behaviour, FakeEngine, ThreadedEngine

# failures


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (400, InvalidRequest, "as told"),
        (422, InvalidRequest, "as told"),
        (401, EngineProtocolError, "api_key_env"),
        (403, EngineProtocolError, "api_key_env"),
        (404, EngineProtocolError, "upstream_model"),
        (429, CapacityError, "busy"),
        (503, NoEngine, "not ready"),
        (500, EngineError, "failed"),
        (504, EngineTimeout, "ran out of time"),
        (302, EngineProtocolError, "status 302"),
    ],
)
async def test_each_status_is_its_own_error(
    status: int, kind: type[BedplateError], words: str
) -> None:
    async with open_endpoint(Behaviour(status=status, retry_after="7")) as (_, case):
        heard = await ask(case)
    assert type(heard.error) is kind
    assert words in str(heard.error)
    assert heard.outputs == []
    if isinstance(heard.error, CapacityError):
        assert heard.error.retry_after_s == 7.0


async def test_the_engines_words_about_the_request_reach_the_client() -> None:
    error = {"message": "temperature must be below 2", "param": "temperature", "code": None}
    async with open_endpoint(Behaviour(status=400, error=error)) as (fake, case):
        heard = await ask(case)
        assert isinstance(heard.error, InvalidRequest)
        assert heard.error.message == "temperature must be below 2"
        assert heard.error.param == "temperature"
        fake.script(
            Behaviour(
                status=400, error={"message": "maximum context length is 9", "param": "messages"}
            )
        )
        heard = await ask(case)
        assert isinstance(heard.error, ContextTooLong)


async def test_the_endpoints_key_is_sent_and_never_told() -> None:
    fake = FakeEngine(api_key="sk-upstream-secret")
    url = await fake.start()
    settings = OpenaiEngine(name="endpoint", model="fake", url=url)
    events: list[Any] = []
    engine = OpenAIEngine(settings.with_api_key(SecretStr("sk-upstream-secret")))
    await engine.start(events.append)
    case = Case(engine, events)
    assert (await ask(case)).error is None
    fake.script(Behaviour(status=400, error={"message": "bad key sk-upstream-secret here"}))
    heard = await ask(case)
    assert heard.error is not None
    assert heard.error.message == "bad key [key] here"
    fake.api_key = "another"
    assert "sk-" not in str((await ask(case)).error)
    await engine.stop()
    await fake.stop()


@pytest.mark.parametrize("die_after", [-1, 0, 1])
async def test_an_engine_that_dies_before_content_is_lost_with_nothing_given(
    die_after: int,
) -> None:
    async with open_endpoint(Behaviour(die_after=die_after)) as (_, case):
        heard = await ask(case)
    assert type(heard.error) is EngineLost
    assert heard.error.retryable
    assert heard.outputs == []


async def test_an_engine_that_dies_in_the_middle_gives_what_it_gave_and_no_end() -> None:
    async with open_endpoint(Behaviour(die_after=11)) as (_, case):
        heard = await ask(case)
    assert type(heard.error) is EngineLost
    assert len(heard.deltas) == 10, "the first event is the role"
    assert len(heard.outputs) == 11, "one Started, ten deltas, no Finished"


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(chunks=3, finish_reason=""),
        Behaviour(chunks=3, finish_reason="", done=False),
        Behaviour(chunks=3, finish_reason="abort"),
    ],
    ids=["no reason", "no reason, no DONE", "aborted"],
)
async def test_a_stream_without_an_end_is_no_success(behaviour: Behaviour) -> None:
    async with open_endpoint(behaviour) as (_, case):
        heard = await ask(case)
    assert type(heard.error) is EngineLost
    assert not any(type(output).__name__ == "Finished" for output in heard.outputs)


async def test_a_whole_answer_of_a_server_that_sends_no_done_is_a_success() -> None:
    async with open_endpoint(Behaviour(chunks=3, done=False)) as (_, case):
        assert (await ask(case)).finished.out_tokens == 3


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ("{broken", EngineProtocolError),
        ("[]", EngineProtocolError),
        ('{"choices": 5}', EngineProtocolError),
        ('{"choices": [{"index": 3, "delta": {}}]}', EngineProtocolError),
        ('{"choices": [{"index": 0, "delta": {"content": 5}}]}', EngineProtocolError),
        ('{"choices": [{"index": 0, "delta": {}, "finish_reason": "?"}]}', EngineProtocolError),
        ('{"choices": [], "usage": {"prompt_tokens": -1}}', EngineProtocolError),
        ('{"error": {"message": "out of memory", "code": 500}}', EngineError),
        ('{"error": {"message": "bad image", "code": 400}}', InvalidRequest),
    ],
)
async def test_a_malformed_stream_is_named_and_gives_no_answer(
    event: str, kind: type[BedplateError]
) -> None:
    async with open_endpoint(Behaviour(events=(event,))) as (_, case):
        heard = await ask(case)
    assert type(heard.error) is kind
    assert heard.outputs == []


async def test_an_endpoint_that_does_not_stream_is_named() -> None:
    async with open_endpoint(Behaviour(ignore_stream=True)) as (_, case):
        heard = await ask(case)
    assert type(heard.error) is EngineProtocolError
    assert "does not stream" in str(heard.error)


@pytest.mark.parametrize("headers_first", [False, True])
async def test_an_engine_that_never_answers_times_out_and_is_not_asked_again(
    headers_first: bool,
) -> None:
    async with open_endpoint(Behaviour(hang=True, headers_first=headers_first)) as (fake, case):
        turn = await case.turn(case.request(), deadline_s=0.2)
        heard = await hear(case.engine, turn)
        assert type(heard.error) is EngineTimeout
        assert heard.error.retryable is False
        await until(lambda: fake.chats()[-1].aborted_s is not None)


async def test_a_silence_within_the_deadline_times_out_too() -> None:
    behaviour = Behaviour(chunks=5, chunk_delay_s=5.0)
    async with open_endpoint(behaviour, timeout_seconds=0.2) as (_, case):
        heard = await ask(case)
    assert type(heard.error) is EngineTimeout


LONG = 400
"""Words of a long prompt: so many tokens at least. At 5 ms a token it may take two seconds."""


def prompt(case: Case, words: int) -> ChatRequest:
    return case.request({"role": "user", "content": "word " * words})


@pytest.mark.parametrize("headers_first", [False, True])
async def test_a_long_prompt_may_take_its_time_and_a_short_one_may_not(
    headers_first: bool,
) -> None:
    behaviour = Behaviour(chunks=3, first_delay_s=0.8, headers_first=headers_first)
    async with open_endpoint(behaviour, timeout_seconds=0.2, prompt_token_seconds=0.005) as (
        _,
        case,
    ):
        short = await hear(case.engine, await case.turn(prompt(case, 1)))
        long = await hear(case.engine, await case.turn(prompt(case, LONG)))
        plain = await case.turn(prompt(case, 1))
        resumed = replace(plain, resume_tokens=LONG, delivered="word " * LONG)
        again = await hear(case.engine, resumed)
    assert type(short.error) is EngineTimeout
    assert long.error is None
    assert again.error is None


async def test_a_long_prompt_is_given_up_too_in_the_end() -> None:
    async with open_endpoint(
        Behaviour(hang=True), timeout_seconds=0.1, prompt_token_seconds=0.001
    ) as (_, case):
        turn = await case.turn(prompt(case, LONG))
        expected_s = 0.1 + 0.001 * turn.prompt.tokens
        began = time.monotonic()
        heard = await hear(case.engine, turn)
        took = time.monotonic() - began
    assert type(heard.error) is EngineTimeout
    assert expected_s >= 0.5
    assert took >= expected_s


async def test_once_it_answers_the_prompt_allows_no_longer_silence() -> None:
    """What comes before the first token, a role alone, is no answer yet."""
    behaviour = Behaviour(chunks=5, chunk_delay_s=0.8)
    async with open_endpoint(behaviour, timeout_seconds=0.2, prompt_token_seconds=0.005) as (
        _,
        case,
    ):
        heard = await hear(case.engine, await case.turn(prompt(case, LONG)))
    assert type(heard.error) is EngineTimeout
    assert sum(isinstance(output, Delta) for output in heard.outputs) == 1


async def test_a_port_where_nobody_listens_is_lost_and_retryable() -> None:
    async with open_endpoint() as (fake, case):
        turn = await case.turn(case.request())
        await fake.stop()
        heard = await hear(case.engine, turn)
    assert type(heard.error) is EngineLost
    assert heard.error.retryable


async def test_a_host_that_takes_no_connection_is_given_up_soon() -> None:
    """A full accept queue leaves connections unanswered, as a host behind a firewall does."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
            fillers.append(filler)
        async with open_endpoint(connect_seconds=0.2) as (_, case):
            turn = await case.turn(case.request())
            engine: Any = case.engine
            for pool in engine._replicas[turn.card].client._pools:
                pool._port = deaf.getsockname()[1]
            heard = await hear(case.engine, turn)
        for filler in fillers:
            filler.close()
    assert type(heard.error) is EngineLost
    assert "takes no connection" in str(heard.error)


# hang-ups: the endpoint sees them within a second, in every phase (F09)


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(hang=True),
        Behaviour(hang=True, headers_first=True),
        Behaviour(chunks=10_000, chunk_delay_s=0.01),
        Behaviour(chunks=10_000, chunk_delay_s=0.01, split_bytes=100),
    ],
    ids=["before headers", "before the first byte", "mid-stream", "mid-event"],
)
async def test_a_cancelled_turn_is_seen_by_the_endpoint_within_a_second(
    behaviour: Behaviour,
) -> None:
    threaded = ThreadedEngine(FakeEngine(behaviour))
    with threaded as url:
        fake = threaded.engine
        events: list[Event] = []
        engine = OpenAIEngine(OpenaiEngine(name="endpoint", model="fake", url=url))
        await engine.start(events.append)
        case = Case(engine, events)
        turn = await case.turn(case.request(), limit_tokens=20_000)
        task = asyncio.ensure_future(hear(engine, turn))
        await until(lambda: fake.running == 1)
        await asyncio.sleep(0.1)
        asked_s = asyncio.get_running_loop().time()
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: fake.aborts == 1)
        aborted_s = fake.chats()[-1].aborted_s
        assert aborted_s is not None
        assert aborted_s - asked_s < 1.0
        assert fake.running == 0
        await engine.stop()


async def test_closing_the_iterator_between_items_is_seen_too() -> None:
    async with open_endpoint(Behaviour(chunks=10_000, chunk_delay_s=0.01)) as (fake, case):
        iterator = case.engine.run(await case.turn(case.request(), limit_tokens=20_000))
        await anext(iterator)
        await iterator.aclose()  # type: ignore[attr-defined]
        await until(lambda: fake.aborts == 1)


async def test_many_cancelled_turns_leave_nothing_running() -> None:
    async with open_endpoint(Behaviour(chunks=10_000, chunk_delay_s=0.01)) as (fake, case):
        turns = [await case.turn(case.request(), limit_tokens=20_000) for _ in range(50)]
        tasks = [asyncio.ensure_future(hear(case.engine, turn)) for turn in turns]
        for at, task in enumerate(tasks):
            await asyncio.sleep(0.002 * (at % 3))
            task.cancel()
        await asyncio.wait(tasks)
        await until(lambda: fake.running == 0)
        fake.script(Behaviour(chunks=2))
        assert (await ask(case)).error is None


async def test_a_slow_reader_holds_the_engine_back() -> None:
    """The adapter reads no further than its consumer: a slow client does not fill memory."""
    big = "x" * 10_000
    behaviour = Behaviour(texts=(big,) * 3_000, chunk_delay_s=0.000_001)
    async with open_endpoint(behaviour) as (fake, case):
        iterator = case.engine.run(await case.turn(case.request(), limit_tokens=5_000))
        await anext(iterator)
        await asyncio.sleep(0.5)
        held_at = fake.chats()[-1].events_sent
        await asyncio.sleep(0.2)
        assert fake.chats()[-1].events_sent == held_at < 3_000
        await iterator.aclose()  # type: ignore[attr-defined]
