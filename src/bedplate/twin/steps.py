"""Runs of equal steps in closed form.

While the batch of a card does not change, each step lasts longer than the one before by the same
amount, for every decoding sequence attends to one token more and the prompt's chunk to one chunk
more. So m steps last m × first + m × (m − 1) / 2 × growth, and the step that is under way at some
instant is found by solving that quadratic.

Time inside is a float; only + − × ÷ and the square root are used, which IEEE 754 rounds correctly,
so that every machine computes the same bits. What the rest of the world sees is the integer
nanosecond at or after: a change at instant t takes part in the first step that begins after t − 1.
(A step lasts longer than a nanosecond.)
"""

from __future__ import annotations

import math


def duration_ns(steps: int, first_ns: float, growth_ns: float) -> float:
    """Return how long the first `steps` steps last, of which the first one lasts `first_ns`."""
    return steps * first_ns + (steps * (steps - 1) // 2) * growth_ns


def steps_until(past_ns: float, first_ns: float, growth_ns: float) -> int:
    """Return the least number of steps that last longer than `past_ns`; 0 if that is negative.

    `first_ns` > 0, `growth_ns` >= 0. The root of the quadratic is a guess that may be off by
    rounding; its neighbours decide. Cost: O(1).
    """
    if past_ns <= 0:
        return 0 if past_ns < 0 else 1
    linear = first_ns - growth_ns / 2
    root = 2 * past_ns / (linear + math.sqrt(linear * linear + 2 * growth_ns * past_ns))
    steps = int(root) + 1
    while steps > 0 and duration_ns(steps - 1, first_ns, growth_ns) > past_ns:
        steps -= 1
    while duration_ns(steps, first_ns, growth_ns) <= past_ns:
        steps += 1
    return steps
