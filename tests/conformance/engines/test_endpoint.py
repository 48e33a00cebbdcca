"""The openai engine against a fake endpoint: streams, failures, hang-ups, health.

F08, F09, F15 and F16 at the adapter.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from pydantic import SecretStr

from bedplate.config.engines import OpenaiEngine
from bedplate.core.events import CardDown, CardReport, CardUp
from bedplate.core.ids import TenantId
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
from tests.conformance.engines.cases import QUESTION, Case, hear, open_endpoint, until
from tests.fakes.openai_engine import Behaviour, FakeEngine, ThreadedEngine, ToolCall

NASTY = ('{"text": "', "金\\", 'u989d \\"', 'quoted\\" \\ud83d', '\\ude00"', ', "n": 1', "}")


async def ask(case: Case, **fields: Any) -> Any:
    return await hear(case.engine, await case.turn(case.request(**fields), limit_tokens=500))


# requests


async def test_the_request_goes_through_whole_and_streamed() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "See"}, image], "name": "ann"},
    )
    async with open_endpoint(
        upstream_model="fake", model="served", capabilities={"images": True}
    ) as (
        fake,
        case,
    ):
        request = case.request(
            *messages,
            temperature=0.5,
            seed=7,
            stop=("END",),
            logprobs=True,
            top_logprobs=2,
            logit_bias={"5": -1.0},
            response_format={"type": "json_object"},
            extra={"min_p": 0.1, "chat_template_kwargs": {"thinking": False}},
        )
        heard = await hear(case.engine, await case.turn(request, limit_tokens=9))
        assert heard.error is None
        sent = fake.chats()[-1].body
    salt = sent.pop("cache_salt")
    assert len(salt) == 64
    assert sent == {
        "model": "fake",
        "messages": list(messages),
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "seed": 7,
        "stop": ["END"],
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {"5": -1.0},
        "response_format": {"type": "json_object"},
        "min_p": 0.1,
        "chat_template_kwargs": {"thinking": False},
        "priority": 0,
    }


@pytest.mark.parametrize(
    ("server", "lane", "fields"),
    [
        ("vllm", 2, {"priority": 2}),
        ("sglang", 2, {"priority": 0}),
        ("sglang", 0, {"priority": 2}),
        ("mindie", 2, {}),
        ("generic", 2, {}),
    ],
)
async def test_lane_and_tenant_go_only_where_the_server_takes_them(
    server: str, lane: int, fields: dict[str, int]
) -> None:
    async with open_endpoint(server=server) as (fake, case):
        case.lane = lane
        await ask(case)
        sent = fake.chats()[-1].body
    assert {name: sent[name] for name in ("priority",) if name in sent} == fields
    assert ("cache_salt" in sent) == (server == "vllm")


async def test_tenants_have_salts_of_their_own_and_keep_them() -> None:
    async with open_endpoint() as (fake, case):
        await ask(case)
        await ask(case)
        case.tenant = TenantId("rival")
        await ask(case)
        one, again, other = (seen.body["cache_salt"] for seen in fake.chats())
    assert one == again != other


async def test_a_server_without_stream_options_or_priority_is_asked_again_without() -> None:
    async with open_endpoint(Behaviour(refuse=("stream_options", "priority"))) as (fake, case):
        first = await ask(case)
        assert first.error is None
        assert first.finished.exact is False
        assert first.finished.out_tokens == first.tokens == 32
        assert len(fake.chats()) == 3
        await ask(case)
        assert len(fake.chats()) == 4, "what was refused once is not tried again"


async def test_a_refused_salt_is_an_error_and_never_left_out() -> None:
    async with open_endpoint(Behaviour(refuse=("cache_salt",))) as (fake, case):
        heard = await ask(case)
        assert isinstance(heard.error, EngineProtocolError)
        assert "capabilities.salt" in str(heard.error)
        assert len(fake.chats()) == 1


# answers


async def test_usage_is_the_engines_word_and_null_usage_is_none() -> None:
    async with open_endpoint(Behaviour(chunks=5, usage_null=True, cached_tokens=4)) as (fake, case):
        heard = await ask(case)
        end = heard.finished
        assert end.exact
        assert (end.prompt_tokens, end.cached_tokens, end.out_tokens) == (9, 4, 5)
        assert end.kv_tokens == 14
        assert fake.prompt_tokens == 9


async def test_without_usage_the_count_is_an_estimate_and_says_so() -> None:
    async with open_endpoint(Behaviour(chunks=5, usage=False)) as (_, case):
        turn = await case.turn(case.request(), limit_tokens=50)
        end = (await hear(case.engine, turn)).finished
    assert not end.exact
    assert (end.prompt_tokens, end.out_tokens) == (turn.prompt.tokens, 5)


@pytest.mark.parametrize("split_bytes", [0, 1, 7, 64])
@pytest.mark.parametrize("interleaved", [False, True])
async def test_parallel_tool_calls_split_anywhere_come_out_whole(
    split_bytes: int, interleaved: bool
) -> None:
    calls = (ToolCall("write", NASTY, "call_a"), ToolCall("read", ('{"é', '": 2}'), None))
    behaviour = Behaviour(
        texts=("Let me ", "see 账"),
        tool_calls=calls,
        interleaved=interleaved,
        split_bytes=split_bytes,
        usage_null=True,
    )
    async with open_endpoint(behaviour) as (_, case):
        heard = await ask(case)
    assert heard.error is None
    end = heard.finished
    assert end.finish_reason == "tool_calls"
    assert end.message["content"] == heard.text == "Let me see 账"
    together = heard.tool_calls()
    assert together == end.message["tool_calls"]
    assert [call["function"]["arguments"] for call in together] == ["".join(NASTY), '{"é": 2}']
    assert together[0]["id"] == "call_a"
    assert together[1]["id"].startswith("call_")


async def test_a_tool_call_cut_by_the_limit_is_passed_on_as_it_is() -> None:
    behaviour = Behaviour(
        tool_calls=(ToolCall("write", ('{"text": "unfin',)),), finish_reason="length"
    )
    async with open_endpoint(behaviour) as (_, case):
        heard = await ask(case)
    assert heard.finished.finish_reason == "length"
    assert heard.tool_calls()[0]["function"]["arguments"] == '{"text": "unfin'


async def test_reasoning_and_logprobs_and_choices_reach_the_client() -> None:
    behaviour = Behaviour(chunks=2, extra_delta={"reasoning_content": "hm "}, logprobs=True)
    async with open_endpoint(behaviour) as (_, case):
        heard = await hear(case.engine, await case.turn(case.request(n=2), limit_tokens=50))
    end = heard.finished
    assert end.finish_reason == "stop"
    assert end.others == ("stop",)
    assert {delta.index for delta in heard.deltas} == {0, 1}
    assert all(delta.extra == {"reasoning_content": "hm "} for delta in heard.deltas)
    assert all(delta.logprobs is not None for delta in heard.deltas)
    assert end.message["reasoning_content"] == "hm hm "
    assert end.kv_tokens == end.prompt_tokens


async def test_what_one_read_holds_is_one_sequence() -> None:
    async with open_endpoint(Behaviour(chunks=32)) as (_, case):
        heard = await ask(case)
    assert len(heard.sequences) <= 3
    assert len(heard.deltas) == 32


async def test_a_connection_is_used_again_after_a_whole_answer_and_only_then() -> None:
    async with open_endpoint() as (fake, case):
        for _ in range(5):
            await ask(case)
        assert fake.connections_made <= 2, "one for the probes, one for the turns"
        fake.script(Behaviour(chunks=2_000, chunk_delay_s=0.01))
        iterator = case.engine.run(await case.turn(case.request(), limit_tokens=5_000))
        await anext(iterator)
        before = fake.connections_made
        await iterator.aclose()  # type: ignore[attr-defined]
        await ask(case)
        assert fake.connections_made == before + 1


async def test_a_kept_connection_that_the_server_closed_costs_no_turn() -> None:
    async with open_endpoint(Behaviour(stale=True)) as (fake, case):
        for at in range(1, 6):
            assert (await ask(case)).error is None
            assert fake.requests == at, "a request was sent twice"
        assert fake.connections_made >= 5


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
            engine._chat_url = engine._chat_url.with_port(deaf.getsockname()[1])
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
        fake, events = threaded.engine, []  # type: ignore[var-annotated]
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
        assert fake.chats()[-1].aborted_s - asked_s < 1.0
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


# resuming


async def test_a_resumed_turn_continues_after_what_was_delivered() -> None:
    async with open_endpoint(Behaviour(texts=("three ", "four "))) as (fake, case):
        turn = await case.turn(
            case.request(), limit_tokens=9, resume_tokens=2, delivered="one two "
        )
        assert turn.prompt.resumable
        heard = await hear(case.engine, turn)
        sent = fake.chats()[-1].body
    assert sent["messages"][-1] == {"role": "assistant", "content": "one two "}
    assert sent["continue_final_message"] is True
    assert sent["add_generation_prompt"] is False
    assert sent["max_tokens"] == 7
    assert heard.text == "three four "
    assert heard.finished.message["content"] == "one two three four "
    assert heard.finished.out_tokens == 2


# counting


async def test_the_endpoints_tokenizer_counts_where_it_is_asked_to() -> None:
    async with open_endpoint(tokenizer="endpoint") as (fake, case):
        prompt = await case.engine.prepare(case.request(), case.lineage())
        assert (prompt.tokens, prompt.exact) == (9, True)
        await fake.stop()
        prompt = await case.engine.prepare(case.request(), case.lineage())
        assert prompt.exact is False


async def test_estimates_follow_what_the_engine_counts() -> None:
    async with open_endpoint() as (_, case):
        text = {"role": "user", "content": "claims ledger " * 400}
        first = await case.engine.prepare(case.request(text), case.lineage("s0"))
        for at in range(30):
            end = await hear(
                case.engine, await case.turn(case.request(text), case.lineage(f"s{at}"))
            )
        truth = end.finished.prompt_tokens
        last = await case.engine.prepare(case.request(text), case.lineage("fresh"))
    assert abs(last.tokens - truth) < abs(first.tokens - truth)
    assert abs(last.tokens - truth) <= truth // 20


async def test_embeddings_come_back_in_order() -> None:
    async with open_endpoint(capabilities={"embeddings": True}) as (_, case):
        result = await case.engine.embed(["a", "bcd ef"])
    assert result.vectors == ((1.0, 0.5), (6.0, 0.5))
    assert result.prompt_tokens == 3


# health


async def test_a_card_goes_down_with_its_endpoint_and_comes_up_again() -> None:
    async with open_endpoint() as (fake, case):
        assert [type(event) for event in case.events[:2]] == [CardUp, CardReport]
        url = fake.url
        await fake.stop()
        await until(lambda: isinstance(case.events[-1], CardDown))
        assert "takes no connection" in case.events[-1].reason
        await fake.start(port=int(url.split(":")[2].split("/")[0]))
        await until(lambda: len(case.cards) == 2)
        assert (await ask(case)).error is None


async def test_an_endpoint_that_is_not_there_yet_does_not_stop_the_start() -> None:
    fake = FakeEngine()
    url = await fake.start()
    await fake.stop()
    events: list[Any] = []
    engine = OpenAIEngine(OpenaiEngine(name="late", model="fake", url=url), probe_interval_s=0.02)
    await engine.start(events.append)
    assert events == []
    await fake.start(port=int(url.split(":")[2].split("/")[0]))
    await until(lambda: events)
    assert isinstance(events[0], CardUp)
    await engine.stop()
    await fake.stop()


@pytest.mark.parametrize("fault", ["sick", "wrong model", "wrong key"])
async def test_an_endpoint_that_answers_wrongly_is_no_card(fault: str) -> None:
    fake = FakeEngine()
    fake.healthy = fault != "sick"
    fake.model = "other" if fault == "wrong model" else "fake"
    fake.api_key = "key" if fault == "wrong key" else None
    async with open_endpoint(fake=fake) as (_, case):
        await asyncio.sleep(0.2)
        assert case.events == []
        fake.healthy, fake.model, fake.api_key = True, "fake", None
        await until(lambda: case.cards)


async def test_reports_are_the_servers_own_counters_since_the_card_came_up() -> None:
    fake = FakeEngine(Behaviour(chunks=5, cached_tokens=3))
    fake.prompt_tokens = 1_000_000
    async with open_endpoint(fake=fake, kv_tokens=40_000) as (_, case):
        await ask(case)
        await ask(case)
        await case.engine.stop()
        report = case.events[-1]
    assert report == CardReport(case.cards[0].card, 10_000, 0, 18, 6, 10)


async def test_without_metrics_the_adapters_own_counters_are_reported() -> None:
    async with open_endpoint(Behaviour(chunks=5, cached_tokens=3), server="generic") as (_, case):
        await ask(case)
        await case.engine.stop()
        assert case.events[-1] == CardReport(case.cards[0].card, 0, 0, 9, 3, 5)


async def test_counters_that_fall_mean_a_restarted_server_and_an_empty_card() -> None:
    async with open_endpoint() as (fake, case):
        await ask(case)
        await until(lambda: case.events[-1].prompt_tokens_total == 9)
        fake.prompt_tokens = 0
        await until(lambda: len(case.cards) == 2)
        downs = [event for event in case.events if isinstance(event, CardDown)]
        assert [down.reason for down in downs] == ["the server was restarted"]
        await until(lambda: isinstance(case.events[-1], CardReport))
        assert case.events[-1].prompt_tokens_total == 0


async def test_the_question_is_kept_between_turns() -> None:
    async with open_endpoint(Behaviour(chunks=3)) as (_, case):
        first = await case.turn(case.request())
        end = (await hear(case.engine, first)).finished
        retry = await case.engine.prepare(case.request(), case.lineage())
        assert retry.tokens == end.prompt_tokens
        assert retry.reuse_tokens == end.prompt_tokens - 1
        edited = {**QUESTION, "content": "Something else"}
        other = await case.engine.prepare(case.request(edited), case.lineage())
        assert other.reuse_tokens == 0
