"""Openings in virtual time: the first two sessions of a tenant compute one, later ones load it."""

from __future__ import annotations

from bedplate.core.units import SECOND_NS
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import simulate
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.transform import share_openings
from tests.unit.twin.sites import POOL, session, site, workload

OPENING = 300


def agents(tenants: tuple[str, ...]) -> Workload:
    """Return sessions of one turn, each long after the end of the one before."""
    return workload(
        *(
            session(f"s{at}", (0, 400, 20), start_ns=100 * at * SECOND_NS)._replace(tenant=tenant)
            for at, tenant in enumerate(tenants)
        )
    )


def run(asked: Workload) -> Outcome:
    """Run it on one card with a pool."""
    return simulate(site(cards=1, pool=POOL), asked, seed=1)


def test_the_third_session_of_a_tenant_loads_what_the_second_left() -> None:
    out = run(share_openings(agents(("a", "a", "a", "a")), OPENING))
    assert [row.cached_tokens for row in out.turns] == [0, 0, OPENING, OPENING]
    assert out.counters["prefix_stores"] == 1
    assert sum(card.prompt_tokens for card in out.cards) == 4 * 400 - 2 * OPENING


def test_tenants_do_not_share() -> None:
    out = run(share_openings(agents(("a", "a", "b", "b", "b")), OPENING))
    assert [row.cached_tokens for row in out.turns] == [0, 0, 0, 0, OPENING]
    assert out.counters["prefix_stores"] == 2


def test_without_openings_nothing_is_shared() -> None:
    out = run(agents(("a", "a", "a")))
    assert [row.cached_tokens for row in out.turns] == [0, 0, 0]
    assert "prefix_stores" not in out.counters
