"""How long tools take: what was seen of a tenant's tool, else of the tool, else of all.

The gap between two turns of a branch is folded into three histograms when the next turn arrives,
under the name of the first tool that the answer called ("" when it called none, and a person or a
program thinks). A session that ended without coming back counts as a gap beyond all others.

`Gaps` keeps counts in buckets that are a quarter of an octave wide (19 % at most between a time and
its bucket's edge), so that its memory is bounded and old times fade: at `SAMPLES_MAX` all counts
are halved. A histogram with less than `ENOUGH` samples says nothing, and a wider one is asked.

The rate of return
==================

Room that is held for an idle session costs rent until it returns or is given up. Whoever may choose
when to give up gets, after `elapsed`, at best

    rate(elapsed) = max over h of  P(returns within h | elapsed) / E[time held until then | elapsed]

returns a nanosecond (Gittins' index of a job that ends when the tool does). With price λ for
holding a token and worth V of still being there, holding pays exactly as long as rate × V > λ ×
tokens. Both simple rules are special cases: h = ∞ gives one over the expected rest, h → 0 the
hazard rate. Where P is drawn over the time held, the best h is a tangent, so all rates are the
slopes of the upper hull: O(buckets) for all of them.
"""

from __future__ import annotations

from typing import Final

SAMPLES_MAX = 256
"""Samples at which the past is halved, so that the last 128 to 256 count."""
ENOUGH = 16
"""Samples with which a histogram is believed."""
DOUBT = 4
"""Every bucket counts one DOUBT-th of a sample before anything was seen: with few samples the rate
falls with the time waited, which is the order of least recent use."""
NAMES_MAX = 32
"""Tools remembered of one tenant; the one unused for longest goes."""
SHARED_NAMES_MAX = 256
"""Tools remembered over all tenants."""
NAME_LENGTH_MAX = 64
"""Longer names are cut: a model may answer with anything."""
REFRESH = 8
"""New samples after which rates are computed again."""

UNIT_BITS: Final = 25
"""Shortest time that is told apart from nothing: 2^25 ns, 34 ms."""
LAST: Final = 64
"""The bucket of all beyond 2^42 ns (73 minutes), and of those who never came back."""
NEVER_NS: Final = 1 << 62
"""A gap without an end."""
RATE_BITS: Final = 50
"""Rates are returns × 2^50 a nanosecond: one a second is about 2^20, one an hour 2^8."""


class Gaps:
    """A histogram of gaps, and what follows from it. `rates` is empty while out of date."""

    __slots__ = ("counts", "fresh", "rates", "total")

    def __init__(self) -> None:
        self.counts = [0] * (LAST + 1)
        self.total = 0
        self.fresh = 0
        self.rates: list[int] = []

    def add(self, gap_ns: int) -> None:
        """Fold one gap in. Cost: O(1), amortised."""
        assert gap_ns >= 0
        self.counts[bucket_of(gap_ns)] += 1
        self.total += 1
        self.fresh += 1
        if self.total >= SAMPLES_MAX:
            self.counts = [count // 2 for count in self.counts]
            self.total = sum(self.counts)
        if self.fresh >= REFRESH or self.total <= ENOUGH:
            self.fresh = 0
            self.rates = []

    def rate(self, elapsed_ns: int) -> int:
        """Return the best rate of return after so long, × 2^RATE_BITS. Cost: amortised O(1)."""
        if not self.rates:
            self.rates = _rates(self.counts)
        return self.rates[bucket_of(elapsed_ns)]

    def hold_ns(self, rate: int) -> int:
        """Return until when the rate of return stays above `rate`: then it is time to give up.

        Cost: O(buckets).
        """
        if not self.rates:
            self.rates = _rates(self.counts)
        assert rate >= 0
        bucket = 0
        while self.rates[bucket] > rate:  # the last is 0
            bucket += 1
        return edge_ns(bucket)


class Memory:
    """Histograms by tool name, of one tenant or of all.

    At most `names_max`; the least recently used goes.
    """

    __slots__ = ("by_name", "names_max")

    def __init__(self, names_max: int) -> None:
        self.names_max = names_max
        self.by_name: dict[str, Gaps] = {}

    def add(self, name: str, gap_ns: int) -> None:
        """Fold one gap in under a name. Cost: O(1), amortised."""
        gaps = self.by_name.pop(name, None)
        if gaps is None:
            gaps = Gaps()
            if len(self.by_name) >= self.names_max:
                del self.by_name[next(iter(self.by_name))]
        self.by_name[name] = gaps
        gaps.add(gap_ns)

    def believed(self, name: str) -> Gaps | None:
        """Return what is known of a name, None if that is too little."""
        gaps = self.by_name.get(name)
        return gaps if gaps is not None and gaps.total >= ENOUGH else None


def bucket_of(gap_ns: int) -> int:
    """Return the bucket of a time: four for each doubling."""
    units = gap_ns >> UNIT_BITS
    if units < 4:
        return units
    bits = units.bit_length()
    return min(LAST, (bits - 2) * 4 + ((units >> (bits - 3)) & 3))


def edge_ns(bucket: int) -> int:
    """Return the shortest time of a bucket."""
    if bucket < 4:
        return bucket << UNIT_BITS
    return (4 + bucket % 4) << (bucket // 4 - 1 + UNIT_BITS)


def _rates(counts: list[int]) -> list[int]:
    """Return the best rate of return from the lower edge of each bucket on.

    A time is taken as the middle of its bucket. Points of the hull are visited from the right; each
    is pushed once and popped at most once.
    """
    left = counts[LAST] * DOUBT + 1  # those still out at the right edge of the bucket looked at
    rates = [0] * (LAST + 1)
    held = returned = 0  # both negative: counted back from the right end
    hull_held: list[int] = [0]
    hull_returned: list[int] = [0]
    for bucket in range(LAST - 1, -1, -1):
        width = edge_ns(bucket + 1) - edge_ns(bucket)
        count = counts[bucket] * DOUBT + 1
        held -= left * width + count * (width // 2)
        returned -= count
        left += count
        while len(hull_held) > 1:
            rise, run = hull_returned[-1] - returned, hull_held[-1] - held
            next_rise = hull_returned[-2] - hull_returned[-1]
            next_run = hull_held[-2] - hull_held[-1]
            if rise * next_run > next_rise * run:
                break
            hull_held.pop()
            hull_returned.pop()
        rise, run = hull_returned[-1] - returned, hull_held[-1] - held
        rates[bucket] = (rise << RATE_BITS) // run
        hull_held.append(held)
        hull_returned.append(returned)
    return rates
