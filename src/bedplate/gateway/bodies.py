"""Room for request bodies that are on their way: bounded for all callers together, and for one.

Each body has a bound of its own, and so have connections; without this one a key could fill memory
by as many bodies that never end as there may be connections, before any limit of its tenant is
looked at. What has arrived whole counts no more: from then on the tenant's limits bound it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from bedplate.errors import CapacityError

BODIES_MAX = 32
"""Room in bodies of the largest size."""
TENANT_SHARE = 4
"""A tenant may have a fourth of it."""
RETRY_S = 1.0


class BodyRoom:
    """Bytes of bodies under way, in all and by tenant. `body_bytes_max` is the bound of one."""

    def __init__(self, body_bytes_max: int) -> None:
        self._limit = BODIES_MAX * body_bytes_max
        self._taken = 0
        self._by_tenant: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Bytes of bodies under way."""
        return self._taken

    @contextmanager
    def one(self, tenant: str) -> Iterator[Body]:
        """Count one body until it is read or given up."""
        body = Body(self, tenant)
        try:
            yield body
        finally:
            self._taken -= body.size
            self._by_tenant[tenant] -= body.size
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]

    def take(self, tenant: str, size: int) -> None:
        """Count bytes that came.

        Raises:
            CapacityError: the bodies under way, of all or of this tenant, take too much.
        """
        self._taken += size
        self._by_tenant[tenant] += size
        whose = ""
        if self._by_tenant[tenant] > self._limit // TENANT_SHARE:
            whose = f" of tenant {tenant}"
        elif self._taken <= self._limit:
            return
        raise CapacityError(
            f"Too many request bodies{whose} are under way at once. Send this one again later, "
            "or fewer at a time.",
            retry_after_s=RETRY_S,
        )


class Body:
    """What arrived of one body, in bytes."""

    __slots__ = ("_room", "_tenant", "size")

    def __init__(self, room: BodyRoom, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self.size = 0

    def grow(self, size: int) -> None:
        """Count bytes that came; raises as `BodyRoom.take`."""
        self.size += size
        self._room.take(self._tenant, size)
