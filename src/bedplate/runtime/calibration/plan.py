"""What one round measures, sized so that the rounds fit into the time."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from bedplate.core.events import CardUp
from bedplate.runtime.calibration.probe import Times

ROUNDS, FEW_ROUNDS, ROUNDS_MAX = 3, 2, 9
"""Rounds that a plan is sized for, and that are measured where they take less time."""
SECONDS, QUICK_SECONDS = 130.0, 38.0
"""Time for all rounds, as a rule and for a first look; start-up and fit come on top."""
FEW_BELOW_SECONDS = 60.0
"""With less time, fewer shapes are measured."""
GROWTH_SHARE, IDLE_SHARE, MIXED_SHARE, DECODE_SHARE = 0.3, 0.08, 0.17, 0.3
"""Of a round's time: prompts of a growing session, prompts beside an idle one, beside decoding
ones, and decoding."""
SHAPES, FEW_SHAPES = 12, 8
SHORTEST_TOKENS = 12
LONGEST_SHARE = 0.3
"""Of all prompt tokens of a round, those of the longest prompt."""
SLOTS_MAX = 8
BATCHES, FEW_BATCHES = (2, 4, 8), (2, 8)
SEQUENCE_COST = 0.6
"""A guess for sizing: each further sequence makes a decoding step longer by this share."""
SHORT_TOKENS = 24
OUT_TOKENS = (12, 160)
"""Least and most tokens of an answer."""
ROOM_SHARE = 0.8
"""Of a card's KV, what a round may fill."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One round.

    `lengths`: new prompt tokens of the turns of one growing session. `batches`: sequences that
    decode together, on `slots` slots. `beside_idle`: new prompt tokens of a short session while the
    grown one idles on the same card. `mixed`: sequences that decode, and the prompt beside them.
    `out_tokens`: of each answer. `seconds`: for all rounds; but for the first, none begins that
    would not end in time.
    """

    lengths: tuple[int, ...]
    slots: int
    batches: tuple[int, ...]
    beside_idle: tuple[int, ...]
    mixed: tuple[tuple[int, int], ...]
    out_tokens: int
    rounds_max: int
    seconds: float


def make_plan(card: CardUp, warm: Times, *, seconds: float, seed: int, sequences_max: int) -> Plan:
    """Size a round by a warm turn.

    Args:
        card: What is measured.
        warm: A turn of some tens of prompt tokens and some output tokens.
        seconds: For all rounds.
        seed: Of the order of lengths.
        sequences_max: Sequences that may run at the same time.
    """
    few = seconds < FEW_BELOW_SECONDS
    round_s = seconds / (FEW_ROUNDS if few else ROUNDS)
    prompt_s = max(1e-9, (warm.started_ns - warm.sent_ns) / 1e9) / max(1, warm.new_tokens)
    first, last = warm.marks[0], warm.marks[-1]
    decoded = max(1, last.tokens - first.tokens)
    step_s = max(1e-5, (last.time_ns - first.time_ns) / 1e9 / decoded)
    slots = min(sequences_max, SLOTS_MAX)
    batches = tuple(size for size in (FEW_BATCHES if few else BATCHES) if size <= slots)
    shapes = FEW_SHAPES if few else SHAPES
    # One turn a shape, some beside idle ones, and each batch twice, with short and long contexts.
    runs = shapes + 3 + 2 * sum(1 + SEQUENCE_COST * (size - 1) for size in batches)
    own_room, card_room = card.context_tokens * ROOM_SHARE, card.kv_tokens * ROOM_SHARE
    most = min(OUT_TOKENS[1], int(own_room / (4 * runs)))
    out = min(max(int(round_s * DECODE_SHARE / runs / step_s), OUT_TOKENS[0]), most)
    short = 2 * sum(batches) * (SHORT_TOKENS + out)
    room = max(0, int(min(own_room - (shapes + len(batches)) * out, card_room - short)))
    grown = min(int(round_s * GROWTH_SHARE / prompt_s), room)
    idle = min(int(round_s * IDLE_SHARE / prompt_s), room // 4)
    beside = min(int(round_s * MIXED_SHARE / prompt_s), room // 2)
    return Plan(
        lengths=_lengths(grown, shapes, seed),
        slots=slots,
        batches=batches,
        beside_idle=_beside_idle(idle, slots, few=few),
        mixed=_mixed(beside, slots, few=few),
        out_tokens=out,
        rounds_max=ROUNDS_MAX,
        seconds=seconds,
    )


def _lengths(total: int, count: int, seed: int) -> tuple[int, ...]:
    """Return lengths that are evenly spread in their logarithm and sum to about `total`."""
    longest = max(SHORTEST_TOKENS + 1.0, total * LONGEST_SHARE)
    ratio = longest / SHORTEST_TOKENS
    lengths = [round(SHORTEST_TOKENS * ratio ** (at / (count - 1))) for at in range(count)]
    scale = total / sum(lengths)
    lengths = [max(SHORTEST_TOKENS, math.floor(length * min(scale, 1.0))) for length in lengths]
    random.Random(seed).shuffle(lengths)
    return tuple(lengths)


def _beside_idle(total: int, slots: int, *, few: bool) -> tuple[int, ...]:
    if slots < 2:
        return ()
    shares = (0.2, 0.8) if few else (0.1, 0.3, 0.6)
    lengths = (max(SHORTEST_TOKENS, int(total * share)) for share in shares)
    return tuple(dict.fromkeys(lengths))


def _mixed(total: int, slots: int, *, few: bool) -> tuple[tuple[int, int], ...]:
    """Return pairs of decoding sequences and prompt lengths; none where one sequence runs."""
    most = min(max(slots - 2, 1), slots - 1, 3)
    if most < 1:
        return ()
    shares = ((1, 0.4), (most, 0.6)) if few else ((1, 0.15), (most, 0.2), (1, 0.25), (most, 0.4))
    return tuple(
        (beside, length)
        for beside, share in shares
        if (length := int(total * share)) >= SHORTEST_TOKENS
    )
