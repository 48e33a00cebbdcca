"""What is remembered of a branch: matching, packing, filling, and bounded memory."""

from __future__ import annotations

import pytest

from bedplate.core.ids import BranchId, EntryId, SessionId, TenantId
from bedplate.engines.base import message_hash
from bedplate.engines.llamacpp.storing import transcript_of_slot
from bedplate.engines.llamacpp.transcript import (
    Owner,
    Transcript,
    Transcripts,
    common_tokens,
    decode,
    pack,
    pack_hashes,
    root_hash,
    unpack,
)

MESSAGES = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]
ROOT = root_hash("chatml", [])


def message_hashes(messages: list[dict[str, str]]) -> bytes:
    return pack_hashes([message_hash(message) for message in messages])


def owner(session: str, branch: int = 0, tenant: str = "acme") -> Owner:
    return Owner(TenantId(tenant), SessionId(session), BranchId(branch))


def transcript(ends: list[int], ids: list[int], **more: object) -> Transcript:
    hashes = message_hashes(MESSAGES[: len(ends)])
    return Transcript(ROOT, hashes, pack(ends), pack(ids), len(ids), **more)  # type: ignore[arg-type]


def test_longest_run_of_equal_messages() -> None:
    kept = transcript([3, 5], [1, 2, 3, 4, 5])
    assert kept.known(ROOT, message_hashes(MESSAGES)) == 2
    assert kept.known(ROOT, message_hashes(MESSAGES[:1])) == 1
    other = [MESSAGES[0], {"role": "assistant", "content": "TWO"}, MESSAGES[2]]
    assert kept.known(ROOT, message_hashes(other)) == 1
    assert kept.known(ROOT, message_hashes(MESSAGES[1:])) == 0


def test_other_tools_or_template_match_nothing() -> None:
    kept = transcript([3, 5], [1, 2, 3, 4, 5])
    assert kept.known(root_hash("chatml", [{"type": "function"}]), message_hashes(MESSAGES)) == 0
    assert kept.known(root_hash("model", []), message_hashes(MESSAGES)) == 0


def test_a_message_whose_end_is_unknown_is_not_continued_from() -> None:
    assert transcript([3, 0], [1, 2, 3, 4]).known(ROOT, message_hashes(MESSAGES)) == 1
    assert transcript([0, 4], [1, 2, 3, 4]).known(ROOT, message_hashes(MESSAGES)) == 2


def test_encoding_comes_back_and_other_bytes_do_not() -> None:
    kept = transcript([3, 5], [1, 262_143, 3, 4, 5])
    assert decode(kept.encode()) == kept
    assert decode(b"") is None
    assert decode(kept.encode()[:-1]) is None
    assert decode(b"XXXX" + kept.encode()[4:]) is None


@pytest.mark.parametrize("size", [0, 1, 3, 1023, 1024, 1025, 5000])
def test_common_tokens_counts_whole_ids(size: int) -> None:
    ids = [(n * 7919) % 262_144 for n in range(size)]
    assert common_tokens(pack(ids), pack([*ids, 9])) == size
    if size:
        for at in {0, size // 2, size - 1}:
            changed = ids[:]
            changed[at] ^= 1 << 17
            assert common_tokens(pack(ids), pack(changed)) == at


def test_stored_file_fills_in_what_the_stream_kept_back() -> None:
    kept = transcript([3, 0], [1, 2, 3], complete=False, tail=9)
    filled = kept.filled(pack([1, 2, 3, 4, 5]))
    assert unpack(filled.ids).tolist() == [1, 2, 3, 4, 5, 9]
    assert unpack(filled.ends).tolist() == [3, 6]
    assert filled.known(ROOT, message_hashes(MESSAGES)) == 2
    assert kept.filled(pack([1, 2, 8])) is kept


def test_slot_agrees_with_transcript_in_either_length() -> None:
    kept = transcript([3, 5], [1, 2, 3, 4, 5])
    shorter = transcript_of_slot(kept, pack([1, 2, 3, 4]))
    assert (shorter.ids, shorter.computed) == (kept.ids, 4)
    longer = transcript_of_slot(kept, pack([1, 2, 3, 4, 5, 6]))
    assert (unpack(longer.ids).tolist(), longer.computed) == ([1, 2, 3, 4, 5, 6], 6)
    assert longer.known(ROOT, message_hashes(MESSAGES)) == 2


def test_slot_that_disagrees_keeps_its_ids_and_no_messages() -> None:
    kept = transcript([3, 5], [1, 2, 3, 4, 5])
    other = transcript_of_slot(kept, pack([1, 7]))
    assert unpack(other.ids).tolist() == [1, 7]
    assert other.known(ROOT, message_hashes(MESSAGES)) == 0
    assert transcript_of_slot(None, pack([1])).ids == pack([1])


def test_memory_is_bounded_and_the_oldest_leaves_first() -> None:
    size = transcript([1], [1]).size_bytes
    kept = Transcripts(3 * size)
    for name in "abcd":
        kept.put(owner(name), transcript([1], [1]))
        kept.get(owner("a"))
    assert len(kept) == 3
    assert kept.get(owner("a")) is not None
    assert kept.get(owner("b")) is None


def test_what_the_pool_keeps_too_leaves_first() -> None:
    size = transcript([1], [1]).size_bytes
    kept = Transcripts(3 * size)
    for name in "abc":
        kept.put(owner(name), transcript([1], [1]))
    kept.stored(owner("c"), EntryId(7))
    kept.put(owner("d"), transcript([1], [1]))
    assert kept.get(owner("c")) is None
    assert kept.entry(owner("c")) == EntryId(7)
    assert all(kept.get(owner(name)) is not None for name in "abd")
    kept.stored(owner("a"), EntryId(8))
    kept.put(owner("a"), transcript([1], [2]))  # a turn later the pool has it no more as it is
    kept.put(owner("e"), transcript([1], [1]))
    assert kept.get(owner("b")) is None
    assert kept.get(owner("a")) == transcript([1], [2])


def test_many_idle_sessions_stay_within_the_bound() -> None:
    kept = Transcripts(1 << 20)
    for index in range(3_000):
        name = f"s{index}"
        kept.put(owner(name), transcript([200], list(range(200))))
        kept.stored(owner(name), EntryId(index))
        assert kept.size_bytes <= 1 << 20
    assert 500 < len(kept) < 1_000
    assert kept.entry(owner("s0")) == EntryId(0)
    for index in range(3_000):
        kept.forget(SessionId(f"s{index}"))
    assert (len(kept), kept.size_bytes) == (0, 0)


def test_forgetting_a_session_takes_all_its_branches_and_entries() -> None:
    kept = Transcripts(1 << 20)
    for branch in (0, 1):
        kept.put(owner("s", branch), transcript([1], [1]))
    kept.put(owner("t"), transcript([1], [1]))
    kept.stored(owner("s", 2), EntryId(5))
    kept.forget(SessionId("s"))
    assert len(kept) == 1
    assert kept.entry(owner("s", 2)) is None
    assert kept.get(owner("t")) is not None


def test_another_tenant_finds_nothing_under_the_same_names() -> None:
    kept = Transcripts(1 << 20)
    kept.put(owner("s"), transcript([1], [1]))
    assert kept.get(owner("s", tenant="other")) is None
