"""What it costs to get KV back and what room is worth, learned from what the cards did.

Nothing is configured. Each group of cards has a `Line` of prefills (from a dispatch, or the first
token of the prompt before it on its card, to the first token, over the prompt tokens that were
computed) and one of loads (from LoadKv to KvLoaded, over the tokens loaded). So the queue on the
link and the batch on the card are in it as they are today, what waited on the card is not, and any
engine is known after a few turns. Old samples fade: at `SAMPLES_MAX` all sums are halved.

Costs a token are in ns / 2^SLOPE_BITS. Until a group is known, all of its KV costs the same.
"""

from __future__ import annotations

from typing import Final

SAMPLES_MAX: Final = 16
"""Samples at which the past is halved."""
ENOUGH: Final = 8
"""Samples with which a line is believed."""
SLOPE_BITS: Final = 10
"""A slope is in nanoseconds for 2^10 tokens."""
SAME: Final = 1 << SLOPE_BITS
"""Cost of a token while nothing is known."""
FIRST_TOKEN_NS: Final = 500_000
"""Time of a prompt token on cards that have not computed enough to know."""
MARGIN: Final = 2
"""A load holds up its own turn, to compute the whole batch of the card: a load may take so many
times as long. A copy is made after every turn and loaded after few: it must save as many times."""
LOOK_TIMES: Final = 64
"""A load is tried, although those before were slow, when none began for so many times its length:
so a link that is well again is noticed, for 2 % of the time at most."""
HALF_LIFE_NS = 30 * 1_000_000_000
"""Time in which the price of room falls to a half where none is given up."""
PRICE_SHIFT: Final = 2
"""The price moves a quarter of the way to what was given up last."""


class Line:
    """Least squares of nanoseconds on tokens: `base_ns` + `slope` × tokens, never below 0."""

    __slots__ = ("base_ns", "samples", "slope", "sum_ns", "sum_tokens", "sum_tokens2", "sum_work")

    def __init__(self) -> None:
        self.samples = 0
        self.sum_tokens = 0
        self.sum_tokens2 = 0
        self.sum_ns = 0
        self.sum_work = 0
        self.base_ns = 0
        self.slope = 0

    def note(self, tokens: int, took_ns: int) -> None:
        """Fold one measured time in. Cost: O(1)."""
        self.samples += 1
        self.sum_tokens += tokens
        self.sum_tokens2 += tokens * tokens
        self.sum_ns += took_ns
        self.sum_work += tokens * took_ns
        if self.samples >= SAMPLES_MAX:
            self.samples //= 2
            self.sum_tokens //= 2
            self.sum_tokens2 //= 2
            self.sum_ns //= 2
            self.sum_work //= 2
        if self.samples >= ENOUGH:
            self._fit()

    def _fit(self) -> None:
        """Set the line; where times do not rise it is flat, where it starts below 0 a ray."""
        spread = self.samples * self.sum_tokens2 - self.sum_tokens * self.sum_tokens
        rise = self.samples * self.sum_work - self.sum_tokens * self.sum_ns
        if spread > 0:
            self.slope = (max(0, rise) << SLOPE_BITS) // spread
            rest_ns = self.sum_ns - (self.slope * self.sum_tokens >> SLOPE_BITS)
            self.base_ns = rest_ns // self.samples
        if spread <= 0 or self.base_ns < 0:
            self.base_ns = 0
            self.slope = (self.sum_ns << SLOPE_BITS) // max(1, self.sum_tokens)

    def known(self) -> bool:
        """Tell whether enough was measured."""
        return self.samples >= ENOUGH

    def pace(self) -> int:
        """Return the mean time of a token, whatever its prompt's length, in ns / 2^SLOPE_BITS."""
        return (self.sum_ns << SLOPE_BITS) // max(1, self.sum_tokens)

    def ns(self, tokens: int) -> int:
        """Return how long so many tokens take, by what was measured."""
        return self.base_ns + (self.slope * tokens >> SLOPE_BITS)


class Costs:
    """What one group of cards was seen to need.

    `looked_ns` is when a load began last. `price` is what a token of room on a card was worth to
    those who lost it, as `eviction.density` counts, when that was changed at `priced_ns`.
    """

    __slots__ = ("loads", "looked_ns", "prefills", "price", "priced_ns")

    def __init__(self) -> None:
        self.prefills = Line()
        self.loads = Line()
        self.looked_ns = 0
        self.price = 0
        self.priced_ns = 0

    def known(self) -> bool:
        """Tell whether loads and prefills can be compared."""
        return self.loads.known() and self.prefills.known()

    def compute(self) -> int:
        """Return what a token costs to compute again."""
        return max(1, self.prefills.slope) if self.prefills.known() else SAME

    def tokens_in(self, time_ns: int) -> int:
        """Return how many prompt tokens a card computes in a time, by the first guess at first."""
        if not self.prefills.known():
            return time_ns // FIRST_TOKEN_NS
        return (time_ns << SLOPE_BITS) // max(1, self.prefills.pace())

    def time_of(self, tokens: int) -> int:
        """Return about how long a card takes to compute so many prompt tokens, in ns."""
        if not self.prefills.known():
            return tokens * FIRST_TOKEN_NS
        return tokens * self.prefills.pace() >> SLOPE_BITS

    def load(self, tokens: int) -> int:
        """Return what each of so many tokens costs to load; as to compute while not known."""
        if not self.known():
            return self.compute()
        return max(1, (self.loads.ns(tokens) << SLOPE_BITS) // max(1, tokens))

    def load_pays(self, tokens: int, saved_tokens: int, now_ns: int) -> bool:
        """Tell whether to load `tokens` is better than to compute `saved_tokens`, or unknown."""
        load_ns = self.loads.ns(tokens)
        compute_ns = self.prefills.slope * saved_tokens >> SLOPE_BITS
        return load_ns <= MARGIN * compute_ns or self._look(load_ns, now_ns)

    def store_pays(self, tokens: int, now_ns: int) -> bool:
        """Tell whether a copy of `tokens` is worth the link's time, or unknown."""
        load_ns = self.loads.ns(tokens)
        compute_ns = self.prefills.slope * tokens >> SLOPE_BITS
        return MARGIN * load_ns <= compute_ns or self._look(load_ns, now_ns)

    def _look(self, load_ns: int, now_ns: int) -> bool:
        return not self.known() or now_ns - self.looked_ns >= LOOK_TIMES * load_ns

    def price_at(self, now_ns: int) -> int:
        """Return what a token of room is worth now: what was given up lately, fading."""
        return self.price >> min(64, (now_ns - self.priced_ns) // HALF_LIFE_NS)

    def pay(self, density: int, now_ns: int) -> None:
        """Learn from room of such a worth that was given up for a turn."""
        price = self.price_at(now_ns)
        self.price = price + ((density - price) >> PRICE_SHIFT)
        self.priced_ns = now_ns
