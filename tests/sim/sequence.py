"""Token lists as runs of named tokens, so that "is this a true prefix" has an exact answer.

Two runs of one name are equal token by token from their start; runs of different names share
nothing. A list is a tuple of (name, tokens) runs without empty runs.
"""

from __future__ import annotations

Sequence = tuple[tuple[str, int], ...]


def length(tokens: Sequence) -> int:
    """Return how many tokens the list has."""
    return sum(count for _, count in tokens)


def cut(tokens: Sequence, count: int) -> Sequence:
    """Return the first `count` tokens (all of them when there are fewer)."""
    kept: list[tuple[str, int]] = []
    for name, run in tokens:
        if count <= 0:
            break
        kept.append((name, min(run, count)))
        count -= run
    return tuple(kept)


def extend(tokens: Sequence, name: str, count: int) -> Sequence:
    """Return the list with `count` new tokens of a fresh run at its end."""
    assert count >= 0
    return (*tokens, (name, count)) if count else tokens


def opening(tenant: str, model: str, name: str, count: int) -> Sequence:
    """Return the start of prompts that one tenant's sessions share; no other tenant has it."""
    return extend((), f"{tenant}|{model}|{name}", count)


def shared(left: Sequence, right: Sequence) -> int:
    """Return how many leading tokens two lists have in common."""
    total = 0
    for (name, run), (other, other_run) in zip(left, right, strict=False):
        if name != other:
            break
        total += min(run, other_run)
        if run != other_run:
            break
    return total


def usable(held: Sequence, prompt: Sequence, *, can_cut: bool) -> int:
    """Return how many prompt tokens an engine that holds `held` need not compute.

    An engine that cannot cut its KV back must throw all of it away as soon as the prompt leaves it.
    The last prompt token is always computed.
    """
    common = shared(held, prompt)
    if common < length(held) and not can_cut:
        return 0
    return min(common, length(prompt) - 1)
