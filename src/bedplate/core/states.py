"""The records that core keeps, and the states they may be in. Plain data; other modules decide.

Length: the records refer to one another, and a reader wants their states beside them.

A turn is in exactly one state (INV-03):

    arrive ─► QUEUED ─► READY ─► PLACED ─► LOADING ─► RUNNING ─► (ended)
                ▲         ▲        │ drops    │ load     │
      BEHIND ───┴─────────┘        └──────────┴──────────┴─► READY again when its card is lost
      (another turn of its branch is first, or its KV is being stored)

A slot is in exactly one state (INV-04):

    FREE ─► CLAIMED ─► LOADING ─► RUNNING ─► HELD ─► STORING ─► HELD ─► DROPPING ─► FREE
                └───────────────────▲          └──► RUNNING (next turn of its branch)

CLAIMED: a placed turn waits there until room is free on the card. BROKEN: a drop failed for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bedplate.core.ids import (
    BranchId,
    CardId,
    EntryId,
    ModelId,
    SessionId,
    SlotId,
    TenantId,
    TurnId,
)
from bedplate.core.limits import Slice, TenantPolicy
from bedplate.core.prefix import Prefix
from bedplate.core.tools import NAMES_MAX, Memory
from bedplate.core.units import MINUTE_NS

if TYPE_CHECKING:
    from bedplate.core.group import Group
    from bedplate.core.shares import Share

# Turn states. `Final[str]`: compiled code has the value itself, not a look-up by name.
BEHIND: Final[str] = "behind"
QUEUED: Final[str] = "queued"
READY: Final[str] = "ready"
PLACED: Final[str] = "placed"
LOADING: Final[str] = "loading"
RUNNING: Final[str] = "running"
WAITING: Final = (BEHIND, QUEUED, READY)
"""States in which a turn waits in a bounded queue and its wait deadline counts."""

# Slot states. LOADING and RUNNING are shared with turns on purpose: they coincide.
FREE: Final[str] = "free"
CLAIMED: Final[str] = "claimed"
HELD: Final[str] = "held"
STORING: Final[str] = "storing"
DROPPING: Final[str] = "dropping"
BROKEN: Final[str] = "broken"

# States of a card's circuit breaker.
BREAKER_CLOSED: Final[str] = "closed"
BREAKER_HALF: Final[str] = "half_open"
BREAKER_OPEN: Final[str] = "open"

# Pool entry states.
STORED: Final[str] = "stored"


class Tenant:
    """Counters and buckets of one tenant, full at first; levels are units × one minute in ns.

    `output_mean` is the mean output of its turns, in tokens. `sessions` counts those that are open
    and not closing, `resting` are those of them without a turn, longest idle first. Money in
    millionths: `day_micro` and `month_micro` are what its rows cost since `day_ns` and `month_ns`,
    `reserved_micro` is what its open turns may cost. `card_blocks` are those that its slots hold
    and its placed turns were promised, `busy_blocks` those of them that have a turn; `shelf` are
    its slots that keep KV without a turn and `prefixes` its openings, least recently used first.
    `lru[lane]` are its copies in the pool as in `State.lru`, the least recently stored first.
    `turned_away` tells when sessions asked first that the lane refused, longest ago first.
    """

    __slots__ = (
        "busy_blocks",
        "card_blocks",
        "day_micro",
        "day_ns",
        "id",
        "inflight",
        "level",
        "lru",
        "month_micro",
        "month_ns",
        "output_mean",
        "policy",
        "pool_bytes",
        "pool_dropping",
        "prefixes",
        "refilled_ns",
        "request_level",
        "reserved_micro",
        "resting",
        "running",
        "sessions",
        "shelf",
        "token_level",
        "tools",
        "turned_away",
        "waiting",
    )

    def __init__(self, tenant: TenantId, policy: TenantPolicy, now_ns: int) -> None:
        self.id = tenant
        self.policy = policy
        self.inflight = 0
        self.level = 0
        self.running = 0
        self.waiting = [0, 0, 0]
        self.output_mean = 0
        self.sessions = 0
        self.resting: dict[SessionId, Session] = {}
        self.pool_bytes = 0
        self.pool_dropping = 0
        self.lru: list[dict[EntryId, Entry]] = [{}, {}, {}]
        self.prefixes: dict[tuple[ModelId, str], Prefix] = {}
        self.tools = Memory(NAMES_MAX)
        self.turned_away: dict[SessionId, int] = {}
        self.refilled_ns = now_ns
        self.request_level = policy.requests_per_minute * MINUTE_NS
        self.token_level = policy.tokens_per_minute * MINUTE_NS
        self.busy_blocks = 0
        self.card_blocks = 0
        self.shelf: dict[tuple[CardId, SlotId], Slot] = {}
        self.day_ns = 0
        self.day_micro = 0
        self.month_ns = 0
        self.month_micro = 0
        self.reserved_micro = 0


class Session:
    """One agent run. `closing` names why it ends, empty while it lives.

    `serial` numbers sessions in the order in which they began. `rested` is the branch whose turn
    ended last: only it and those with turns hold a reservation. `idle_ns` is the idle deadline that
    was pushed last; it or an earlier one is pending. `spent_*` is what its rows came to,
    `reserved_*` what its open turns may still use.
    """

    __slots__ = (
        "admitted",
        "branches",
        "closing",
        "created_ns",
        "expires_ns",
        "group",
        "id",
        "idle_ns",
        "lane",
        "lease_ns",
        "open_turns",
        "reserved_micro",
        "reserved_tokens",
        "rested",
        "serial",
        "spent_micro",
        "spent_tokens",
        "tenant",
    )

    def __init__(
        self, session: SessionId, tenant: Tenant, group: Group, now_ns: int, serial: int
    ) -> None:
        self.id = session
        self.serial = serial
        self.tenant = tenant
        self.group = group
        self.created_ns = now_ns
        self.branches: dict[BranchId, Branch] = {}
        self.lane = 0
        self.admitted = False
        self.open_turns = 0
        self.lease_ns = 0
        self.expires_ns = 0
        self.idle_ns = 0
        self.closing = ""
        self.rested: Branch | None = None
        self.spent_micro = 0
        self.reserved_micro = 0
        self.spent_tokens = 0
        self.reserved_tokens = 0


class Branch:
    """One line of a session's tree and where its KV is: on a card, in the pool, or nowhere.

    `source` is the parent's pool entry that a fresh fork will load, pinned until then, and
    `source_tokens` its leading tokens on the line that the fork left; `awaits` is the parent while
    that entry is on its way to the pool. `card` is where a turn of it
    last ran.
    `reserved_tokens` is its part of the session's admission. `tool` is what its last answer called,
    `eta_ns` when that will be done by the client's word, 0 without one.
    """

    __slots__ = (
        "area_card",
        "area_mark_ns",
        "area_pool",
        "awaits",
        "card",
        "ended_ns",
        "entry",
        "eta_ns",
        "group",
        "id",
        "reserved_tokens",
        "session",
        "share",
        "slot",
        "source",
        "source_tokens",
        "tool",
        "turns",
    )

    def __init__(self, branch: BranchId, session: Session, share: Share, now_ns: int) -> None:
        self.id = branch
        self.session = session
        self.share = share
        self.group = share.group
        self.turns: list[Turn] = []
        self.slot: Slot | None = None
        self.entry: Entry | None = None
        self.source: Entry | None = None
        self.source_tokens = 0
        self.awaits: Branch | None = None
        self.card = ""
        self.reserved_tokens = 0
        self.ended_ns = 0
        self.tool = ""
        self.eta_ns = 0
        self.area_mark_ns = now_ns
        self.area_card = 0
        self.area_pool = 0


class Turn:
    """One model call on its way.

    `end_reason` is set when it will end at the engine's next word. `card` is where it was last
    dispatched, empty before. `failed_on` are cards that were up and could not run it. `rank` is its
    place in line, from when it began to wait there, `charged` what its tenant paid ahead for it,
    `fresh_tokens` what its card has yet to compute of its prompt, 0 from the first token on, and
    `waiting_tokens` what it counts for while it stands in a line. `kept` is the card that is kept
    for it meanwhile. `budget_micro` and `budget_tokens` are its part of what its session has
    reserved. `prefix` is its opening. `owed`: it started as its lane was owed a turn. It yielded
    `yields` times, and `told` then of its prompt and how much was cached; `line_tokens` is
    `reuse_tokens` before it left KV behind, else −1.
    """

    __slots__ = (
        "arrived_ns",
        "asked_ns",
        "attempt",
        "bound_to",
        "branch",
        "budget_micro",
        "budget_tokens",
        "card",
        "charged",
        "claim_blocks",
        "dispatched_ns",
        "end_detail",
        "end_reason",
        "exact",
        "expected_tokens",
        "failed_on",
        "fresh_tokens",
        "id",
        "kept",
        "lane",
        "limit_tokens",
        "line_tokens",
        "load",
        "loaded",
        "need_blocks",
        "out_tokens",
        "owed",
        "passed_over",
        "prefix",
        "prompt_tokens",
        "queue_ns",
        "rank",
        "reserved_tokens",
        "resumable",
        "reuse_tokens",
        "serial",
        "since_ns",
        "slot",
        "slot_ns",
        "state",
        "told",
        "tool_ns",
        "waiting_tokens",
        "why",
        "yields",
    )

    def __init__(self, turn: TurnId, branch: Branch, lane: int, now_ns: int) -> None:
        self.id = turn
        self.branch = branch
        self.lane = lane
        self.arrived_ns = now_ns
        self.asked_ns = now_ns
        self.since_ns = now_ns
        self.state = BEHIND
        self.serial = 0
        self.attempt = 0
        self.prompt_tokens = 0
        self.reuse_tokens = 0
        self.limit_tokens = 0
        self.reserved_tokens = 0
        self.budget_micro = 0
        self.budget_tokens = 0
        self.need_blocks = 0
        self.claim_blocks = 0
        self.resumable = False
        self.exact = True
        self.card = ""
        self.slot: Slot | None = None
        self.bound_to: Card | None = None
        self.load: Entry | None = None
        self.loaded = False
        self.prefix: Prefix | None = None
        self.expected_tokens = 0
        self.failed_on: tuple[CardId, ...] = ()
        self.out_tokens = 0
        self.passed_over = 0
        self.queue_ns = 0
        self.slot_ns = 0
        self.tool_ns = 0
        self.dispatched_ns = 0
        self.end_reason = ""
        self.end_detail = ""
        self.why = ""
        self.rank: tuple[int, ...] = ()
        self.charged = 0
        self.fresh_tokens = 0
        self.kept: Card | None = None
        self.waiting_tokens = 0
        self.owed = False
        self.yields = 0
        self.told: tuple[int, int] | None = None
        self.line_tokens = -1


class Slot:
    """Room for one running sequence on a card, and the KV it keeps between turns.

    `blocks` is what the slot occupies by core's books: the reservation of its turn while one runs,
    else the KV it holds. `dirty`: the pool has no copy of that. `shared_tokens`: leading tokens
    that the branch's line still has (fewer than `tokens` once it was cut back). `entry`: what it
    holds, or its turn's opening, on its way to the pool. `loaded`: from there, not yet verified.
    """

    __slots__ = (
        "blocks",
        "branch",
        "card",
        "dirty",
        "drop_tries",
        "entry",
        "id",
        "loaded",
        "shared_tokens",
        "state",
        "tokens",
        "turn",
        "used_ns",
    )

    def __init__(self, slot: SlotId, card: Card) -> None:
        self.id = slot
        self.card = card
        self.state = FREE
        self.blocks = 0
        self.tokens = 0
        self.shared_tokens = 0
        self.branch: Branch | None = None
        self.turn: Turn | None = None
        self.entry: Entry | None = None
        self.dirty = False
        self.loaded = False
        self.drop_tries = 0
        self.used_ns = 0


class Card:
    """One accelerator.

    Blocks: `used` = Σ slot.blocks; `dropping` of these will be free on acknowledgement; `claimed`
    is promised to placed turns: used − dropping + claimed ≤ total (INV-01). `busy`: those of slots
    that have a turn. `prompts` turns are on their way to their first token, with `prompt_tokens` to
    be computed; `first_token_ns` is when the latest one came. `running_busy` bounds its turns while
    others wait. `free` is a heap of slots that may be FREE (others are skipped), `idle` those that
    keep KV without a turn, least recently used first. `breaker`, with `strikes`, `struck_ns` (the
    latest), `trips` in a row, `open_until_ns` and the turn that is its `probe`: see
    `core/breaker.py`. `common`: its KV is counted in the shares of its group's tenants, as no
    `slice` has it. `kept_for` waits for room there, and turns beyond their reserves or after it
    let it (`shares`).
    """

    __slots__ = (
        "bound",
        "breaker",
        "busy_blocks",
        "bytes_per_token",
        "can_cut",
        "claimed_blocks",
        "common",
        "context_tokens",
        "draining",
        "dropping_blocks",
        "first_token_ns",
        "free",
        "group",
        "id",
        "idle",
        "index",
        "kept_for",
        "kv",
        "level",
        "open_until_ns",
        "partition",
        "placed",
        "probe",
        "prompt_streams",
        "prompt_tokens",
        "prompts",
        "report",
        "running",
        "running_busy",
        "running_max",
        "slice",
        "slots",
        "strikes",
        "struck_ns",
        "total_blocks",
        "trips",
        "up",
        "used_blocks",
    )

    def __init__(self, card: CardId, index: int, group: Group) -> None:
        self.id = card
        self.index = index
        self.group = group
        self.partition = ""
        self.kv = "none"
        self.can_cut = False
        self.up = False
        self.draining = False
        self.common = False
        self.slice: Slice | None = None
        self.kept_for: Turn | None = None
        self.running = 0
        self.running_max = 0
        self.prompts = 0
        self.prompt_streams = 0
        self.running_busy = 0
        self.prompt_tokens = 0
        self.first_token_ns = 0
        self.total_blocks = 0
        self.used_blocks = 0
        self.busy_blocks = 0
        self.dropping_blocks = 0
        self.claimed_blocks = 0
        self.context_tokens = 0
        self.bytes_per_token = 0
        self.slots: list[Slot] = []
        self.free: list[SlotId] = []
        self.idle: dict[SlotId, Slot] = {}
        self.bound: dict[TurnId, Turn] = {}
        self.placed: dict[TurnId, Turn] = {}
        self.level = 0
        self.report = (0, 0, 0, 0, 0)
        self.breaker = BREAKER_CLOSED
        self.strikes = 0
        self.struck_ns = 0
        self.trips = 0
        self.open_until_ns = 0
        self.probe = TurnId("")


class Entry:
    """One KV copy in the pool: of a branch, of the opening `prefix`, or of neither any more.

    `refs` counts forks and loads that still need it. `shared_tokens` as in `Slot`: an entry that an
    earlier turn stored may hold a tail which the branch's line has since left.
    """

    __slots__ = (
        "branch",
        "drop_tries",
        "group",
        "id",
        "lane",
        "prefix",
        "refs",
        "shared_tokens",
        "size_bytes",
        "state",
        "tenant",
        "tokens",
    )

    def __init__(self, entry: EntryId, branch: Branch, tokens: int, size_bytes: int) -> None:
        self.id = entry
        self.branch: Branch | None = branch
        self.prefix: Prefix | None = None
        self.tenant = branch.session.tenant
        self.group = branch.group
        self.lane = branch.session.lane
        self.tokens = tokens
        self.shared_tokens = tokens
        self.size_bytes = size_bytes
        self.refs = 0
        self.drop_tries = 0
        self.state = STORING
