"""What in a scenario is valid and yet changes nothing, for want of something that it names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from bedplate.twin.scenario_faults import LinkLostConfig, LinkSlowConfig, ToolSlowConfig
from bedplate.twin.scenario_tree import ScenarioConfig
from bedplate.twin.workload.form import Workload

SHOWN_MAX = 12
"""Names that a note lists; further ones are counted."""


def notes(config: ScenarioConfig, workload: Workload) -> Iterator[str]:
    """Yield a line for each. Cost: O(turns)."""
    if not config.pool.size_bytes:
        for index, fault in enumerate(config.faults):
            if isinstance(fault, (LinkLostConfig, LinkSlowConfig)):
                yield f"fault[{index}] breaks the link to a pool, and there is no pool"
    slow = [
        (index, fault.tool)
        for index, fault in enumerate(config.faults)
        if isinstance(fault, ToolSlowConfig) and fault.tool
    ]
    if slow:
        tools = {turn.tool for session in workload.sessions for turn in session.turns} - {""}
        for index, tool in slow:
            if tool not in tools:
                yield f"fault[{index}] slows down {_missing('tool', tool, tools)}"
    if config.policy.tenants:
        tenants = {session.tenant for session in workload.sessions}
        for tenant in config.policy.tenants:
            if tenant.id not in tenants:
                yield f"[[policy.tenant]] limits {_missing('tenant', tenant.id, tenants)}"


def _missing(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    meant = f'; did you mean "{near[0]}"?' if near else "."
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    listed = f"It has {', '.join(names[:SHOWN_MAX])}{more}" if names else "It names none"
    return f'the {what} "{name}", which the load does not have{meant} {listed}'
