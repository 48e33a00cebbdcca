"""Checks of order: lanes, then tenants by service; no card idles while a turn could run on it.

The checks know only what an observer can be sure of. A waiting turn is a candidate for a card when
every reason that the design names for waiting is surely absent: its branch is idle, its tenant is
under its limit, its session is surely admitted (even if every living session counted in full), it
is not bound to another card by a copy that the pool lacks, and it fits beside what runs.
"""

from __future__ import annotations

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.limits import PASSED_OVER_MAX, RELEASE_SCAN_MAX
from bedplate.core.units import SECOND_NS
from tests.sim.book import Book, Turn
from tests.sim.checkers import Check
from tests.sim.shares import Shares
from tests.sim.things import Card

FASTEST_TOKEN_NS = 1_000
"""No card of the world computes a prompt token faster."""
CALM_NS = 5 * SECOND_NS
"""Order is judged only this long after the last fault."""
SETTLED_NS = 2 * SECOND_NS
"""KV moves of one placement take less than this without faults.

So long a turn may wait for its place while another card could run it at once.
"""


class Observer:
    """Who could surely run where."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.shares = Shares(book)

    def calm(self) -> bool:
        """No fault, drain or policy change of late."""
        return self.book.now - self.book.last_fault_ns > CALM_NS

    def blocks(self, tokens: int) -> int:
        """Blocks that hold tokens."""
        assert self.book.policy is not None
        return -(-tokens // self.book.policy.block_tokens)

    def ready(self, turn: Turn) -> bool:
        """Nothing in the turn's own session or tenant surely holds it back."""
        book, first = self.book, turn.arrived
        if not turn.waiting or turn.cancelled or book.sessions[first.session].closed:
            return False
        if first.fork_of >= 0 and not book.sessions[first.session].branches.get(first.branch):
            return False
        for other in book.open.values():
            same = (other.arrived.session, other.arrived.branch) == (first.session, first.branch)
            if same and other is not turn and (other.running or other.at_ns <= turn.at_ns):
                return False
        for card in book.cards.values():
            for slot in card.slots:
                mine = (slot.session, slot.branch) == (first.session, first.branch)
                if mine and (slot.op or slot.turn or not slot.known):
                    return False
        most = book.tenant_policy(first.tenant).running_max
        if book.tenant_policy(first.tenant).card_tokens_max:
            return False  # it may wait until what it holds on cards is less
        if not most:
            return True
        busy = sum(
            1
            for card in book.cards.values()
            for slot in card.slots
            if slot.turn and slot.tenant == first.tenant
        )
        moving = sum(1 for card in book.cards.values() for slot in card.slots if slot.op)
        return busy + moving < most

    def admitted(self, turn: Turn) -> bool:
        """Even with every living session counted in full there is room in the turn's lane."""
        book = self.book
        assert book.policy is not None
        room = sum(
            card.up.kv_tokens - self._lost(card) * book.policy.block_tokens
            for card in book.cards.values()
            if card.alive and not card.draining and card.up.model == turn.arrived.model
        )
        asked = sum(
            tokens + book.policy.block_tokens
            for session in book.sessions.values()
            if session.alive
            for tokens in session.asked.values()
        )
        model = turn.arrived.model
        for tenant in self.shares.reserved(model):
            if tenant != turn.arrived.tenant:
                asked += self.shares.reserve(tenant, model) * book.policy.block_tokens
        permille = book.policy.lanes[turn.arrived.lane].admit_permille
        return asked * 1000 <= permille * room

    def bound(self, turn: Turn) -> set[str]:
        """Cards that hold what the pool does not: the turn may wait for them."""
        first = turn.arrived
        return {
            name
            for name, card in self.book.cards.items()
            for slot in card.slots
            if card.alive and not slot.clean
            if (slot.session, slot.branch) == (first.session, first.branch)
        }

    def fits(self, turn: Turn, card: Card) -> bool:
        """The card could take the turn now, dropping idle KV."""
        up = card.up
        if not card.alive or card.draining or up.model != turn.arrived.model:
            return False
        if card.open_until_ns:
            return False  # it takes none, or one at a time
        most = max(
            other.up.context_tokens
            for other in self.book.cards.values()
            if other.up.model == up.model
        )
        whole = min(turn.arrived.prompt_tokens + self.book.limit_of(turn), most)
        if whole > up.context_tokens:
            return False
        if up.card in turn.failed_on and self._other(turn, whole):
            return False
        homes = self.bound(turn)
        if homes and up.card not in homes:
            return False
        if self.shares.sliced(up.model) or self.shares.held_back(turn):
            return False
        reserved = self.shares.reserved(up.model)
        used = idle = 0
        for slot in card.slots:
            if slot.op:
                return False
            firm = slot.tenant != turn.arrived.tenant and slot.tenant in reserved
            if slot.broken or slot.turn or firm:
                held = max(self.shares.counted(card, slot), slot.before_tokens)
                used += self.blocks(held)
            else:
                idle += 1
        running = sum(1 for _ in card.running())
        room = up.kv_tokens // self._block()
        if up.prompt_streams and self.book.computing(card) >= up.prompt_streams:
            return False  # how much more may wait there depends on its pace
        return idle > 0 and running < up.running_max and self.blocks(whole) <= room - used

    def _other(self, turn: Turn, whole: int) -> bool:
        """A card that has not failed the turn could take it once it is idle: it may wait for it."""
        for name, card in self.book.cards.items():
            if not card.alive or card.draining or name in turn.failed_on:
                continue
            if card.open_until_ns > self.book.now:
                continue
            room = card.up.kv_tokens // self._block() - self._lost(card)
            fits = whole <= card.up.context_tokens and self.blocks(whole) <= room
            if card.up.model == turn.arrived.model and fits:
                return True
        return False

    def _lost(self, card: Card) -> int:
        """Blocks of slots that could not be emptied: out of use until the card restarts."""
        return sum(self.blocks(self.book.held_tokens(card, s)) for s in card.slots if s.broken)

    def _block(self) -> int:
        assert self.book.policy is not None
        return self.book.policy.block_tokens


class Work(Check):
    """A card with room does not idle while a turn that could run on it waits."""

    name = "work"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.observer = Observer(book)
        self.since: dict[str, int] = {}
        """From when on a waiting turn could have run."""
        self.passed: dict[str, int] = {}
        """How often others were dispatched while a turn of their model waited."""

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch):
            return
        model = self.book.turns[action.turn].arrived.model
        self.passed.pop(action.turn, None)
        for name, turn in self.book.open.items():
            if turn.waiting and turn.arrived.model == model and name != action.turn:
                self.passed[name] = self.passed.get(name, 0) + 1

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        waiting = [turn for turn in self.book.open.values() if turn.waiting]
        since: dict[str, int] = {}
        if self.observer.calm() and len(waiting) <= RELEASE_SCAN_MAX:
            for turn in waiting:
                name = turn.arrived.turn
                if self._could(turn, waiting):
                    since[name] = self.since.get(name, self.book.now)
                    idle = self.book.now - since[name]
                    placed = self._making_room(turn) and idle <= SETTLED_NS
                    self.need(placed, f"{name} could run for {idle} ns: {turn}")
        self.since = since

    def _making_room(self, turn: Turn) -> bool:
        """A card of its model moves KV, maybe for this turn, which then has its place there."""
        return any(
            slot.op
            for card in self.book.cards.values()
            if card.up.model == turn.arrived.model
            for slot in card.slots
        )

    def _could(self, turn: Turn, waiting: list[Turn]) -> bool:
        look = self.observer
        if not look.ready(turn) or not look.admitted(turn):
            return False
        for card in self.book.cards.values():
            if look.fits(turn, card) and not self._blocked(turn, card, waiting):
                return True
        return False

    def _blocked(self, turn: Turn, card: Card, waiting: list[Turn]) -> bool:
        """A turn that does not fit is before it in its tenant's line, or was passed too often."""
        mine = turn.arrived
        for other in waiting:
            first = other.arrived
            if first.model != mine.model or self.observer.fits(other, card):
                continue
            line = (first.tenant, first.lane) == (mine.tenant, mine.lane)
            if line or self._passed_up(first.turn):
                return True
        return False

    def _passed_up(self, turn: str) -> bool:
        return self.passed.get(turn, 0) >= PASSED_OVER_MAX


class Order(Check):
    """Lower lanes do not overtake; in a lane no tenant gets much more service than one that waits.

    A lane that has a minimum share may overtake: how often is for the tests of release.
    """

    name = "order"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.observer = Observer(book)
        self.overtaken: dict[tuple[str, str], int] = {}
        """Cost of another tenant's turns that went before a turn, by that turn and tenant."""
        self.began_ns = book.now
        self.passed: dict[str, int] = {}

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch):
            return
        first = self.book.turns[action.turn]
        model = first.arrived.model
        self.began_ns = self.began_ns or self.book.now
        for key in [key for key in self.overtaken if key[0] == action.turn]:
            del self.overtaken[key]
        if not self.observer.calm():
            self.overtaken.clear()
            return
        passed = self.passed.get(action.turn, 0) >= PASSED_OVER_MAX
        self._pass(action, model)
        card = self.book.cards[action.card]
        for turn in self.book.open.values():
            name = turn.arrived.turn
            if turn is first or turn.arrived.model != model or not self._before(turn, first, card):
                continue
            if turn.arrived.lane < first.arrived.lane:
                if self._shared(first):
                    continue
                self.need(passed, f"{action} (lane {first.arrived.lane}) overtakes {name}: {turn}")
            elif turn.arrived.lane == first.arrived.lane:
                self._fair(action, first, turn)

    def _pass(self, action: act.Dispatch, model: str) -> None:
        """Count a pass of every turn of the model that may not have fitted."""
        self.passed.pop(action.turn, None)
        cards = [card for card in self.book.cards.values() if card.up.model == model]
        for name, turn in self.book.open.items():
            if name == action.turn or not turn.waiting or turn.arrived.model != model:
                continue
            if not all(self.observer.fits(turn, card) for card in cards if card.alive):
                self.passed[name] = self.passed.get(name, 0) + 1

    def _fair(self, action: act.Dispatch, first: Turn, turn: Turn) -> None:
        if turn.arrived.tenant == first.arrived.tenant:
            return
        key = (turn.arrived.turn, first.arrived.tenant)
        fresh = first.arrived.prompt_tokens - first.arrived.reuse_tokens
        self.overtaken[key] = self.overtaken.get(key, 0) + max(1, fresh)
        most = self._most()
        self.need(self.overtaken[key] <= most, f"{key} overtaken by more than {most}: {action}")

    def _most(self) -> int:
        """Cost that a tenant may get while another waits: twice what their service may differ by.

        That is a quantum, a turn on each slot, each of the largest cost and, for a tenant of a
        larger weight, as often as its weight says, and the rent of all cards since the start.
        """
        policy = self.book.policy
        assert policy is not None
        cards = self.book.cards.values()
        longest = max(card.up.context_tokens for card in cards)
        slots = sum(card.up.slots for card in cards)
        held = sum(card.up.kv_tokens for card in cards)
        rent = held * ((self.book.now - self.began_ns) // SECOND_NS) // 128
        weight = max((tenant.weight for tenant in policy.tenants), default=1)
        quantum = policy.fair_quantum_ns // FASTEST_TOKEN_NS
        return 2 * weight * (quantum + 2 * slots * longest + rent)

    def _shared(self, turn: Turn) -> bool:
        policy = self.book.policy
        assert policy is not None
        return policy.lanes[turn.arrived.lane].share_permille > 0

    def _before(self, turn: Turn, first: Turn, card: Card) -> bool:
        """The turn was surely ready before the other's placement began, and fits there."""
        look = self.observer
        waited = self.book.now - max(turn.waiting_since_ns, self._branch_idle_since(turn))
        if waited < SETTLED_NS or not look.ready(turn) or not look.admitted(turn):
            return False
        return self._heads(turn) and self._smaller(turn, first) and look.fits(turn, card)

    def _heads(self, turn: Turn) -> bool:
        """No other turn of its tenant, lane and model waits: the core chooses which is first."""
        mine = (turn.arrived.tenant, turn.arrived.lane, turn.arrived.model)
        return not any(
            other.waiting
            and other is not turn
            and (other.arrived.tenant, other.arrived.lane, other.arrived.model) == mine
            for other in self.book.open.values()
        )

    def _branch_idle_since(self, turn: Turn) -> int:
        key = (turn.arrived.session, turn.arrived.branch)
        return max(
            (
                slot.idle_since_ns
                for card in self.book.cards.values()
                for slot in card.slots
                if (slot.session, slot.branch) == key
            ),
            default=0,
        )

    def _smaller(self, turn: Turn, first: Turn) -> bool:
        mine = turn.arrived.prompt_tokens + self.book.limit_of(turn)
        return mine <= first.arrived.prompt_tokens + self.book.limit_of(first)


CHECKS = (Work, Order)
