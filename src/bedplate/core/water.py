"""Water levels: alarms when KV that cannot be given up rises, and again when it falls.

A card's level counts blocks of running turns, a tenant's those of its running turns in what it may
hold on cards (`card_tokens_max`), the pool's all its bytes. A level that was reached is
left only 50 permille below it, so that a value that swings around it gives one alarm.
"""

from __future__ import annotations

from bedplate.core.actions import Alarm
from bedplate.core.state import State

HYSTERESIS_PERMILLE = 50


def look(state: State) -> None:
    """Emit the alarms of cards and tenants that changed in this step, and of the pool."""
    policy = state.policy
    marks = policy.water_permille
    for card in state.touched.values():
        level = _level(marks, card.busy_blocks, card.total_blocks, card.level)
        if level != card.level:
            card.level = level
            state.emit(Alarm("card_kv", card.id, level))
    for tenant in state.moved.values():
        most = tenant.policy.card_tokens_max // policy.block_tokens
        level = _level(marks, tenant.busy_blocks, most, tenant.level)
        if level != tenant.level:
            tenant.level = level
            state.emit(Alarm("tenant_kv", tenant.id, level))
    level = _level(marks, state.pool_bytes, policy.pool_bytes_max, state.pool_level)
    if level != state.pool_level:
        state.pool_level = level
        state.emit(Alarm("pool", "pool", level))


def _level(marks: tuple[int, ...], used: int, total: int, before: int) -> int:
    if total == 0:
        return 0
    permille = used * 1000 // total
    if before == 0 and (not marks or permille < marks[0]):
        return 0
    level = 0
    for index, mark in enumerate(marks):
        held = before > index and permille >= mark - HYSTERESIS_PERMILLE
        if permille >= mark or held:
            level = index + 1
    return level
