"""Hash chains over the messages of a call: equal links mean equal prompts, message for message.

    link(0)   = H(tenant, model, tools)              the root
    link(i+1) = H(link(i), message_hash(message i))

The tool list is part of the root: it is rendered before the messages, so another list is another
prompt from its first tokens on, with nothing to reuse. The order of tools counts, that of their
keys does not. Links are 16 bytes: to meet a given one takes 2^128 tries, and the tenant is in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from bedplate.core.ids import ModelId, TenantId
from bedplate.engines.base import ChatRequest, JsonObject, canonical, message_hash

LINK_BYTES = 16


def chain_of(tenant: TenantId, model: ModelId, request: ChatRequest) -> list[bytes]:
    """Return link(0) to link(n) for the n messages of the request."""
    root = canonical([tenant, model, request.tools])
    links = [blake2b(root, digest_size=LINK_BYTES, person=b"bedplate root").digest()]
    for hashed in request.hashes:
        links.append(_link(links[-1], hashed))
    return links


def next_link(link: bytes, message: JsonObject) -> bytes:
    """Return the link after `message`."""
    return _link(link, message_hash(message))


def answer_positions(messages: Sequence[JsonObject]) -> Iterator[int]:
    """Yield, longest first, the i for which link(i) ends at an assistant message."""
    for at in range(len(messages), 0, -1):
        if messages[at - 1].get("role") == "assistant":
            yield at


def opening_link(request: ChatRequest, links: Sequence[bytes]) -> bytes:
    """Return the link after tools and leading system messages, empty where there are neither."""
    at = 0
    for message in request.messages:
        if message.get("role") not in ("system", "developer"):
            break
        at += 1
    return links[at] if at or request.tools else b""


def _link(link: bytes, hashed: bytes) -> bytes:
    return blake2b(link + hashed, digest_size=LINK_BYTES).digest()
