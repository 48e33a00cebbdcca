"""A batch turn on the only slot makes way for an interactive call, and its answer has no seam."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest

from tests.fakes.tiny_gguf import Shape, write
from tests.integration.served import Served, tiny_cards, until

TOKENS = 1_200
QUESTION = "Explain the fee of the last quarter."
SLOW = Shape(layers=8, hidden=256, heads=4, kv_heads=4, whole_words=True)
"""Large enough that an answer takes several seconds on one core."""
FIRST_MAX_S = 2.0
NOTHING = {"prompt": 0, "cached": 0, "out": 0}
"""What the card counted beyond what was metered: the resumed prompt is nobody's twice."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a service with one card of one slot, and at its end look at all its books."""
    folder = tmp_path_factory.mktemp("yield")
    model = write(folder / "slow.gguf", SLOW)
    engine = tiny_cards(model, cards=1, slots=1, running_max=1)
    with Served(folder / "served", engine) as service:
        yield service
        assert service.stop() == 0
        service.check_books()
        check = service.cli("bill", "--check")["check"]
        assert check["unexplained_tokens"] == 0
        assert [card["difference"] for card in check["cards"]] == [NOTHING], check


class Batch(threading.Thread):
    """A batch call with its streamed answer: `text` grows, `usage` comes last."""

    def __init__(self, served: Served, session: str) -> None:
        super().__init__(daemon=True)
        self.served = served
        self.session = session
        self.text = ""
        self.usage: Any = None

    def run(self) -> None:
        stream = self.served.client(self.served.rival).chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"X-Session-Id": self.session},
        )
        for chunk in stream:
            self.usage = chunk.usage or self.usage
            for choice in chunk.choices:
                self.text += choice.delta.content or ""


def longer(batch: Batch, characters: int) -> bool:
    """Tell whether more of the answer has come."""
    return len(batch.text) > characters


def interactive(client: openai.OpenAI, number: int) -> float:
    """Ask a short question; return the seconds until its first token."""
    began = time.monotonic()
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": f"account {number}"}],
        max_tokens=8,
        temperature=0,
        stream=True,
    )
    first = 0.0
    for chunk in stream:
        if not first and chunk.choices and chunk.choices[0].delta.content:
            first = time.monotonic() - began
    return first


def test_a_batch_answer_goes_on_behind_interactive_calls_and_is_paid_for_once(
    served: Served,
) -> None:
    alone = Batch(served, "alone")
    began = time.monotonic()
    alone.run()
    took_s = time.monotonic() - began
    assert alone.usage.completion_tokens == TOKENS

    client = served.client()
    cut = Batch(served, "cut")
    cut.start()
    waits = []
    for number in range(2):
        until(partial(longer, cut, len(cut.text) + 200))
        waits.append(interactive(client, number))
        assert cut.is_alive(), f"the whole answer takes {took_s:.1f} s"
    cut.join(60)
    assert max(waits) < FIRST_MAX_S, waits
    assert cut.text == alone.text
    assert cut.usage == alone.usage
    until(served.at_rest)
    rows = [row for row in served.rows().values() if row["lane"] == 2]
    assert [row["attempts"] for row in rows] == [1, 3]
    for key in ("prompt_tokens", "cached_tokens", "out_tokens", "status", "exact"):
        assert rows[0][key] == rows[1][key], key
