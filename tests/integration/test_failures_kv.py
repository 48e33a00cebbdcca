"""F21 on the running service: a restored session never speaks with another's KV, and none is lost.

What the engine checks for itself (checksum, token hash, foreign tenant, each field of the
fingerprint) stands in test_llamacpp_turns.py and test_llamacpp_cards.py; here the core, the pool
and two cards move sessions, and clients see only their answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tiny_gguf import Shape, write
from tests.integration.served import Served, tiny_cards, until

SESSIONS = 12
CARDS = ("emb-0", "emb-1")


class Talk:
    """A named session with a needle in it, and what was said."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        needle = f"The secret of client {number} is {number * 7919 % 997}. "
        content = needle + "The adviser writes a note. " * 20
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        self.kv_tokens = 0

    def say(self, served: Served) -> Any:
        """Run one turn, greedy; return the whole answer."""
        answer = served.client().chat.completions.create(
            model="tiny",
            messages=self.messages,  # type: ignore[arg-type]
            max_tokens=24,
            temperature=0,
            extra_headers={"X-Session-Id": self.name},
        )
        self.messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        self.kv_tokens = answer.usage.total_tokens - 1  # type: ignore[union-attr]
        return answer

    def ask(self) -> None:
        self.messages.append({"role": "user", "content": "What is the secret?"})

    def place(self, served: Served) -> dict[str, Any]:
        """Return where the KV of the session is."""
        (branch,) = served.session(self.name)["branches"]
        shown: dict[str, Any] = branch
        return shown

    def stored(self, served: Served) -> None:
        """Return once the pool has all of it."""
        until(lambda: self.place(served)["pool_tokens"] == self.kv_tokens)


def cached_of(answer: Any) -> int:
    cached: int = answer.usage.prompt_tokens_details.cached_tokens
    return cached


@pytest.fixture
def alone(tmp_path: Path, tiny_model: Path) -> Iterator[Served]:
    """Run a service whose slots no other test has filled, so that controls stay where they are."""
    with Served(tmp_path / "served", tiny_cards(tiny_model)) as served:
        yield served
        assert served.stop() == 0
        served.check_books()


def test_f21_sessions_moved_through_the_pool_answer_as_those_that_stayed(
    alone: Served,
) -> None:
    """F21: twelve with a needle each move to the other card; greedy answers equal the controls."""
    moved = [Talk(f"moved-{number}", number) for number in range(SESSIONS)]
    stays = [Talk(f"stays-{number}", number) for number in range(SESSIONS)]
    for number, (one, other) in enumerate(zip(moved, stays, strict=True)):
        # First turns are balanced, so the order of a pair decides which of it is on which card.
        pair = (one, other) if number % 2 else (other, one)
        first, second = (talk.say(alone) for talk in pair)
        assert first.choices == second.choices
        one.stored(alone)
        one.ask()
        other.ask()
    loads = len(alone.records("KvLoaded"))
    wanted = []
    for other in stays:
        before = other.kv_tokens
        answer = other.say(alone)
        assert cached_of(answer) == before > 150
        wanted.append(answer.choices[0].message.content)
    assert len(set(wanted)) == SESSIONS, "each answer depends on its own needle"
    assert len(alone.records("KvLoaded")) == loads, "the controls stayed in their slots"
    homes = {one.name: one.place(alone)["card"] for one in moved}
    assert set(homes.values()) == set(CARDS)
    for card, other_card in (CARDS, CARDS[::-1]):
        alone.drain(card, on=True)
        try:
            for one, text in zip(moved, wanted, strict=True):
                if homes[one.name] != card:
                    continue
                before = one.kv_tokens
                answer = one.say(alone)
                assert cached_of(answer) == before
                assert answer.choices[0].message.content == text
                assert one.place(alone)["card"] == other_card
        finally:
            alone.drain(card, on=False)
    loaded = alone.records("KvLoaded")[loads:]
    assert len(loaded) >= SESSIONS, "a transfer happened for each"
    assert {record.body["card"] for record in loaded} == set(CARDS)
    for talk in moved + stays:
        assert alone.http("DELETE", f"/v1/sessions/{talk.name}").status_code == 200
    until(lambda: alone.state()["pool"]["entries"] == 0)


def test_f21_kv_of_another_model_is_computed_again(tmp_path: Path) -> None:
    """F21: the engine comes back as another make: nothing is loaded, and the answers are its own.

    Then the first make comes back: what it stored before is used no more either, for the sessions
    went on without it.
    """
    models = [write(tmp_path / f"{seed}.gguf", Shape(seed=seed)) for seed in (7, 8)]
    served = Served(tmp_path / "served", tiny_cards(models[0]))
    talks = [Talk(f"s{number}", number) for number in range(4)]
    with served:
        for talk in talks:
            talk.say(served)
            talk.stored(served)
            talk.ask()
        assert served.stop() == 0
        served.configure(tiny_cards(models[1]))
        served.start()
        for number, talk in enumerate(talks):
            control = Talk(f"c{number}", number)
            control.messages = list(talk.messages)
            answer, fresh = talk.say(served), control.say(served)
            assert cached_of(answer) == cached_of(fresh) == 0
            assert answer.choices[0].message.content == fresh.choices[0].message.content
            assert answer.usage == fresh.usage
            talk.ask()
        assert served.records("KvLoaded") == []
        again = talks[0].say(served)
        assert cached_of(again) > 0, "what the new make computed is used"
        assert served.stop() == 0
        served.check_books()


def test_f21_sessions_go_on_from_the_pool_after_a_restart(tmp_path: Path, tiny_model: Path) -> None:
    """F21: the same make comes back: each session is loaded, and answers as one that stayed."""
    with Served(tmp_path / "served", tiny_cards(tiny_model)) as served:
        talks = [Talk(f"s{number}", number) for number in range(4)]
        stays = [Talk(f"c{number}", number) for number in range(4)]
        for one, other in zip(talks, stays, strict=True):
            one.say(served)
            one.stored(served)
            one.ask()
            other.say(served)
            other.ask()
        wanted = [other.say(served).choices[0].message.content for other in stays]
        assert served.stop() == 0
        served.start()
        for one, text in zip(talks, wanted, strict=True):
            before = one.kv_tokens
            answer = one.say(served)
            assert cached_of(answer) == before
            assert answer.choices[0].message.content == text
        assert len(served.records("KvLoaded")) == 4
        assert served.stop() == 0
        served.check_books()
