"""Counting prompts without the endpoint's tokenizer, and knowing what a branch already computed.

A count is an estimate by size, corrected by every usage that the engine reports for a prompt of the
same tenant: what one tenant sends changes nothing for another. Where a prompt extends what a branch
ran before, the engine's own count of that part is used. Sizes are bytes of UTF-8, not characters:
bytes for each token differ much less between languages.

An estimate can be wrong by what a text is made of: a run of blanks is a token, a rare sign is one a
byte. So it comes with bounds that hold for any text. Nothing is refused for its length by less than
the lower one, and budgets reserve the upper one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from bedplate.core.ids import BranchId, SessionId, TenantId
from bedplate.engines.base import ChatRequest, Finished, JsonObject, Lineage, message_hash

PART_BYTES = 4_096
"""Size that an image or audio part counts as; its encoded length says nothing about tokens."""
START_PPM = 280_000
"""Tokens for a million bytes before anything is learned: a little above English text."""
PPM_MIN, PPM_MAX = 125_000, 1_000_000
"""Bounds of what is learned: real texts have up to some 7 bytes a token; none has less than one."""
TOKEN_BYTES_MAX = 128
"""No token of a usual vocabulary stands for more: the longest are runs of blanks."""
TENANTS_MAX = 4_096
"""Tenants whose ratio is kept; the one that ran nothing for longest begins anew."""
LEARN_BYTES_MIN = 256
"""Shorter prompts are mostly template and teach nothing."""
LEARN_SHARE = 8
"""One observation moves the ratio by an eighth of the difference."""


@dataclass(frozen=True, slots=True)
class Items:
    """A prompt as tools and messages: 8 bytes of hash and a size each, in order."""

    hashes: array[int]
    sizes: array[int]
    text_only: bool

    @property
    def size_bytes(self) -> int:
        """Size of the whole prompt."""
        return sum(self.sizes)


class Count(NamedTuple):
    """`tokens` of the prompt, of which the first `reuse_tokens` the branch has computed before.

    It has `least_tokens` to `most_tokens`, a template's own words aside.
    """

    tokens: int
    reuse_tokens: int
    least_tokens: int
    most_tokens: int


class _Seen(NamedTuple):
    """The last good turn of a branch. With `answered`, the last hash is that of the answer."""

    hashes: array[int]
    prompt_bytes: int
    prompt_tokens: int
    kv_tokens: int
    answered: bool


class Ratio:
    """Tokens for a million bytes of one tenant's text, learned within bounds; integers only."""

    __slots__ = ("ppm",)

    def __init__(self) -> None:
        self.ppm = START_PPM

    def tokens(self, size_bytes: int) -> int:
        """Estimate the tokens of so many bytes, rounded up."""
        return -(-size_bytes * self.ppm // 1_000_000)

    def learn(self, size_bytes: int, tokens: int) -> None:
        """Move towards what an engine counted for a prompt of this size."""
        if size_bytes < LEARN_BYTES_MIN:
            return
        seen = tokens * 1_000_000 // size_bytes
        moved = self.ppm + (seen - self.ppm) // LEARN_SHARE
        self.ppm = min(max(moved, PPM_MIN), PPM_MAX)


def items_of(request: ChatRequest) -> Items:
    """Break a request into its tools and messages. Cost: one encoding and one hash of each."""
    hashes, sizes, text_only = array("Q"), array("Q"), True
    if request.tools:
        tools: JsonObject = {"role": "tools", "content": list(request.tools)}
        hashes.append(_short(message_hash(tools)))
        sizes.append(len(orjson.dumps(tools)))
    hashes.extend(map(_short, request.hashes))
    for message in request.messages:
        size, plain = _size(message)
        sizes.append(size)
        text_only = text_only and plain
    return Items(hashes, sizes, text_only)


class Prompts:
    """What the branches of all sessions ran last, and what was learned of each tenant's texts.

    Memory: 8 bytes a message and some 300 bytes a branch, until `forget`; one ratio a tenant.
    """

    def __init__(self) -> None:
        self._ratios: OrderedDict[TenantId, Ratio] = OrderedDict()
        self._sessions: dict[SessionId, dict[BranchId, _Seen]] = {}

    def ratio(self, tenant: TenantId) -> Ratio:
        """Return a tenant's ratio; it is the one used last now."""
        ratio = self._ratios.setdefault(tenant, Ratio())
        self._ratios.move_to_end(tenant)
        if len(self._ratios) > TENANTS_MAX:
            self._ratios.popitem(last=False)
        return ratio

    def count(self, items: Items, lineage: Lineage) -> Count:
        """Estimate a prompt and find what of it its branch, or the parent of a fork, computed."""
        branch = lineage.branch if lineage.fork_of < 0 else BranchId(lineage.fork_of)
        seen = self._sessions.get(lineage.session, {}).get(branch)
        matched = _matched(items.hashes, seen.hashes) if seen is not None else 0
        known = _known(items, seen, matched) if seen is not None and matched else NOTHING
        rest_bytes = sum(items.sizes[matched:])
        tokens = max(1, known.tokens + self.ratio(lineage.tenant).tokens(rest_bytes))
        least = max(1, known.least + rest_bytes // TOKEN_BYTES_MAX)
        most = max(tokens, known.most + rest_bytes)
        return Count(tokens, min(known.tokens, tokens - 1), least, most)

    def ended(self, items: Items, lineage: Lineage, finished: Finished) -> None:
        """Remember a good turn, and learn from its usage."""
        answered = not finished.others
        hashes = array("Q", items.hashes)
        if answered:
            hashes.append(_short(message_hash(finished.message)))
        self._sessions.setdefault(lineage.session, {})[lineage.branch] = _Seen(
            hashes, items.size_bytes, finished.prompt_tokens, finished.kv_tokens, answered
        )
        if finished.exact and items.text_only:
            self.ratio(lineage.tenant).learn(items.size_bytes, finished.prompt_tokens)

    def forget(self, session: SessionId) -> None:
        """Drop what is remembered of a session."""
        self._sessions.pop(session, None)


class _Known(NamedTuple):
    """Tokens of the part of a prompt that a branch ran before, and bounds of them."""

    tokens: int
    least: int
    most: int


NOTHING = _Known(0, 0, 0)


def _known(items: Items, seen: _Seen, matched: int) -> _Known:
    """Return the engine's count of the first `matched` items, or their share of it."""
    counted = 0
    if matched == len(seen.hashes):
        counted = seen.kv_tokens
    elif matched == len(seen.hashes) - seen.answered:
        counted = seen.prompt_tokens
    if counted:
        return _Known(counted, counted, counted)
    size_bytes = sum(items.sizes[:matched])
    share = seen.prompt_tokens * size_bytes // max(1, seen.prompt_bytes)
    return _Known(share, size_bytes // TOKEN_BYTES_MAX, max(share, size_bytes))


def _matched(new: array[int], old: array[int]) -> int:
    count = 0
    for one, other in zip(new, old, strict=False):
        if one != other:
            break
        count += 1
    return count


def _short(hashed: bytes) -> int:
    return int.from_bytes(hashed[:8], "little")


def _size(message: JsonObject) -> tuple[int, bool]:
    """Return the size of a message, and whether it is all text."""
    content = message.get("content")
    if not isinstance(content, list):
        return len(orjson.dumps(message)), True
    size, plain = len(orjson.dumps({**message, "content": None})), True
    for part in content:
        if isinstance(part, dict) and part.get("type") in ("text", "refusal"):
            size += len(orjson.dumps(part))
        else:
            size, plain = size + PART_BYTES, False
    return size, plain
