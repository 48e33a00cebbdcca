"""The openai engine against a fake endpoint: what it sends, and the answers it reads (F15)."""

from __future__ import annotations

import pytest

from bedplate.core.ids import TenantId
from bedplate.errors import (
    EngineLost,
    EngineProtocolError,
)
from tests.conformance.engines.cases import ask, hear, open_endpoint
from tests.fakes.openai_engine import Behaviour, ToolCall

NASTY = ('{"text": "', "金\\", 'u989d \\"', 'quoted\\" \\ud83d', '\\ude00"', ', "n": 1', "}")


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


async def test_a_kept_connection_that_breaks_is_for_core_to_count_not_sent_again() -> None:
    async with open_endpoint(Behaviour(stale=True)) as (fake, case):
        assert (await ask(case)).error is None
        lost = (await ask(case)).error
        assert type(lost) is EngineLost
        assert lost.retryable
        assert fake.requests == 1
        assert (await ask(case)).error is None


async def test_no_connection_is_kept_with_a_server_that_closes_them() -> None:
    async with open_endpoint(Behaviour(stale=True), server="llamacpp") as (fake, case):
        for at in range(1, 6):
            assert (await ask(case)).error is None
            assert fake.requests == at
        assert fake.connections_made >= 5
