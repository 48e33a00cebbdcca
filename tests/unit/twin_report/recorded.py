"""A journal written by a run of the twin, which a comparison must find to agree with the twin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bedplate.core.actions import Action, Settled
from bedplate.core.base import Base
from bedplate.core.codec import body_of
from bedplate.core.events import Event
from bedplate.core.limits import default_policy
from bedplate.journal import Journal, Record
from bedplate.metering.rows import usage_body
from bedplate.perf.profile import CardProfile
from bedplate.twin.faults import Fault
from bedplate.twin.run import simulate
from bedplate.twin.site import CardSpec, PoolSpec, Site
from bedplate.twin.workload.form import Session, Turn, Workload
from tests.unit.twin_report.files import card_profile

SECOND = 10**9
BEGAN_NS = 1_700_000_000 * SECOND


def site(cards: int = 2, profile: CardProfile | None = None) -> Site:
    specs = tuple(CardSpec(f"c-{at}", "", profile or card_profile()) for at in range(cards))
    size = 1 << 30
    return Site("live", specs, default_policy(pool_bytes_max=size), PoolSpec(size, 1e15, 0.0), 16)


def workload(sessions: int = 12) -> Workload:
    turns = (
        Turn(0, "", -1, 300, 20),
        Turn(SECOND, "look", -1, 120, 30),
        Turn(2 * SECOND, "look", -1, 80, 25),
    )
    made = [
        Session(f"s-{at}", "t", at % 2, "", at * SECOND // 2, None, turns) for at in range(sessions)
    ]
    return Workload("load", "by hand", tuple(made))


def record(
    folder: Path,
    *,
    faults: Sequence[Fault] = (),
    on: Site | None = None,
) -> Path:
    """Run the twin and write what its core was told, as a service would have; return the folder."""
    records: list[Record] = []

    def add(time_ns: int, kind: str, body: dict[str, Any], tenant: str = "", who: str = "") -> int:
        records.append(Record(len(records), BEGAN_NS + time_ns, kind, tenant, who, body))
        return len(records) - 1

    def heard(_: Base, now_ns: int, event: Event, actions: tuple[Action, ...]) -> None:
        seq = add(now_ns, type(event).__name__, body_of(event))
        for action in actions:
            if isinstance(action, Settled):
                body = usage_body(action, event_seq=seq, price_version="p")
                add(now_ns, "usage", body, action.tenant, action.session)

    add(0, "core_started", {})
    simulate(on or site(), workload(), seed=1, faults=faults, heard=heard)
    with Journal.open(folder, origin="test") as journal:
        journal.append(records)
    return folder
