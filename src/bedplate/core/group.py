"""A group: the cards that serve one model, and what waits for them. Plain data, as in `states`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedplate.core.costs import Costs
from bedplate.core.ids import CardId, ModelId, SessionId, TenantId, TurnId

if TYPE_CHECKING:
    from bedplate.core.shares import Share
    from bedplate.core.states import Card, Session, Turn


class Group:
    """Cards that serve one model, and the turns that wait for any of them.

    `open_heap` orders cards that can start a turn by `card.rank`; entries go
    stale when a card changes and are skipped; `unranked` are cards that changed since the heap was
    last used. `queues[lane][tenant]` are the ready turns, `admit_queues` those whose session is not
    admitted, each by rank. `virtual[lane][tenant]` is what a tenant was served by weight, and
    `floors[lane]` the least of those that waited at the latest start (`fairness`). `owed[lane]` is
    the work, in thousandths of cost, that a lane may do before those above it. `idle[lane]` are
    admitted sessions without a turn, in the order in which they came to rest. `waiting_tokens` and
    `waiting_turns` count what waits in each lane, `turn_ns` is the mean time of a turn on a card,
    `running_max` and `streams` what its cards run and compute side by side (`demand`), `running`
    what they run now. `priced_bytes` is what a token of KV weighs in a bill, by the card that came
    up last. `shares` are those of its tenants; `common_blocks` are those of its common cards,
    `busy_blocks` those with turns, `reserve_blocks` all reserves, `kept_blocks` and `kept_tokens`
    what is kept of them (`shares`).
    `may_yield` are running turns that may be stopped for others, in the order of their dispatch;
    `yielding` those that were asked to and do not wait in line yet. `lost_ns` is since when no card
    is up, 0 while one is.
    """

    __slots__ = (
        "admit_queues",
        "admitted_tokens",
        "block_tokens",
        "bound_cards",
        "busy_blocks",
        "bytes_per_token",
        "capacity_tokens",
        "cards",
        "common_blocks",
        "context_tokens",
        "costs",
        "floors",
        "idle",
        "kept_blocks",
        "kept_tokens",
        "lost_ns",
        "may_yield",
        "model",
        "open_heap",
        "owed",
        "priced_bytes",
        "queues",
        "reserve_blocks",
        "running",
        "running_max",
        "shares",
        "slice_ns",
        "streams",
        "turn_ns",
        "unranked",
        "virtual",
        "waiting_tokens",
        "waiting_turns",
        "wake_ns",
        "yielding",
    )

    def __init__(self, model: ModelId, block_tokens: int) -> None:
        self.model = model
        self.block_tokens = block_tokens
        self.cards: list[Card] = []
        self.open_heap: list[tuple[int, int, int, int]] = []
        self.unranked: dict[CardId, Card] = {}
        self.bound_cards: dict[CardId, Card] = {}
        self.capacity_tokens = 0
        self.context_tokens = 0
        self.bytes_per_token = 0
        self.priced_bytes = 0
        self.admitted_tokens = 0
        self.shares: dict[TenantId, Share] = {}
        self.slice_ns = 0
        self.common_blocks = 0
        self.busy_blocks = 0
        self.reserve_blocks = 0
        self.kept_blocks = 0
        self.kept_tokens = 0
        self.wake_ns = 0
        self.lost_ns = 0
        self.costs = Costs()
        self.owed = [0, 0, 0]
        self.virtual: list[dict[TenantId, int]] = [{}, {}, {}]
        self.floors = [0, 0, 0]
        self.waiting_tokens = [0, 0, 0]
        self.waiting_turns = [0, 0, 0]
        self.turn_ns = 0
        self.running_max = 0
        self.running = 0
        self.streams = 0
        self.queues: list[dict[TenantId, list[Turn]]] = [{}, {}, {}]
        self.admit_queues: list[dict[TenantId, list[Turn]]] = [{}, {}, {}]
        self.idle: list[dict[SessionId, Session]] = [{}, {}, {}]
        self.may_yield: dict[TurnId, Turn] = {}
        self.yielding: dict[TurnId, Turn] = {}
