"""Each baseline does what it is named after, on small loads in the twin."""

from __future__ import annotations

from collections import Counter

import pytest

from bedplate.core import events as ev
from bedplate.core.base import Base
from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import SHARED
from bedplate.core.units import SECOND_NS
from bedplate.twin.outcome import Outcome
from bedplate.twin.workload.form import Session, Turn, Workload
from bench.baselines.catalogue import BASELINES
from bench.baselines.continuum import RELEASED_TTL_NS, Continuum
from bench.schedule_twin import play
from bench.schedule_twin.sites import BOX, site

AT = site(BOX)
BY_NAME = {each.name: each for each in BASELINES}


def _workload(
    sessions: int, *, turns: int = 3, new: int = 2_000, gap_s: float = 1.0, every_s: float = 0.2
) -> Workload:
    turn = Turn(round(gap_s * SECOND_NS), "tool", -1, new, 50)
    first = Turn(0, "", -1, new, 50)
    return Workload(
        "w",
        "w",
        tuple(
            Session(
                f"s{i}",
                f"t{i % 2}",
                SHARED,
                "k",
                round(i * every_s * SECOND_NS),
                None,
                (first, *[turn] * (turns - 1)),
            )
            for i in range(sessions)
        ),
    )


def _run(name: str, workload: Workload) -> Outcome:
    return play.baseline(AT, workload, BY_NAME[name], seed=1)


@pytest.mark.parametrize("name", list(BY_NAME))
def test_every_session_ends_even_where_cards_are_far_too_small(name: str) -> None:
    """Forty sessions of 60K tokens in the KV of eight cards, which hold twenty of them."""
    outcome = _run(name, _workload(40, new=20_000, gap_s=3.0))
    assert all(row.turns_done == 3 and not row.failed for row in outcome.sessions)


@pytest.mark.parametrize("name", ["round robin", "continuum", "plas", "thunder"])
def test_nothing_is_carried_over_from_one_run_to_the_next(name: str) -> None:
    """These learn while they run."""
    workload = _workload(12, new=8_000)
    assert _run(name, workload).digest == _run(name, workload).digest


def test_release_finds_nothing_and_lru_everything() -> None:
    workload = _workload(16)
    later = [row for row in _run("release", workload).turns if row.turn]
    assert {row.cached_tokens for row in later} == {0}
    kept = [row for row in _run("lru", workload).turns if row.turn]
    assert all(row.cached_tokens >= 2_000 * row.turn for row in kept)


def test_round_robin_goes_round() -> None:
    cards = Counter(row.card for row in _run("round robin", _workload(16, turns=1)).turns)
    assert set(cards.values()) == {2}
    assert len(cards) == len(AT.cards)


def test_sticky_sessions_stay() -> None:
    outcome = _run("sticky", _workload(40, new=12_000))
    homes: dict[int, set[str]] = {}
    for row in outcome.turns:
        homes.setdefault(row.session, set()).add(row.card)
    assert all(len(cards) == 1 for cards in homes.values())


def test_vtc_serves_who_got_less() -> None:
    """One tenant has a backlog of 60 prompts; the other's one, later, does not wait for them."""
    first = Turn(0, "", -1, 20_000, 50)
    crowd = [Session(f"a{i}", "a", SHARED, "k", 0, None, (first,)) for i in range(80)]
    late = Session("b", "b", SHARED, "k", 5 * SECOND_NS, None, (first,))
    workload = Workload("w", "w", (*crowd, late))
    waits = {
        name: next(r.first_ns - r.arrival_ns for r in _run(name, workload).turns if r.session == 80)
        for name in ("lru", "vtc")
    }
    assert waits["vtc"] < waits["lru"] / 2


def test_plas_lets_the_newcomer_before_those_that_ran() -> None:
    """Sessions of one turn, among sessions that have been served for long."""
    first, more = Turn(0, "", -1, 15_000, 300), Turn(SECOND_NS, "tool", -1, 15_000, 300)
    long = [Session(f"l{i}", "a", SHARED, "k", 0, None, (first, *[more] * 4)) for i in range(40)]
    new = [
        Session(f"n{i}", "a", SHARED, "k", (40 + i) * SECOND_NS, None, (first,)) for i in range(20)
    ]
    workload = Workload("w", "w", (*long, *new))
    means = {}
    for name in ("lru", "plas"):
        rows = [row for row in _run(name, workload).turns if row.session >= 40]
        means[name] = sum(row.first_ns - row.arrival_ns for row in rows) / len(rows)
    assert means["plas"] < means["lru"] / 2


def test_thunder_lets_no_more_go_on_than_fit() -> None:
    """Of sixty contexts of 60K twenty fit: who starts them all has to load what it dropped."""
    workload = _workload(60, new=20_000, gap_s=3.0, every_s=0.01)
    loads = {
        name: sum(card.loads for card in _run(name, workload).cards) for name in ("vtc", "thunder")
    }
    assert loads["thunder"] < loads["vtc"]


def _ended(turn: str, tool: str) -> ev.TurnEnded:
    return ev.TurnEnded(TurnId(turn), 1, "tool_calls", 100, 0, 5, 10_000, tool, True)


def _arrived(turn: str, session: str) -> ev.TurnArrived:
    return ev.TurnArrived(
        TurnId(turn),
        SessionId(session),
        BranchId(0),
        -1,
        TenantId("t"),
        SHARED,
        ModelId("m"),
        100,
        0,
        0,
        False,
        True,
    )


def _taught(policy: Continuum, seconds: list[float]) -> None:
    """Let one tool take these times."""
    heard = policy.chosen().heard
    assert heard is not None
    base, now_ns = Base(), 0
    for number, each in enumerate(seconds):
        heard(base, now_ns, _arrived(f"a{number}", f"s{number}"), ())
        heard(base, now_ns, _ended(f"a{number}", "tool"), ())
        now_ns += round(each * SECOND_NS)
        heard(base, now_ns, _arrived(f"b{number}", f"s{number}"), ())


def test_continuum_holds_as_long_as_it_pays() -> None:
    """A 10K context costs about two seconds to compute: 1 s is worth waiting for, 60 s is not."""
    policy = Continuum(AT, released=False)
    _taught(policy, [0.5, 1.0, 60.0, 60.0] * 40)
    assert policy.ttl_ns("tool", 10_000) in (SECOND_NS // 2, SECOND_NS)
    assert policy.ttl_ns("tool", 10) == 0
    patient = Continuum(AT, released=False)
    _taught(patient, [60.0] * 120)
    assert patient.ttl_ns("tool", 10_000) == 0


def test_the_released_code_holds_for_two_seconds_or_not_at_all() -> None:
    quick, slow = Continuum(AT, released=True), Continuum(AT, released=True)
    _taught(quick, [1.0] * 5)
    _taught(slow, [5.0] * 5)
    assert quick.ttl_ns("tool", 10_000) == RELEASED_TTL_NS
    assert slow.ttl_ns("tool", 10_000) == 0
