"""Who is calling: key, tenant, lane, model. Identity comes from the credential and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from difflib import get_close_matches

from bedplate.core.ids import ModelId, TenantId
from bedplate.core.limits import LANE_NAMES
from bedplate.errors import InvalidRequest, NotAllowed
from bedplate.gateway.http import Exchange
from bedplate.gateway.keys import Credential, KeyStore

LANE_HEADER = "X-Bedplate-Lane"
SECRET_LENGTH_MAX = 512


class Door:
    """Checks credentials against the key store."""

    def __init__(self, keys: KeyStore, *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        """Take the keys, and the clock by which they expire.

        That is the wall clock, by which the CLI dates them; the journal's never falls, so that a
        clock which once ran ahead would end keys before their time.
        """
        self._keys = keys
        self._wall_ns = wall_ns

    def admit(self, exchange: Exchange) -> Credential:
        """Return the caller's credential and mark the exchange with its tenant.

        Raises:
            NotAuthenticated: no key, or one that is unknown, revoked or expired.
            KeysUnavailable: nobody knows which keys are valid.
        """
        scheme, _, secret = (exchange.header(b"authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or len(secret) > SECRET_LENGTH_MAX:
            secret = ""
        credential = self._keys.authenticate(secret.strip(), self._wall_ns())
        exchange.tenant = credential.tenant
        return credential

    def admit_operator(self, exchange: Exchange) -> Credential:
        """Return the caller's credential if it is an operator's.

        Raises:
            NotAuthenticated: as in `admit`.
            NotAllowed: the key is no admin key.
        """
        credential = self.admit(exchange)
        if not credential.admin:
            raise NotAllowed("This endpoint needs an admin key: `bedplate key add --admin`.")
        return credential

    def check_tenant(self, tenant: TenantId) -> None:
        """Refuse a tenant that no key names: what it is given would stand empty.

        Raises:
            InvalidRequest: the message names the nearest tenant that has a key.
        """
        named = self._keys.tenants()
        if tenant not in named:
            near = get_close_matches(tenant, named, n=1, cutoff=0.0)
            told = f"; the nearest one with a key is {near[0]!r}" if near else ""
            raise InvalidRequest(
                f"No key names the tenant {tenant!r}{told}. "
                f"Make one first with `bedplate key add --tenant {tenant}`.",
                param="tenant",
            )

    def lane(self, exchange: Exchange, credential: Credential) -> int:
        """Return the rank of the lane: the key's default, or the one asked for that it permits.

        Raises:
            InvalidRequest: there is no such lane.
            NotAllowed: the key does not permit it.
        """
        asked = exchange.header(b"x-bedplate-lane")
        if asked is None:
            return credential.lanes[0]
        name = asked.lower()
        if name not in LANE_NAMES:
            raise InvalidRequest(
                f"{LANE_HEADER} must be one of {', '.join(LANE_NAMES)}.", param=LANE_HEADER
            )
        lane = LANE_NAMES.index(name)
        if lane not in credential.lanes:
            raise NotAllowed(
                f"This key may not use the lane {name}. Ask its operator, or leave the header out.",
                param=LANE_HEADER,
            )
        return lane


def check_model(credential: Credential, model: ModelId) -> None:
    """Refuse a model that the key does not permit.

    Raises:
        NotAllowed: the key names models, and this is not one of them.
    """
    if credential.models and model not in credential.models:
        raise NotAllowed("This key may not use that model. Ask its operator.", param="model")
