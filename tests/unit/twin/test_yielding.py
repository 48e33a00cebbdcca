"""Virtual cards stop a run that makes way, keep its KV, and count its prompt once."""

from __future__ import annotations

from bedplate.core.limits import BATCH, INTERACTIVE
from bedplate.core.units import SECOND_NS
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import simulate
from tests.unit.twin.sites import MS, POOL, session, site, workload

BATCH_SESSION = session("batch", (0, 300, 400), lane=BATCH)
NOW = session("now", (0, 100, 20), start_ns=2 * SECOND_NS, lane=INTERACTIVE)


def run(*sessions: object, slots: int = 1) -> Outcome:
    place = site(1, pool=POOL, slots=slots, running_max=1)
    return simulate(place, workload(*sessions), seed=1)  # type: ignore[arg-type]


def test_the_batch_turn_goes_on_behind_the_interactive_one_without_computing_again() -> None:
    [alone] = run(BATCH_SESSION).turns
    whole = run(BATCH_SESSION, NOW)
    batch, now = whole.turns
    assert whole.counters["yields"] == 1
    assert now.first_ns - now.arrival_ns < 100 * MS
    assert (batch.prompt_tokens, batch.cached_tokens, batch.out_tokens) == (300, 0, 400)
    assert batch.status == "stop"
    assert batch.first_ns == alone.first_ns
    taken_ns = now.end_ns - now.arrival_ns
    assert abs(batch.end_ns - alone.end_ns - taken_ns) < 20 * MS, "it ran while the other waited"
    [card] = whole.cards
    assert card.prompt_tokens == 300 + 100 + 1, "of what it had, only the last token"
    assert card.out_tokens == 400 + 20


def test_a_prompt_that_is_taken_back_is_computed_again() -> None:
    long = session("batch", (0, 8_000, 40), lane=BATCH)
    soon = NOW._replace(start_ns=200 * MS)
    whole = run(long, soon, slots=2)
    batch, now = whole.turns
    assert whole.counters["yields"] == 1
    assert now.end_ns < batch.first_ns
    assert (batch.prompt_tokens, batch.cached_tokens, batch.out_tokens) == (8_000, 0, 40)
