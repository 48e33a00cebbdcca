"""The openai engine against a fake endpoint: resuming, counting, and is it up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bedplate.config.engines import OpenaiEngine
from bedplate.config.tree import CapabilityOverrides
from bedplate.core.events import CardDown, CardReport, CardUp
from bedplate.core.ids import CardId
from bedplate.engines.openai import OpenAIEngine
from bedplate.engines.openai.replica import Replica
from bedplate.errors import EngineLost, EngineProtocolError
from tests.conformance.engines.cases import QUESTION, Case, ask, hear, open_endpoint, until
from tests.fakes.openai_engine import Behaviour, FakeEngine

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
    assert heard.finished.out_tokens == 4, "the whole answer, as the client has it"
    assert heard.finished.exact is False, "what was delivered is counted by chunks"


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


@pytest.mark.parametrize("count", [2**63, 10**9, -1, "3", 2.5])
async def test_embeddings_that_cannot_have_been_counted_so_are_an_error(
    count: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lies(*args: object) -> dict[str, object]:
        vector = {"index": 0, "embedding": [1.0]}
        return {"data": [vector], "usage": {"prompt_tokens": count}}

    async with open_endpoint(capabilities={"embeddings": True}) as (_, case):
        monkeypatch.setattr(Replica, "post_json", lies)
        with pytest.raises(EngineProtocolError):
            await case.engine.embed(["a"])


async def test_embeddings_are_not_asked_of_the_same_endpoint_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A repeat there doubles the load of what is down, whatever the retry budget says."""
    asked = 0

    async def lost(*args: object) -> dict[str, object]:
        nonlocal asked
        asked += 1
        raise EngineLost("gone")

    async with open_endpoint(capabilities={"embeddings": True}) as (_, case):
        monkeypatch.setattr(Replica, "post_json", lost)
        with pytest.raises(EngineLost):
            await case.engine.embed(["a"])
    assert asked == 1


async def test_embeddings_are_asked_of_each_endpoint_and_of_the_next_when_one_is_full() -> None:
    fakes = (FakeEngine(), FakeEngine())
    urls = [await fake.start() for fake in fakes]
    settings = OpenaiEngine(
        name="pair",
        model="fake",
        urls=tuple(urls),
        capabilities=CapabilityOverrides(embeddings=True),
    )
    engine = OpenAIEngine(settings)
    await engine.start(lambda event: None)
    for _ in range(4):
        tokens = (await engine.embed(["a"])).prompt_tokens
    counted = [replica.counters.prompt_tokens for replica in engine._replicas.values()]
    assert counted == [2 * tokens, 2 * tokens]
    await fakes[0].stop()
    for _ in range(4):
        assert (await engine.embed(["a"])).vectors == ((1.0, 0.5),)
    await fakes[1].stop()
    with pytest.raises(EngineLost):
        await engine.embed(["a"])
    await engine.stop()


async def test_an_endpoint_that_is_taken_out_is_asked_where_no_other_is_up() -> None:
    fakes = (FakeEngine(), FakeEngine())
    urls = [await fake.start() for fake in fakes]
    out = {CardId("pair-0")}
    settings = OpenaiEngine(
        name="pair",
        model="fake",
        urls=tuple(urls),
        tokenizer="endpoint",
        capabilities=CapabilityOverrides(embeddings=True),
    )
    engine = OpenAIEngine(settings, probe_interval_s=0.02)
    await engine.start(lambda event: None, out.__contains__)
    case = Case(engine, [])

    def asked() -> list[int]:
        return [fake.asked["/v1/embeddings"] + fake.asked["/tokenize"] for fake in fakes]

    for _ in range(3):
        await engine.embed(["a"])
        await engine.prepare(case.request(), case.lineage())
    assert asked() == [0, 6]
    await fakes[1].stop()
    await until(lambda: CardId("pair-1") in engine.problems)
    assert (await engine.prepare(case.request(), case.lineage())).exact
    assert asked() == [1, 6]
    await engine.stop()
    await fakes[0].stop()


# health


async def test_each_endpoint_is_a_card_with_counters_and_health_of_its_own() -> None:
    fakes = (FakeEngine(Behaviour(chunks=5)), FakeEngine(Behaviour(chunks=2)))
    urls = [await fake.start() for fake in fakes]
    settings = OpenaiEngine(name="pair", model="fake", urls=tuple(urls), server="vllm")
    events: list[Any] = []
    engine = OpenAIEngine(settings, probe_interval_s=0.02)
    await engine.start(events.append)
    case = Case(engine, events)
    assert {card.card for card in case.cards} == {"pair-0", "pair-1"}
    for name, fake in zip(("pair-0", "pair-1"), fakes, strict=True):
        turn = await case.turn(case.request(), card=CardId(name), limit_tokens=500)
        assert (await hear(engine, turn)).error is None
        assert len(fake.chats()) == 1
    await fakes[1].stop()
    await until(lambda: any(isinstance(event, CardDown) for event in events))
    assert {event.card for event in events if isinstance(event, CardDown)} == {"pair-1"}
    await engine.stop()
    last = {event.card: event for event in events if isinstance(event, CardReport)}
    assert last[CardId("pair-0")].out_tokens_total == 5
    await fakes[0].stop()


async def test_a_refused_turn_takes_its_card_down_before_it_is_tried_again() -> None:
    async with open_endpoint() as (fake, case):
        turn = await case.turn(case.request())
        engine: Any = case.engine
        engine._replicas[turn.card]._watch.cancel()  # no probe helps
        await fake.stop()
        iterator = engine.run(turn)
        with pytest.raises(EngineLost):
            await anext(iterator)
        assert isinstance(case.events[-1], CardDown)


async def test_a_card_goes_down_with_its_endpoint_and_comes_up_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_endpoint() as (fake, case):
        assert [type(event) for event in case.events[:2]] == [CardUp, CardReport]
        url = fake.url
        await fake.stop()
        await until(lambda: isinstance(case.events[-1], CardDown))
        down = case.events[-1]
        assert isinstance(down, CardDown)
        assert "takes no connection" in down.reason
        assert case.engine.problems == {down.card: down.reason}
        await fake.start(port=int(url.split(":")[2].split("/")[0]))
        await until(lambda: len(case.cards) == 2)
        assert (await ask(case)).error is None
        await fake.stop()
        await until(lambda: isinstance(case.events[-1], CardDown))
    told = [record for record in caplog.records if "takes no connection" in record.getMessage()]
    assert len(told) == 2, "once each time"


async def test_an_endpoint_that_is_not_there_yet_does_not_stop_the_start() -> None:
    fake = FakeEngine()
    url = await fake.start()
    await fake.stop()
    events: list[Any] = []
    engine = OpenAIEngine(OpenaiEngine(name="late", model="fake", url=url), probe_interval_s=0.02)
    await engine.start(events.append)
    assert events == []
    assert "takes no connection" in engine.problems[CardId("late")]
    await fake.start(port=int(url.split(":")[2].split("/")[0]))
    await until(lambda: events)
    assert isinstance(events[0], CardUp)
    await engine.stop()
    await fake.stop()


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("sick", "answers the probe with status 503"),
        ("wrong model", "does not serve fake but other"),
        ("wrong key", "refuses this service's key (status 401); check api_key_env"),
    ],
)
async def test_an_endpoint_that_answers_wrongly_is_no_card_and_says_why(
    fault: str, problem: str
) -> None:
    fake = FakeEngine()
    fake.healthy = fault != "sick"
    fake.model = "other" if fault == "wrong model" else "fake"
    fake.api_key = "key" if fault == "wrong key" else None
    async with open_endpoint(fake=fake) as (_, case):
        await asyncio.sleep(0.2)
        assert case.events == []
        assert case.engine.problems == {CardId("endpoint"): problem}
        fake.healthy, fake.model, fake.api_key = True, "fake", None
        await until(lambda: case.cards)
        assert case.engine.problems == {}


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
        await until(lambda: reported(case) == 9)
        fake.prompt_tokens = 0
        await until(lambda: len(case.cards) == 2)
        downs = [event for event in case.events if isinstance(event, CardDown)]
        assert [down.reason for down in downs] == ["the server was restarted"]
        await until(lambda: reported(case) == 0)


def reported(case: Case) -> int:
    """Return the prompt tokens of the last event if it is a report, else -1."""
    last = case.events[-1]
    return last.prompt_tokens_total if isinstance(last, CardReport) else -1


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
