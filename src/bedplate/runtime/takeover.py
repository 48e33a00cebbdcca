"""What a service tells the core that it recovered, before its engines start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bedplate.core import events as ev
from bedplate.core.base import Base
from bedplate.core.codec import part_from
from bedplate.core.events import Event
from bedplate.core.ids import TenantId
from bedplate.core.limits import Policy, Slice
from bedplate.journal import Journal
from bedplate.metering.bill import BILL_KINDS
from bedplate.metering.spent import spent_by_rows
from bedplate.pool import KvPool
from bedplate.replay import bedplate_version, core_version
from bedplate.runtime.calendars import Calendars
from bedplate.runtime.driver import LiveDriver
from bedplate.runtime.recovery import Recovered, reconcile

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Heir:
    """Who takes over: the core and driver, the journal and pool, and the policy from now on."""

    base: Base
    driver: LiveDriver
    journal: Journal
    pool: KvPool | None
    policy: Policy
    calendars: Calendars
    post: Callable[[Event], int]
    note: Callable[[str, str, str, dict[str, Any]], int]


def take_over(heir: Heir, recovered: Recovered) -> None:
    """Write who decides from now on, tell the core what a crash interrupted, and the policy.

    Rows that the crash leaves behind are of today in the zones of now, and have today's prices, so
    these come first. A core that begins without the state of the one before learns from
    the rows what was spent, and any core for tenants whose zone changed: their day and month are
    other ones. Slices that were asked for stay.
    """
    core = core_version()
    known = recovered.event_seq >= 0
    slices = heir.base.state.policy.slices if known else slices_of(heir.journal)
    policy, post = heir.policy._replace(slices=slices), heir.post
    if recovered.changed_from:
        body = {"from": recovered.changed_from, "to": core}
        heir.note("core_changed", "", "", {**body, "snapshot_seq": recovered.snapshot_seq})
    started = {"core": core, "bedplate": bedplate_version(), "prices": policy.prices.body()}
    heir.note("core_started", "", "", started)
    if known:
        heir.calendars.tell()
        former, tenants = heir.base.state.policy, heir.base.state.tenants
        zone_of = heir.calendars.zone_of
        moved = [name for name in tenants if tenants[name].policy.zone != zone_of(name)]
        if moved or former.prices != policy.prices:
            former = former._replace(
                prices=policy.prices, tenants=policy.tenants, default_tenant=policy.default_tenant
            )
            post(ev.PolicyChanged(former))
        if moved:
            _tell_spent(heir, moved)
        reconcile(heir.base, heir.driver, post, heir.pool, clean=recovered.clean)
        post(ev.PolicyChanged(policy))
        return
    if heir.pool is not None:
        heir.pool.collect(())
    post(ev.PolicyChanged(policy))
    heir.calendars.tell()
    if recovered.changed_from:
        _tell_spent(heir, None)


def _tell_spent(heir: Heir, tenants: Sequence[TenantId] | None) -> None:
    """Tell the core what these tenants have spent by the rows; None: all that have any.

    Cost: reads every row.
    """
    rows = heir.journal.read(0, kinds=BILL_KINDS)
    spent = spent_by_rows(rows, heir.calendars.windows_of)
    for tenant in spent if tenants is None else tenants:
        heir.post(ev.LedgerRead(TenantId(tenant), *spent.get(tenant, (0, 0))))


def slices_of(journal: Journal) -> tuple[Slice, ...]:
    """Return the slices of the last policy in a journal; none where it has no policy.

    Another version may have written it: a slice of a form that this one does not know is left out,
    with a warning.
    """
    record = journal.last("PolicyChanged")
    if record is None:
        return ()
    found: list[Slice] = []
    for body in record.body["policy"].get("slices", ()):
        try:
            found.append(part_from(Slice, body))
        except ValueError as error:
            _log.warning("a slice must be asked for again, %s: %s", error, body)
    return tuple(found)
