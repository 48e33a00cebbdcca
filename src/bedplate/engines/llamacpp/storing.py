"""KV between slots and the pool: store with its transcript, load with every check.

Before a load: owner, model digest, KV type, layout, server build and checksum (the pool's), and
that the transcript kept with the entry has the very ids that the fingerprint names. After it: the
server's count of restored tokens, since some builds restore nothing and answer success. The first
turn on a loaded slot is measured once more by the core.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bedplate.core.ids import BranchId, EntryId, SessionId, TenantId
from bedplate.engines.base import StoredKv
from bedplate.engines.llamacpp.card import SERVER_VERSION
from bedplate.engines.llamacpp.client import CardClient
from bedplate.engines.llamacpp.model import Model
from bedplate.engines.llamacpp.settings import Settings
from bedplate.engines.llamacpp.slot_file import slot_file_ids
from bedplate.engines.llamacpp.transcript import Owner, Transcript, Transcripts, decode, ids_hash
from bedplate.errors import EngineProtocolError, InvalidRequest, PoolError
from bedplate.pool import Fingerprint, KvPool, Pending
from bedplate.pool import Owner as PoolOwner

_LOG = logging.getLogger(__name__)

LAYOUT = "llama-slot unified swa-full"
"""How cards hold KV; a file made otherwise does not fit."""


class Storing:
    """Moves of one engine's KV."""

    def __init__(
        self, pool: KvPool, model: Model, settings: Settings, transcripts: Transcripts
    ) -> None:
        self._pool = pool
        self._transcripts = transcripts
        self._expect = Fingerprint(
            model_digest=model.digest,
            kv_type=settings.kv_type,
            layout=LAYOUT,
            engine=SERVER_VERSION,
            tokens=0,
            tokens_hash="",
        )

    def recall(self) -> None:
        """Note whose transcripts the pool holds, after a restart of the gateway."""
        for info in self._pool.entries():
            owner = info.owner
            if not owner.session:
                continue  # an opening of a tenant, which no branch goes on from
            self._transcripts.stored(Owner(owner.tenant, owner.session, owner.branch), info.entry)

    async def recalled(self, owner: Owner) -> Transcript | None:
        """Return a branch's transcript, from its pool entry where memory has it no more."""
        found = self._transcripts.get(owner)
        entry = self._transcripts.entry(owner)
        if found is not None or entry is None:
            return found
        try:
            opened = await asyncio.to_thread(
                self._pool.open_entry, entry, self._expect, owner.tenant
            )
        except PoolError as error:
            _LOG.info("session %s: %s", owner.session, error.message)
            self._transcripts.stored(owner, None)
            return None
        found = decode(opened.meta)
        if found is not None:
            self._transcripts.put(owner, found)
            self._transcripts.stored(owner, entry)
        return found

    async def store(self, client: CardClient, slot: int, owner: Owner, entry: EntryId) -> StoredKv:
        """Store a slot as `entry`.

        Raises:
            PoolError: the slot is empty, or the pool cannot take it. Nothing is left behind.
        """
        known = await self.recalled(owner)
        async with self._saved(client, slot, owner, entry) as (pending, ids):
            transcript = transcript_of_slot(known, ids)
            stored = await self._commit(pending, ids, transcript)
        if self._transcripts.get(owner) is known:
            self._transcripts.put(owner, transcript)
            self._transcripts.stored(owner, entry)
        return stored

    async def store_opening(
        self, client: CardClient, slot: int, tenant: TenantId, entry: EntryId, *, opening: bytes
    ) -> StoredKv:
        """Store a slot as `entry` of a tenant and of no session: it holds these ids and no more.

        Raises:
            PoolError: it holds something else, or the pool cannot take it. Nothing is left behind.
        """
        owner = Owner(tenant, SessionId(""), BranchId(0))
        async with self._saved(client, slot, owner, entry) as (pending, ids):
            if ids != opening:
                raise PoolError(
                    f"pool entry {entry}: slot {slot} holds {len(ids) // 4} tokens, not the "
                    f"opening's {len(opening) // 4}"
                )
            return await self._commit(pending, ids, transcript_of_slot(None, ids))

    @asynccontextmanager
    async def _saved(
        self, client: CardClient, slot: int, owner: Owner, entry: EntryId
    ) -> AsyncIterator[tuple[Pending, bytes]]:
        """Have a slot written to a file of the pool; give what is to be committed, and its ids."""
        pending = await asyncio.to_thread(self._pool.begin, entry, PoolOwner(*owner))
        try:
            tokens = await client.save(slot, pending.name)
            ids = await asyncio.to_thread(slot_file_ids, pending.path)
            if tokens == 0 or len(ids) != tokens * 4:
                raise PoolError(
                    f"pool entry {entry}: the card saved {tokens} tokens, "
                    f"its file has {len(ids) // 4}"
                )
            yield pending, ids
        except BaseException:
            self._pool.abort(pending)
            raise

    async def _commit(self, pending: Pending, ids: bytes, transcript: Transcript) -> StoredKv:
        tokens = len(ids) // 4
        fingerprint = replace(self._expect, tokens=tokens, tokens_hash=ids_hash(ids))
        size_bytes = await asyncio.to_thread(
            self._pool.commit, pending, fingerprint, transcript.encode()
        )
        return StoredKv(tokens, size_bytes)

    async def load(self, client: CardClient, slot: int, owner: Owner, entry: EntryId) -> int:
        """Fill an empty slot from `entry`; return its tokens.

        Raises:
            PoolError: the entry cannot be used; the slot is empty again.
        """
        opened = await asyncio.to_thread(self._pool.open_entry, entry, self._expect, owner.tenant)
        kept = decode(opened.meta)
        tokens = opened.fingerprint.tokens
        if kept is None or ids_hash(kept.ids[: tokens * 4]) != opened.fingerprint.tokens_hash:
            raise PoolError(f"pool entry {entry}: its transcript is not that of its KV")
        try:
            restored = await client.restore(slot, opened.name)
        except (InvalidRequest, EngineProtocolError) as error:
            raise PoolError(f"pool entry {entry}: the card refuses it: {error.message}") from error
        if restored != tokens:
            await client.erase(slot)
            raise PoolError(f"pool entry {entry}: {restored} of {tokens} tokens were restored")
        return tokens


def transcript_of_slot(known: Transcript | None, ids: bytes) -> Transcript:
    """Return what is known of a branch whose slot holds `ids`: its transcript where they agree.

    Of the slot's ids and the transcript's one is the longer: a last sampled token is in no slot,
    a stop string is in no transcript. Where neither begins with the other, messages are not known.
    """
    if known is not None:
        known = known.filled(ids)
        tokens = len(ids) // 4
        if known.ids.startswith(ids):
            return replace(known, computed=tokens)
        if ids.startswith(known.ids):
            return replace(known, ids=ids, computed=tokens)
    return Transcript(bytes(16), b"", b"", ids, len(ids) // 4)
