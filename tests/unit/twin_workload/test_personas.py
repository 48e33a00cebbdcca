"""Personas: their distributions, and that sessions come out as the field reports them."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from bedplate.core.limits import BATCH, INTERACTIVE, SHARED
from bedplate.errors import ConfigError
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.generate import Mix, generate
from bedplate.twin.workload.native import check
from bedplate.twin.workload.personas import Draw, cast
from bedplate.twin.workload.read import read_workload
from bedplate.twin.workload.statistics import statistics
from tests.unit.twin_workload import samples
from tests.unit.twin_workload.samples import write

NAMES = {
    "wealth_adviser",
    "investment_research",
    "fraud_triage",
    "compliance_review",
    "customer_service",
    "insurance_claim",
    "loan_parser",
}
"""The six kinds of session, and the first agent of a loan's pre-review."""


def mix(
    shares: dict[str, float], *, per_hour: float = 400, start: str = "", hours: float = 1
) -> Mix:
    if not start:
        return Mix(shares=shares, sessions_per_hour=per_hour, hours=hours, flat=True)
    when = datetime.fromisoformat(start)
    return Mix(shares=shares, sessions_per_hour=per_hour, hours=hours, start=when)


def sessions_of(name: str) -> Workload:
    found = generate(mix({name: 1.0}), seed=7)
    check(found)
    return found


def test_every_persona_has_a_session() -> None:
    assert set(cast().heads()) == NAMES
    for name in NAMES:
        assert statistics(sessions_of(name)).turns > 500


def test_a_wealth_adviser_makes_14_calls_and_6_to_10_tool_calls_in_18k_tokens() -> None:
    found = sessions_of("wealth_adviser")
    told = statistics(found)
    assert told.turns_per_session.p50 == 14
    tools = [sum(turn.tool != "" for turn in session.turns) for session in found.sessions]
    assert 6 <= sum(tools) / len(tools) <= 10
    assert told.context_tokens.mean == pytest.approx(18_000, rel=0.1)
    assert {session.lane for session in found.sessions} == {INTERACTIVE}


def test_fraud_cases_have_20k_to_30k_tokens_in_one_context() -> None:
    told = statistics(sessions_of("fraud_triage"))
    assert 20_000 <= told.context_tokens.p50 <= 30_000
    assert 20_000 <= told.context_tokens.mean <= 30_000


def test_service_chats_grow_from_1k_to_32k_and_are_mostly_of_3k_to_8k() -> None:
    found = sessions_of("customer_service")
    told = statistics(found)
    first = sorted(session.turns[0].new_tokens for session in found.sessions)
    assert first[len(first) // 2] == pytest.approx(1_000, rel=0.1)
    assert 3_000 <= told.context_tokens.p50 <= 8_000
    assert told.context_tokens.p99 <= 32_000


def test_research_reads_a_prospectus_in_one_context() -> None:
    told = statistics(sessions_of("investment_research"))
    assert told.context_tokens.mean >= 48_000
    assert 7 <= told.turns_per_session.p50 <= 30


def test_reviews_and_claims() -> None:
    assert statistics(sessions_of("compliance_review")).context_tokens.p50 >= 30_000
    assert {s.lane for s in sessions_of("compliance_review").sessions} == {BATCH}
    claim = sessions_of("insurance_claim")
    assert {turn.tool for s in claim.sessions for turn in s.turns} >= {
        "form_recognition",
        "clauses",
        "amount",
        "fraud_check",
    }


def test_a_loan_passes_four_agents_within_their_contexts() -> None:
    found = sessions_of("loan_parser")
    longest: dict[str, int] = {}
    for index, session in enumerate(found.sessions):
        context = sum(turn.new_tokens + turn.out_tokens for turn in session.turns)
        longest[session.kind] = max(longest.get(session.kind, 0), context)
        assert session.lane == SHARED
        if session.kind != "loan_parser":
            before = found.sessions[index - 1]
            assert session.spawn is not None
            assert session.spawn == (index - 1, len(before.turns) - 1, False)
    assert list(longest) == ["loan_parser", "loan_analyst", "loan_checker", "loan_writer"]
    for kind, context_max in zip(longest, (32_768, 65_536, 16_384, 32_768), strict=True):
        assert context_max // 3 < longest[kind] <= context_max


def test_draws_meet_their_quantiles() -> None:
    plain = Draw(p50=100, p99=1000)
    tailed = Draw(p50=8, p90=74, p99=1716)
    for draw, marks in (
        (plain, {0.5: 100, 0.99: 1000}),
        (tailed, {0.5: 8, 0.9: 74, 0.99: 1716}),
    ):
        for share, value in marks.items():
            assert draw.quantile(share) == pytest.approx(value)
        found = [draw.quantile(n / 1000) for n in range(1, 1000)]
        assert found == sorted(found)
    # The tail is Pareto: survival falls by ten where the value grows by 1,716 / 74.
    assert tailed.quantile(0.999) == pytest.approx(1716 * 1716 / 74)
    assert Draw(p50=8, p90=74, p99=1716, max=600).quantile(0.99) == 600
    random = Random(5)
    values = sorted(tailed.draw(random) for _ in range(20_000))
    assert values[10_000] == pytest.approx(8, rel=0.05)
    assert values[18_000] == pytest.approx(74, rel=0.1)
    assert math.isfinite(values[-1])


def starts(start: str, persona: str = "customer_service") -> int:
    found = generate(mix({persona: 1.0}, per_hour=400, start=start), seed=3)
    return sum(session.spawn is None for session in found.sessions)


def test_months_begin_with_a_burst_and_weekends_are_quiet() -> None:
    usual = starts("2026-12-16T10:00:00")
    assert usual == pytest.approx(400, rel=0.15)
    for first in ("2026-12-01T10:00:00", "2026-12-02T10:00:00", "2026-08-03T10:00:00"):
        assert 5 <= starts(first) / usual <= 10  # 3 August 2026 is a Monday behind a weekend
    assert starts("2026-12-03T10:00:00") == pytest.approx(usual, rel=0.2)
    assert starts("2026-12-19T10:00:00") == pytest.approx(usual / 10, rel=0.4)


def test_each_persona_has_its_hours() -> None:
    def at(name: str, hour: int) -> int:
        return starts(f"2026-12-16T{hour:02}:00:00", name)

    assert at("investment_research", 8) > 2 * at("investment_research", 16)
    assert at("fraud_triage", 17) > 2 * at("fraud_triage", 9)
    assert at("customer_service", 14) > 20 * at("customer_service", 3)


def test_a_burst_ends_at_midnight() -> None:
    found = generate(
        mix({"fraud_triage": 1.0}, per_hour=1_500, start="2026-12-02T22:00:00", hours=4), seed=1
    )
    before = sum(session.start_ns < 2 * 3600 * 10**9 for session in found.sessions)
    after = len(found.sessions) - before
    # Weights of the hours: 20 and 12 at six times the rate, then 8 and 4.
    assert before / after == pytest.approx(6 * (20 + 12) / (8 + 4), rel=0.15)


def test_a_persona_does_not_depend_on_the_others() -> None:
    alone = generate(mix({"fraud_triage": 1.0}, per_hour=100), seed=5)
    mixed = generate(mix({"fraud_triage": 1.0, "customer_service": 1.0}, per_hour=200), seed=5)
    rest = [session for session in mixed.sessions if session.kind == "fraud_triage"]
    assert [session.turns for session in rest] == [session.turns for session in alone.sessions]
    assert generate(mix({"fraud_triage": 1.0}, per_hour=100), seed=6) != alone


def test_a_mix_file_changes_personas(tmp_path: Path) -> None:
    text = samples.MIX + "\n[personas.customer_service]\ncalls = { p50 = 2, p99 = 3, max = 3 }\n"
    found = read_workload(write(tmp_path, "mix.toml", text), seed=2)
    check(found)
    assert found.name == "mix"
    chats = [session for session in found.sessions if session.kind == "customer_service"]
    assert chats
    assert max(len(session.turns) for session in chats) == 3
    assert {session.tenant for session in chats} == {"service"}


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 10,000,000 sessions"):
        generate(mix({"fraud_triage": 1.0}, per_hour=1e9), seed=1)
    with pytest.raises(ConfigError, match="no persona has a share"):
        generate(mix({"fraud_triage": 0.0}), seed=1)
    with pytest.raises(ConfigError, match="rise"):
        cast({"personas": {"fraud_triage": {"answer": {"p50": 10, "p99": 5}}}})
    with pytest.raises(ConfigError, match="curve"):
        cast({"personas": {"fraud_triage": {"curve": "night"}}})
    with pytest.raises(ConfigError, match="after 9999"):
        generate(mix({"fraud_triage": 1.0}, start="9999-12-31T22:00:00", hours=3), seed=1)
    with pytest.raises(ConfigError, match="more than 100,000; give"):
        generate(
            mix({"fraud_triage": 1.0}),
            seed=1,
            people=cast({"personas": {"fraud_triage": {"calls": {"p50": 1e8, "p99": 1e9}}}}),
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"first": {"p50": 1e300, "p99": 1e301}}, "<= 1000000000.0 - at `$.first.p50`"),
        ({"tool_s": {"p50": 1.0, "p99": 2.0, "min": math.inf}}, "at `$.tool_s.min`"),
        ({"added": {"p50": 1e-300, "p90": 1.0, "p99": 9.0}}, "at `$.added.p50`"),
        ({"tenant": ""}, "tenant and tools have names"),
        ({"tools": [""]}, "tenant and tools have names"),
        ({"context": 1}, "holds no call"),
    ],
)
def test_what_no_session_can_be_drawn_from_names_its_persona(
    change: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        cast({"personas": {"fraud_triage": change}})
    assert "[personas.fraud_triage]" in caught.value.message
    assert said in caught.value.message


def test_the_widest_distribution_stays_within_its_bounds() -> None:
    wide = Draw(p50=1e-9, p90=1.0, p99=1e9)
    assert 0 <= wide.quantile(5e-324) < 1e-200
    assert wide.quantile(1 - 2**-53) == 1e9


def test_ten_tenths_are_as_ten_ones() -> None:
    """So that a mix is the same on every Python: sum() of floats is not, from 3.12 on."""
    names = cast().personas
    ones = generate(mix(dict.fromkeys(names, 1.0), per_hour=400), seed=2)
    assert generate(mix(dict.fromkeys(names, 0.1), per_hour=400), seed=2) == ones


def test_only_a_calendar_counts_month_starts() -> None:
    flat = mix({"fraud_triage": 1.0}, per_hour=2e6, hours=0.001)
    assert generate(flat, seed=1).sessions
    with pytest.raises(ConfigError, match="more than 10,000,000 sessions"):
        generate(mix({"fraud_triage": 1.0}, per_hour=2e6, start="2026-12-02T22:00:00"), seed=1)


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000, "{ a = " * 5_000])
def test_a_mix_file_that_cannot_be_parsed_is_named(tmp_path: Path, value: str) -> None:
    path = write(tmp_path, "mix.toml", f"[mix]\nhours = {value}\n")
    with pytest.raises(ConfigError, match=r"mix\.toml: is not TOML: "):
        read_workload(path)
