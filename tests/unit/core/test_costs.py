"""What is learned of cards: what prefills and loads take, when loads and copies pay, the price."""

from __future__ import annotations

from bedplate.core.costs import (
    ENOUGH,
    HALF_LIFE_NS,
    LOOK_TIMES,
    MARGIN,
    SAME,
    SAMPLES_MAX,
    SLOPE_BITS,
    Costs,
    Line,
)
from bedplate.core.units import MILLISECOND_NS, SECOND_NS


def line(*points: tuple[int, int]) -> Line:
    found = Line()
    for tokens, took_ns in points:
        found.note(tokens, took_ns)
    return found


def costs(*, load_ns: int, compute_ns: int) -> Costs:
    """Costs with these nanoseconds a token, known."""
    found = Costs()
    for number in range(1, ENOUGH + 1):
        found.loads.note(number * 1000, number * 1000 * load_ns)
        found.prefills.note(number * 1000, number * 1000 * compute_ns)
    return found


def test_a_line_is_found_through_fixed_part_and_slope() -> None:
    found = line(*((n * 100, 50 * MILLISECOND_NS + n * 100 * 20_000) for n in range(1, 13)))
    assert abs(found.base_ns - 50 * MILLISECOND_NS) < MILLISECOND_NS
    assert abs(found.slope - (20_000 << SLOPE_BITS)) < 200 << SLOPE_BITS
    assert abs(found.ns(10_000) - 250 * MILLISECOND_NS) < 2 * MILLISECOND_NS


def test_equal_sizes_give_a_ray_and_falling_times_a_flat_line() -> None:
    ray = line(*((500, 10_000_000),) * ENOUGH)
    assert (ray.base_ns, ray.ns(1000)) == (0, 20_000_000)
    flat = line(*((n * 100, 1_000_000 - n * 1000) for n in range(ENOUGH)))
    assert flat.slope == 0
    assert flat.ns(1) == flat.ns(1_000_000) > 0


def test_no_line_starts_below_nothing() -> None:
    steep = line(*((n * 100, n * n * 100_000) for n in range(1, ENOUGH + 1)))
    assert steep.base_ns == 0
    assert steep.ns(0) == 0
    assert steep.ns(1000) > 0


def test_few_samples_say_nothing_and_old_ones_fade() -> None:
    found = line(*((100, 1_000_000),) * (ENOUGH - 1))
    assert not found.known()
    assert (found.base_ns, found.slope) == (0, 0)
    slow = line(*((n % 7 * 100 + 100, (n % 7 + 1) * 100_000_000) for n in range(40)))
    for number in range(4 * SAMPLES_MAX):
        slow.note(number % 7 * 100 + 100, (number % 7 + 1) * 1_000_000)
    assert 7_000_000 <= slow.ns(700) < 20_000_000


def test_unknown_costs_are_all_the_same_and_everything_pays() -> None:
    found = Costs()
    assert found.compute() == found.load(1) == found.load(10_000) == SAME
    assert found.load_pays(1000, 10, 0)
    assert found.store_pays(1000, 0)


def test_a_load_may_take_longer_than_to_compute_and_a_copy_must_save_more() -> None:
    now = 10**18
    for load_ns, loads, stores in ((400, True, True), (900, True, False), (2500, False, False)):
        found = costs(load_ns=load_ns, compute_ns=1000)
        found.looked_ns = now
        assert found.load_pays(4000, 4000, now) is loads, load_ns
        assert found.store_pays(4000, now) is stores, load_ns
    assert MARGIN == 2


def test_what_a_load_saves_is_what_counts_not_what_it_moves() -> None:
    found = costs(load_ns=1000, compute_ns=1000)
    found.looked_ns = now = 10**18
    assert found.load_pays(4000, 3000, now)
    assert not found.load_pays(4000, 500, now)


def test_a_slow_link_is_looked_at_again() -> None:
    found = costs(load_ns=100_000, compute_ns=1000)
    found.looked_ns = now = 10**18
    assert not found.load_pays(1000, 1000, now)
    later = now + LOOK_TIMES * found.loads.ns(1000)
    assert not found.load_pays(1000, 1000, later - 1)
    assert found.load_pays(1000, 1000, later)
    assert found.store_pays(1000, later)


def test_the_price_follows_what_is_given_up_and_fades() -> None:
    found = Costs()
    for second in range(20):
        found.pay(1000, second * SECOND_NS)
    now = found.priced_ns
    assert 900 < found.price_at(now) <= 1000
    assert found.price_at(now + HALF_LIFE_NS) == found.price_at(now) // 2
    assert found.price_at(now + 100 * HALF_LIFE_NS) == 0
    for _ in range(30):
        found.pay(0, now)
    assert found.price_at(now) < 10
