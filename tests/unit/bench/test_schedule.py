"""Sessions on real cards: what is asked, who goes first, what is counted. No card is needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import gguf
import pytest

from bedplate.core.limits import INTERACTIVE, SHARED
from bedplate.twin.workload.form import Session, Turn, Workload
from bench.harness.run import BenchError
from bench.schedule import play, probe
from bench.schedule.compare import new_folder
from bench.schedule.load import (
    CARDS,
    KV_TOKENS_LEAST,
    OVERSUBSCRIBED,
    Source,
    begun,
    final_tokens,
    joined,
    load_of,
    sessions_of,
    work_of,
)
from bench.schedule.measure import good, outcome, ratio
from bench.schedule.model import text, words
from bench.schedule.play import Ask, Heard, Played, Player, history, opening
from bench.schedule.probe import ADVANCED, OLDEST, Lane, first
from bench.schedule.speed import Speed, Timed, bounds, faster, fit, session_least_s
from bench.schedule.tenants import CHATS, REVIEWS, noisy_loads, pooled_load, timed_out
from bench.schedule.variants import subject
from tests.fakes.tiny_gguf import Shape, train_tokenizer, write

SPEED = Speed(a0=0.05, a1=0.001, a2=1e-6, t0=0.01, t1=1e-5)
PEOPLE = Source("personas", 0.13, 0.13, 0.3, ("customer_service", "wealth_adviser"))


def turn(new: int = 10, out: int = 5, *, gap_s: float = 0.0, keep: int = -1) -> Turn:
    return Turn(round(gap_s * 1e9), "", keep, new, out)


def session(*turns: Turn, start_s: float = 0.0, lane: int = INTERACTIVE) -> Session:
    return Session("s", "bench", lane, "kind", round(start_s * 1e9), None, turns)


def row(
    number: int = 0,
    at: int = 0,
    *,
    asked: float = 0.0,
    ttft: float = 1.0,
    pace: float = 0.1,
    out: int = 11,
    error: str = "",
) -> Played:
    first_s = asked + ttft
    return Played(number, at, asked, first_s, first_s + pace * (out - 1), 100, 50, out, 0, error)


def test_a_text_has_its_tokens_and_each_seed_its_own() -> None:
    tokenizer = train_tokenizer(4_096)
    found = text("a", 300)
    assert len(tokenizer.encode(found).ids) == 300
    assert tokenizer.encode(found).tokens[0].replace("Ġ", " ") in words()
    assert text("a", 300) == found
    assert text("b", 300)[:20] != found[:20]


def test_the_model_can_only_answer_in_words_of_one_token(tmp_path: Path) -> None:
    shape = Shape(layers=1, hidden=16, heads=1, kv_heads=1, vocab=4_096, whole_words=True)
    reader = gguf.GGUFReader(write(tmp_path / "m.gguf", shape))
    names = [text.decode() for text in map(bytes, _strings(reader))]
    (output,) = (tensor.data for tensor in reader.tensors if tensor.name == "output.weight")
    can = {name.replace("Ġ", " ") for name, row in zip(names, output, strict=True) if row.any()}
    assert can == set(words())


def _strings(reader: Any) -> list[Any]:
    tokens = reader.fields["tokenizer.ggml.tokens"]
    return [tokens.parts[at] for at in tokens.data]


def test_the_oldest_session_goes_first_or_the_most_advanced() -> None:
    def ask(number: int, at: int, began_s: float) -> Ask:
        return Ask(number, at, "bench", began_s, [], 1)

    waiting = [ask(3, 0, 9.0), ask(1, 1, 2.0), ask(2, 4, 5.0)]
    assert waiting[first(OLDEST, waiting)].session == 1
    assert waiting[first(ADVANCED, waiting)].session == 2
    level = [ask(5, 2, 3.0), ask(4, 2, 3.0)]
    assert level[first(ADVANCED, level)].session == 4


@dataclass
class Slot:
    """What a lane of the probe tells its server, in place of HTTP."""

    said: list[str] = field(default_factory=list)
    running: int = 0

    async def switch(self, _lane: Lane, _http: object, action: str, number: int) -> None:
        self.said.append(f"{action} {number}")

    async def chat(self, _http: object, _url: str, ask: Ask, _headers: object, **_: Any) -> Heard:
        assert self.running == 0, "two turns at once on one card"
        self.running += 1
        await asyncio.sleep(0)
        self.running -= 1
        self.said.append(f"turn {ask.session}.{ask.turn}")
        return Heard(0.0, 0.0, 1, 0, 1, "")


async def test_a_lane_runs_one_turn_at_a_time_and_moves_kv_only_between_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot = Slot()
    monkeypatch.setattr(Lane, "_slot", lambda *given: slot.switch(*given))
    monkeypatch.setattr(probe, "chat", slot.chat)
    lane = Lane("http://card", OLDEST)
    http = cast("aiohttp.ClientSession", None)

    def ask(number: int, at: int) -> Ask:
        return Ask(number, at, "bench", float(number), [], 1)

    await asyncio.gather(*(lane.ask(http, ask(number, 0)) for number in (2, 1, 0)))
    assert slot.said == [
        "erase 2",
        "turn 2.0",  # it came to an idle card
        "save 2",
        "erase 0",
        "turn 0.0",
        "save 0",
        "erase 1",
        "turn 1.0",
    ]
    slot.said.clear()
    await lane.ask(http, ask(1, 1))
    await lane.ask(http, ask(0, 1))
    assert slot.said == ["turn 1.1", "save 1", "restore 0", "turn 0.1"]


def test_a_history_that_is_cut_keeps_whole_messages_and_the_prompts_size() -> None:
    messages, size = opening(session(turn(new=300)))
    assert [m["role"] for m in messages] == ["system"]
    assert messages[0]["content"].count(" ") == play.SYSTEM_TOKENS
    assert size == 300 - play.SYSTEM_TOKENS
    messages += [
        {"role": "user", "content": text("u", size)},
        {"role": "assistant", "content": text("a", 40)},
    ]
    whole, new = history(messages, turn(new=7))
    assert (len(whole), new) == (3, 7)
    without_answer, new = history(messages, turn(new=7, keep=316))
    assert (len(without_answer), new) == (2, 7)
    head, new = history(messages, turn(new=7, keep=200))
    assert len(head) == 1
    assert new == 200 + 7 - (play.SYSTEM_TOKENS + play.OVERHEAD_TOKENS)


@dataclass
class Scripted:
    """An endpoint that fails as it is told; keeps what it was asked."""

    failures: list[Heard]
    asked: list[Ask] = field(default_factory=list)

    async def ask(self, _http: aiohttp.ClientSession, ask: Ask) -> Heard:
        self.asked.append(ask)
        now_s = time.perf_counter()
        if self.failures:
            return self.failures.pop(0)._replace(end_s=now_s)
        return Heard(now_s, now_s, 1, 0, ask.limit, " word")


def failed(retry_s: float) -> Heard:
    return Heard(-1.0, 0.0, 0, 0, 0, "", "busy", retry_s)


async def test_a_turn_is_asked_again_twice_and_the_next_one_has_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(play, "RETRY_SECONDS", 0.0)
    workload = Workload("w", "", (session(turn(), turn()),))
    endpoint = Scripted([failed(0.0), failed(0.0)])
    rows = await Player(endpoint, workload, "x").play(5.0)
    assert [(r.turn, r.retries, r.error) for r in rows] == [(0, 2, ""), (1, 0, "")]
    roles = [message["role"] for message in endpoint.asked[-1].messages]
    assert roles == ["system", "user", "assistant", "user"]


async def test_a_refusal_that_says_when_to_come_back_is_obeyed_as_often_as_it_comes() -> None:
    workload = Workload("w", "", (session(turn()),))
    rows = await Player(Scripted([failed(0.01)] * 5), workload, "x").play(5.0)
    assert [(r.turn, r.retries, r.error) for r in rows] == [(0, 5, "")]
    assert rows[0].first_s - rows[0].asked_s >= 0.05


@pytest.mark.parametrize("failures", [[failed(-1.0)], [failed(0.0)] * 3])
async def test_a_session_is_lost_after_a_final_answer_or_a_third_failure(
    failures: list[Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "RETRY_SECONDS", 0.0)
    workload = Workload("w", "", (session(turn(), turn()),))
    rows = await Player(Scripted(list(failures)), workload, "x").play(5.0)
    assert [(r.turn, r.error) for r in rows] == [(0, "busy")]
    assert outcome(workload, rows, 1.0).lost == 1


async def test_a_play_ends_with_the_sessions_that_are_waited_for() -> None:
    soon = session(turn())._replace(tenant="quiet")
    never = session(turn(), start_s=1e6)._replace(tenant="noisy")
    rows = await Player(Scripted([]), Workload("w", "", (soon, never)), "x").play(
        60.0, until=("quiet",)
    )
    assert [r.session for r in rows] == [0]


def test_a_turn_is_good_inside_both_limits_of_its_lane() -> None:
    from bedplate.twin.goodput import slo_class

    slo = slo_class(INTERACTIVE, 2.0)  # 4 s, 0.2 s
    assert good(row(ttft=4.0, pace=0.19), slo)
    assert not good(row(ttft=4.1), slo)
    assert not good(row(pace=0.21), slo)
    assert good(row(pace=9.0, out=1), slo)
    assert not good(row(error="lost"), slo)


def test_what_was_never_asked_is_offered_and_its_session_lost() -> None:
    workload = Workload("w", "", (session(turn(), turn()), session(turn(), start_s=1, lane=SHARED)))
    rows = [row(0, 0, asked=0.0), row(1, 0, asked=1.0, ttft=9.0)]  # shared: 10 s at factor 2
    found = outcome(workload, rows, 2.0)
    assert (found.offered, found.good, found.lost, found.sessions) == (3, 2, 1, 2)
    assert found.seconds == pytest.approx(11.0)
    assert found.goodput == pytest.approx(2 / 11)
    assert found.session_median == pytest.approx((11.0 + 10.0) / 2)
    assert outcome(workload, rows, 1.0).good == 1


def test_a_ratio_pairs_seeds_and_its_interval_holds_it() -> None:
    found = ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found == (2.0, 2.0, 2.0)
    spread = ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    assert spread.low < spread.value == 2.5 < spread.high
    assert ratio([1.0], [0.0]).value == float("inf")
    assert ratio([0.0], [0.0]).value == 1.0


def test_the_speed_is_found_again_from_turns_that_have_it() -> None:
    rows = [
        Timed(new, cached, 24, SPEED.prefill_s(new, cached), SPEED.decode_s(24, new + cached + 12))
        for new, cached in ((200, 0), (100, 220), (600, 0), (100, 620), (2_000, 0), (100, 2_020))
    ]
    assert fit(rows) == pytest.approx(SPEED)
    slow = [r._replace(first_s=2 * r.first_s, rest_s=3 * r.rest_s) for r in rows]
    assert [faster(pair) for pair in zip(rows, slow, strict=True)] == rows


def test_bounds_are_the_least_time_of_sessions_and_the_most_turns_a_second() -> None:
    one = session(turn(300, 20), turn(50, 20, gap_s=3.0))
    two = one._replace(start_ns=round(100e9))
    least = session_least_s(SPEED, one)
    assert least > 3.0
    found = bounds(SPEED, Workload("w", "", (one, two)), 2)
    assert found.session_median == pytest.approx(least, rel=1e-3)
    assert found.session_p95 == pytest.approx(least, rel=1e-3)
    assert found.goodput == pytest.approx(4 / (100 + least))
    many = Workload("w", "", tuple(one for _ in range(200)))
    work = 200 * (least - 3.0)
    crowded = bounds(SPEED, many, 2)
    assert crowded.goodput == pytest.approx(400 / (work / 2))
    assert crowded.session_median == pytest.approx(work / 2 / 2, rel=0.01)
    assert crowded.session_p95 == pytest.approx(0.95 * work / 2, rel=0.01)


def test_a_load_has_its_sessions_its_rate_and_its_kv() -> None:
    level = OVERSUBSCRIBED._replace(sessions=60)
    found = load_of(PEOPLE, level, SPEED, seed=1)
    sessions = found.workload.sessions
    assert len(sessions) == 60
    assert found == load_of(PEOPLE, level, SPEED, seed=1)
    assert found != load_of(PEOPLE, level, SPEED, seed=2)
    kv = sum(final_tokens(s) for s in sessions)
    assert kv / (CARDS * found.kv_tokens) == pytest.approx(2.0, rel=1e-3)
    span_s = work_of(SPEED, sessions) / (CARDS * level.load)
    assert 0.7 * span_s < sessions[-1].start_ns / 1e9 <= span_s
    few = load_of(PEOPLE, level._replace(sessions=2), SPEED, seed=1)
    assert few.kv_tokens == KV_TOKENS_LEAST


def test_sessions_are_cut_to_the_size_of_a_slow_card() -> None:
    sessions = sessions_of(PEOPLE, 30, seed=3)
    turns = [t for s in sessions for t in s.turns]
    assert {len(s.turns) for s in sessions} <= {4, 5, 6}
    assert max(t.out_tokens for t in turns) <= 80
    assert max(t.gap_ns for t in turns) <= 6e9
    assert max(final_tokens(s) for s in sessions) < 2_000


def test_starts_fill_their_span_in_order() -> None:
    found = begun([session(turn())] * 50, 10.0, 20.0, seed=1)
    starts = [s.start_ns / 1e9 for s in found]
    assert starts == sorted(starts)
    assert 10.0 <= starts[0] < 13.0 < 27.0 < starts[-1] < 30.0
    assert joined("w", found[::-1]).sessions[0].start_ns == 0


def test_two_tenants_are_busy_at_different_times_with_the_same_work() -> None:
    workload = pooled_load(SPEED, 40, 1)
    parts: dict[str, Sequence[Session]] = {
        source.name: [s for s in workload.sessions if s.tenant == source.name]
        for source in (CHATS, REVIEWS)
    }
    work = [work_of(SPEED, part) for part in parts.values()]
    assert max(work) / min(work) < 1.5
    half = max(s.start_ns for s in workload.sessions) / 2
    early = {name: sum(s.start_ns < half for s in part) / len(part) for name, part in parts.items()}
    assert early["chats"] > 0.7
    assert early["reviews"] < 0.3
    lanes = {s.tenant: s.lane for s in workload.sessions}
    assert lanes == {"chats": INTERACTIVE, "reviews": SHARED}


def test_only_reviews_that_begin_in_time_are_in_time() -> None:
    review = session(turn(), turn())._replace(tenant=REVIEWS.name)
    workload = Workload("w", "", (review, review, session(turn())))
    rows = [row(0, 0), row(0, 1, ttft=31.0), row(1, 0, error="busy"), row(2, 0, ttft=99.0)]
    assert timed_out(workload, rows) == 3  # late, refused, and the one after it never asked


def test_a_noisy_tenant_asks_for_ten_times_its_share_beside_the_same_quiet_one() -> None:
    alone, both = noisy_loads(SPEED, 6, 1)
    quiet = [s for s in both.sessions if s.tenant == "quiet"]
    assert [s.turns for s in quiet] == [s.turns for s in alone.sessions]
    assert len(both.sessions) == 6 + 120


def test_each_play_of_a_subject_with_other_rules_has_a_folder_of_its_own(tmp_path: Path) -> None:
    names = [new_folder(tmp_path, "bedplate/oldest:slots=1-7").name for _ in range(2)]
    assert names == ["bedplate-oldest-slots=1-7-0", "bedplate-oldest-slots=1-7-1"]


def test_a_subject_is_named_with_its_settings() -> None:
    ours = subject("bedplate:running_max=3,slots=5", 4_000)
    assert (ours.name, ours.room.slots, ours.room.kv_tokens, dict(ours.engine)) == (  # type: ignore[attr-defined]
        "bedplate:running_max=3,slots=5",
        5,
        4_000,
        {"running_max": 3},
    )
    other = subject("bedplate/oldest:slots=5", 4_000)
    assert other.options == ("oldest",)  # type: ignore[attr-defined]
    with pytest.raises(BenchError, match="no rules 'newest'"):
        subject("bedplate/newest", 4_000)
    with pytest.raises(BenchError, match="no setting running_max"):
        subject("pinned:running_max=2", 4_000)
    with pytest.raises(BenchError, match="KEY=NUMBER"):
        subject("pinned:slots", 4_000)
    with pytest.raises(BenchError, match="no subject 'nginx'"):
        subject("nginx", 4_000)
