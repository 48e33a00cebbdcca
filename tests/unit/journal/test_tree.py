from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedplate.journal import tree
from tests.conformance import naive_journal as naive

LEAVES = [naive.leaf(b"%d" % index) for index in range(70)]
SIZES = range(len(LEAVES) + 1)
FLIP = bytes([1]) + bytes(31)


def subtree(start: int, end: int) -> bytes:
    return naive.root(LEAVES[start:end])


def flipped(digest: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(digest, FLIP, strict=True))


@given(st.lists(st.integers(0, 9), max_size=12))
def test_however_leaves_are_grouped_the_root_is_that_of_the_definition(groups: list[int]) -> None:
    frontier = tree.Frontier()
    for count in groups:
        frontier.extend(LEAVES[frontier.size : min(frontier.size + count, len(LEAVES))])
        assert frontier.root() == naive.root(LEAVES[: frontier.size])


@pytest.mark.parametrize("size", SIZES)
def test_a_frontier_goes_on_after_it_was_packed(size: int) -> None:
    frontier = tree.Frontier()
    frontier.extend(LEAVES[:size])
    packed = frontier.pack()
    assert len(packed) == 32 * size.bit_count()
    again = tree.Frontier.restore(size, packed)
    twin = again.copy()
    again.extend(LEAVES[size:])
    assert again.root() == naive.root(LEAVES)
    assert twin.root() == naive.root(LEAVES[:size]), "a copy is independent"


@pytest.mark.parametrize(("size", "packed"), [(3, bytes(32)), (1, b""), (0, bytes(32)), (-1, b"")])
def test_a_packed_frontier_must_fit_its_size(size: int, packed: bytes) -> None:
    with pytest.raises(ValueError, match="hashes"):
        tree.Frontier.restore(size, packed)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 21, 64, 70])
def test_inclusion_proofs_are_those_of_the_definition_and_verify(size: int) -> None:
    root = naive.root(LEAVES[:size])
    for index in range(size):
        proof = tree.inclusion_proof(index, size, subtree)
        assert proof == naive.inclusion(index, LEAVES[:size])
        assert tree.verify_inclusion(LEAVES[index], index, size, proof, root)
        assert not tree.verify_inclusion(flipped(LEAVES[index]), index, size, proof, root)
        assert not tree.verify_inclusion(LEAVES[index], index, size, proof, flipped(root))
        assert not tree.verify_inclusion(LEAVES[index], size, size, proof, root)
        assert not tree.verify_inclusion(LEAVES[index], -1, size, proof, root)
        assert not tree.verify_inclusion(LEAVES[index], index, size, [*proof, root], root)
        assert not proof or not tree.verify_inclusion(LEAVES[index], index, size, proof[:-1], root)
        for at in range(len(proof)):
            wrong = [*proof[:at], flipped(proof[at]), *proof[at + 1 :]]
            assert not tree.verify_inclusion(LEAVES[index], index, size, wrong, root)
        for other in range(size):
            if other != index and LEAVES[other] != LEAVES[index]:
                assert not tree.verify_inclusion(LEAVES[index], other, size, proof, root)


@pytest.mark.parametrize("new", [0, 1, 2, 3, 6, 7, 8, 33, 64, 70])
def test_consistency_proofs_are_those_of_the_definition_and_verify(new: int) -> None:
    new_root = naive.root(LEAVES[:new])
    for old in range(new + 1):
        old_root = naive.root(LEAVES[:old])
        proof = tree.consistency_proof(old, new, subtree)
        if 0 < old < new:
            assert proof == naive.consistency(old, LEAVES[:new])
        assert tree.verify_consistency(old, old_root, new, new_root, proof)
        assert not tree.verify_consistency(old, flipped(old_root), new, new_root, proof)
        assert not tree.verify_consistency(old, old_root, new, new_root, [*proof, new_root])
        assert not tree.verify_consistency(new + 1, old_root, new, new_root, proof)
        if old:
            assert not tree.verify_consistency(old, old_root, new, flipped(new_root), proof)
        if proof:
            assert not tree.verify_consistency(old, old_root, new, new_root, proof[:-1])
            assert not tree.verify_consistency(old, old_root, new, new_root, [])
        for at in range(len(proof)):
            wrong = [*proof[:at], flipped(proof[at]), *proof[at + 1 :]]
            assert not tree.verify_consistency(old, old_root, new, new_root, wrong)
