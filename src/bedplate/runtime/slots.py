"""Who uses a slot at its engine, so that nothing starts there before the one before has ended.

The core frees a slot when it is told that a run ended. An engine may be late to stop, and the
clean-up of a run may still be on its way; whatever comes next on that slot waits for it here.
"""

from __future__ import annotations

import asyncio

from bedplate.core.ids import CardId, EntryId, SlotId
from bedplate.errors import EngineTimeout

LATE_S = 30.0
"""Longest wait for the user before; after it the newcomer fails with engine_timeout."""


class SlotUse:
    """For each slot the tasks that use it, in order of arrival; an idle slot takes no memory.

    `stores`: what makes each pool entry that is not answered for yet, a move or a run.
    """

    def __init__(self) -> None:
        self._users: dict[tuple[CardId, SlotId], list[asyncio.Task[None]]] = {}
        self.stores: dict[EntryId, asyncio.Task[None]] = {}

    @property
    def busy(self) -> int:
        """Slots with at least one user."""
        return len(self._users)

    def enter(self, card: CardId, slot: SlotId, task: asyncio.Task[None]) -> None:
        """Queue a task as the next user of the slot; it leaves when it is done."""
        key = (card, slot)
        self._users.setdefault(key, []).append(task)
        task.add_done_callback(lambda done: self._leave(key, done))

    async def turn_of(self, card: CardId, slot: SlotId) -> None:
        """Return when the current task, entered before, is the first user of the slot.

        Raises:
            EngineTimeout: a user before it did not leave within `LATE_S`.
        """
        me = asyncio.current_task()
        users = self._users[(card, slot)]
        while users[0] is not me:
            done, _ = await asyncio.wait((users[0],), timeout=LATE_S)
            if not done:
                raise EngineTimeout(f"card {card} slot {slot}: its last run does not stop")
            await asyncio.sleep(0)

    def _leave(self, key: tuple[CardId, SlotId], task: asyncio.Task[None]) -> None:
        users = self._users[key]
        users.remove(task)
        if not users:
            del self._users[key]
