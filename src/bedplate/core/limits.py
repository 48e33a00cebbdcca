"""Limits and policy: every bound of the core, as data that arrives in `PolicyChanged`.

Limits end in `_max`. Nothing here decides; the modules named in each line do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bedplate.core.ids import ModelId, TenantId
from bedplate.core.prices import DEFAULT_PRICES, Prices
from bedplate.core.units import MINUTE_NS, SECOND_NS

INTERACTIVE: Final[int] = 0
SHARED: Final[int] = 1
BATCH: Final[int] = 2
LANE_NAMES = ("interactive", "shared", "batch")
"""Lanes by rank: a lower number is released first."""

BRANCHES_MAX: Final = 256
"""Branches of one session; the least recently used idle branch is forgotten beyond it."""
BRANCH_QUEUE_MAX: Final = 16
"""Turns waiting behind one another on one branch."""
DISPATCH_ATTEMPTS_MAX = 3
"""Dispatches of one turn, the first included."""
NO_ENGINE_RETRY_NS = 5 * SECOND_NS
"""When to come back where no card that serves the model is up."""
YIELDS_MAX: Final = 8
"""How often one turn may be stopped for those of higher lanes; then it runs to its end."""
PASSED_OVER_MAX: Final = 16
"""How often a waiting turn that does not fit may be passed before it blocks its card group."""
RELEASE_SCAN_MAX: Final = 64
"""Candidates looked at in one release step."""
ADMIT_PATIENCE_NS = 2 * SECOND_NS
"""How long a session that waits for admission respects the leases of idle ones."""
RESEND_FAST_NS = 10 * SECOND_NS
"""A connection to an endpoint that breaks sooner and without a token is worth another try."""
BREAKER_STRIKES = 5
"""Failures beyond good ends after which a card is left alone."""
BREAKER_WINDOW_NS = MINUTE_NS
"""Failures count together when none of them is further than this from the next."""
BREAKER_PAUSE_NS = SECOND_NS // 4
BREAKER_PAUSE_MAX_NS = 5 * MINUTE_NS
"""Pause before one turn tries the card: the first, doubled each time, and the longest."""
EXPIRE_SCAN_MAX: Final = 256
"""Deadlines handled in one step; the rest follow in the next."""


class LanePolicy(NamedTuple):
    """One service class.

    `admit_permille`: share of all KV room (cards and pool) up to which sessions of this lane are
    admitted. `queue_max`: turns waiting per tenant. `wait_max_ns`: longest wait in queues before a
    refusal. `output_tokens`: output limit of a turn that names none. `lease_ns`: how long a card
    copy is protected in a tool gap. `idle_max_ns`: how long a silent session lives.
    `share_permille`: share of the work that the lane gets whatever waits in the lanes above it.
    `refuse_ns`: a session that would wait longer for its first card is refused at once; 0 is never.
    """

    admit_permille: int
    queue_max: int
    wait_max_ns: int
    output_tokens: int
    lease_ns: int
    idle_max_ns: int
    share_permille: int = 0
    refuse_ns: int = 0


class TenantPolicy(NamedTuple):
    """Limits of one tenant; 0 means no limit.

    `running_max`: turns on cards at once. `inflight_max`: turns accepted and not ended.
    `requests_per_minute`, `tokens_per_minute`: buckets that refill evenly and hold one minute.
    `session_tokens_max`: longest context of one session. `pool_bytes_max`: KV bytes in the pool.
    `weight`: its share of a lane against other tenants, at least 1.
    `day_micro_max`, `month_micro_max`: money in a day and a month of `zone`, whose beginnings
    CalendarDay tells. `session_micro_max`, `session_total_tokens_max`: what one session may use in
    its life, in money and in tokens. `card_tokens_max`: KV on cards, in tokens booked.
    `reserve_tokens`: KV on the cards of each model that nobody else may keep from it, of which
    others may use `lend_tokens` while none of its turns waits. `pool_reserve_bytes`: KV in the pool
    that does not go for others. Of these three 0 means nothing.
    """

    tenant: TenantId
    running_max: int
    inflight_max: int
    requests_per_minute: int
    tokens_per_minute: int
    session_tokens_max: int
    pool_bytes_max: int
    weight: int = 1
    day_micro_max: int = 0
    month_micro_max: int = 0
    session_micro_max: int = 0
    session_total_tokens_max: int = 0
    zone: str = "UTC"
    card_tokens_max: int = 0
    reserve_tokens: int = 0
    lend_tokens: int = 0
    pool_reserve_bytes: int = 0


class Slice(NamedTuple):
    """A part of a model's cards that is one tenant's for a time: whole cards, or KV on all of them.

    `cards`: cards that take its turns alone, of one lane or, with -1, of all. `kv_tokens`: added to
    its reserve. It holds from `from_ns` until before `until_ns`.
    """

    id: str
    tenant: TenantId
    model: ModelId
    cards: int
    kv_tokens: int
    lane: int
    from_ns: int
    until_ns: int


class Policy(NamedTuple):
    """All that core is configured with.

    `lanes` has three entries, by rank. `tenants` is sorted by id; a tenant without an entry gets
    `default_tenant`. `pool_bytes_max` 0 means no pool. `water_permille` are the rising alarm levels
    of card and pool occupancy. `run_base_ns` + `run_token_ns` × (prompt + limit) bound one
    dispatch. `fair_quantum_ns`: work of a card by which a tenant may run ahead of another.
    `prices` is the price list in force. `retry_tokens` and `retry_permille` of accepted prompts may
    be sent again when cards fail (`core/retry.py`). `slices` are sorted by id.
    """

    block_tokens: int
    lanes: tuple[LanePolicy, ...]
    tenants: tuple[TenantPolicy, ...]
    default_tenant: TenantPolicy
    pool_bytes_max: int
    water_permille: tuple[int, ...]
    run_base_ns: int
    run_token_ns: int
    sessions_max: int
    fair_quantum_ns: int = SECOND_NS
    prices: Prices = DEFAULT_PRICES
    retry_permille: int = 200
    retry_tokens: int = 1_000_000
    slices: tuple[Slice, ...] = ()


def default_policy(*, pool_bytes_max: int = 0) -> Policy:
    """Return the policy of a service that nobody configured."""
    return Policy(
        block_tokens=32,
        lanes=(
            LanePolicy(950, 64, MINUTE_NS, 1024, MINUTE_NS, 30 * MINUTE_NS, 0, 15 * SECOND_NS),
            LanePolicy(
                900, 128, 5 * MINUTE_NS, 1024, MINUTE_NS // 2, 30 * MINUTE_NS, 100, 15 * SECOND_NS
            ),
            LanePolicy(800, 1024, 60 * MINUTE_NS, 1024, 5 * SECOND_NS, 60 * MINUTE_NS, 50),
        ),
        tenants=(),
        default_tenant=TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0),
        pool_bytes_max=pool_bytes_max,
        water_permille=(700, 850, 950),
        run_base_ns=60 * SECOND_NS,
        run_token_ns=SECOND_NS // 4,
        sessions_max=100_000,
    )
