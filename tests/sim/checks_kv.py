"""Checks of slots, KV and pool: what a card or the pool would physically suffer from."""

from __future__ import annotations

from collections.abc import Iterator

from bedplate.core import actions as act
from bedplate.core import events as ev
from tests.sim.book import Turn
from tests.sim.checkers import Check
from tests.sim.sequence import Sequence, extend, length, usable
from tests.sim.shares import Shares
from tests.sim.things import DROPS_FAILED_MAX, Card, Slot


class CardRoom(Check):
    """KV on a card, running turns at prompt + limit, never exceeds what the card has."""

    name = "card-room"

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        touched = {a.card for a in actions if isinstance(a, act.Dispatch | act.LoadKv)}
        for name in sorted(touched):
            card = self.book.cards[name]
            used = sum(self.book.held_tokens(card, slot) for slot in card.slots)
            self.need(used <= card.up.kv_tokens, f"card {name}: {used} of {card.up.kv_tokens}")


class SlotOrder(Check):
    """One thing at a time in a slot: empty, then load, then dispatch; moves only on idle slots."""

    name = "slot-order"

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch | act.LoadKv | act.StoreKv | act.DropKv):
            return
        card = self.book.cards.get(action.card)
        self.need(card is not None and card.alive, f"{action} on a card that is not up")
        assert card is not None
        self.need(0 <= action.slot < card.up.slots, f"{action}: no such slot")
        slot = card.slots[action.slot]
        self.need(not slot.turn, f"{action}: turn {slot.turn} runs there")
        self.need(not slot.op, f"{action}: {slot.op} under way there")
        if isinstance(action, act.Dispatch):
            self._dispatch(action, card, slot)
        else:
            self.need(card.up.kv == "full", f"{action} on a card with kv {card.up.kv}")
        if isinstance(action, act.LoadKv):
            self.need(slot.empty, f"{action}: slot holds {slot.session}/{slot.branch}")
            self.need(not card.draining, f"{action} on a draining card")
        elif isinstance(action, act.StoreKv):
            self.need(bool(slot.tokens) and slot.known, f"{action}: nothing usable to store")
            same = (slot.tenant, slot.session, slot.branch)
            self.need(
                same == (action.tenant, action.session, action.branch), f"{action}: holds {same}"
            )

    def _dispatch(self, action: act.Dispatch, card: Card, slot: Slot) -> None:
        self.need(not card.draining, f"{action} on a draining card")
        if card.up.kv != "full":
            return
        if not slot.empty:
            self.need(slot.known, f"{action}: slot holds the remains of a failed turn")
            holder = (slot.session, slot.branch)
            self.need(holder == (action.session, action.branch), f"{action}: slot holds {holder}")


class Prefix(Check):
    """The expected cache is truly there, and `loaded` says what was loaded."""

    name = "prefix"

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch):
            return
        card = self.book.cards[action.card]
        turn = self.book.turns[action.turn]
        self.need(
            0 <= action.expect_cached_tokens < turn.arrived.prompt_tokens, f"{action}: off range"
        )
        if card.up.kv != "full":
            self.need(not action.loaded, f"{action}: loaded without a load")
            return
        slot = card.slots[action.slot]
        line = extend(turn.prompt, f"{action.turn}!", action.resume_tokens)
        true = usable(slot.tokens, line, can_cut=card.up.can_cut)
        self.need(
            action.expect_cached_tokens <= true,
            f"{action}: slot truly offers {true} (holds {slot.tokens}, prompt {turn.prompt})",
        )
        self.need(action.loaded == slot.loaded, f"{action}: slot.loaded is {slot.loaded}")


class Thrift(Check):
    """KV that is there and usable is used: the expectation is not below the truth."""

    name = "thrift"

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch):
            return
        card = self.book.cards[action.card]
        slot = card.slots[action.slot]
        turn = self.book.turns[action.turn]
        cut = turn.arrived.branch in self.book.sessions[action.session].cut
        if card.up.kv != "full" or not slot.tokens or turn.attempts or cut or not turn.alone:
            return
        held = length(slot.tokens)
        reuse = turn.arrived.reuse_tokens
        if held <= reuse and usable(slot.tokens, turn.prompt, can_cut=False) >= held - 1:
            least = min(held, turn.arrived.prompt_tokens - 1)
            self.need(action.expect_cached_tokens >= least, f"{action}: {least} tokens are there")


MEASURED = 8
"""Loads with which the core may know what they cost."""


class Home(Check):
    """A turn runs where its KV is, or from its pool copy; it waits rather than compute it again.

    Once a few loads were measured, a pool copy may be passed over, as to compute may be faster.
    """

    name = "home"

    def __init__(self, book: object) -> None:
        super().__init__(book)  # type: ignore[arg-type]
        self.loads = 0

    def event(self, event: ev.Event) -> None:
        self.loads += isinstance(event, ev.KvLoaded)

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch):
            return
        book, turn = self.book, self.book.turns[action.turn]
        first, session = turn.arrived, book.sessions[action.session]
        calm = book.last_fault_ns < turn.waiting_since_ns
        if not calm or turn.attempts or not turn.alone or first.branch in session.cut:
            return
        if book.cards[action.card].up.kv != "full":
            return
        for where, tokens in self._copies(action, turn):
            held = length(tokens)
            if held <= first.reuse_tokens and usable(tokens, turn.prompt, can_cut=False) == held:
                least = min(held, first.prompt_tokens - 1)
                have = action.expect_cached_tokens
                self.need(have >= least, f"{action}: {where} has {least} tokens of it")

    def _copies(self, action: act.Dispatch, turn: Turn) -> Iterator[tuple[str, Sequence]]:
        """Copies of the branch that the turn could have had: in the pool, on cards that hold it."""
        key = (action.session, action.branch)
        model = turn.arrived.model
        for number, entry in self.book.entries.items():
            mine = (entry.session, entry.branch) == key and entry.model == model
            given_up = entry.dropping or entry.drops_failed or entry.replaced
            if mine and entry.stored and not given_up and self.loads < MEASURED:
                yield f"entry {number}", entry.tokens
        for name, card in self.book.cards.items():
            if not card.alive or card.draining or card.up.kv != "full":
                continue
            broken = any(slot.broken for slot in card.slots)
            whole = turn.arrived.prompt_tokens + action.limit_tokens
            if broken or card.up.model != model or whole > card.up.context_tokens:
                continue
            for slot in card.slots:
                if (slot.session, slot.branch) == key and slot.known and slot.kept and not slot.op:
                    yield f"card {name}", slot.tokens


class Tenants(Check):
    """No KV of another session, tenant or model is ever loaded or used (INV-07)."""

    name = "tenants"

    def action(self, action: act.Action) -> None:
        if isinstance(action, act.LoadKv):
            entry = self.book.entries.get(action.entry)
            self.need(entry is not None, f"{action}: no such entry")
            assert entry is not None
            self.need(entry.stored, f"{action}: entry is not stored")
            self.need(not entry.dropping, f"{action}: entry is being dropped")
            own = entry.prefix or entry.session == action.session
            self.need(bool(own), f"{action}: entry is of {entry.session}")
            session = self.book.sessions[action.session]
            self.need(entry.tenant == session.tenant, f"{action}: entry is of {entry.tenant}")
            self.need(session.alive, f"{action}: session has ended")
            card = self.book.cards[action.card]
            self.need(entry.model == card.up.model, f"{action}: entry is of {entry.model}")
        elif isinstance(action, act.Dispatch):
            turn = self.book.turns[action.turn].arrived
            card = self.book.cards[action.card]
            self.need(card.up.model == turn.model, f"{action}: turn wants {turn.model}")
            self.need(
                (action.session, action.branch) == (turn.session, turn.branch),
                f"{action}: turn is of {turn.session}/{turn.branch}",
            )
        elif isinstance(action, act.StoreKv):
            session = self.book.sessions[action.session]
            self.need(session.tenant == action.tenant, f"{action}: session is {session.tenant}'s")


class PoolCap(Check):
    """Stores under way and entries, whoever is deleting them, stay under pool and tenant caps."""

    name = "pool-cap"

    def action(self, action: act.Action) -> None:
        book = self.book
        if isinstance(action, act.DropEntry):
            entry = book.entries.get(action.entry)
            self.need(entry is not None, f"{action}: no such entry")
            assert entry is not None
            storing = any(
                slot.op == "store" and slot.entry == action.entry
                for card in book.cards.values()
                for slot in card.slots
            )
            self.need(not storing, f"{action}: still being stored")
            self.need(not entry.dropping, f"{action}: twice")
            loading = any(
                slot.op == "load" and slot.entry == action.entry
                for card in book.cards.values()
                for slot in card.slots
            )
            self.need(not loading, f"{action}: a load of it is under way")
        if isinstance(action, act.StoreKv):
            held = length(book.cards[action.card].slots[action.slot].tokens)
            self._store(action, action.entry, action.tenant, held)
        elif isinstance(action, act.Dispatch) and action.prefix_tokens:
            tenant = book.turns[action.turn].arrived.tenant
            self._store(action, action.prefix_entry, tenant, action.prefix_tokens)

    def _store(
        self, action: act.StoreKv | act.Dispatch, entry: int, tenant: str, tokens: int
    ) -> None:
        book = self.book
        assert book.policy is not None
        self.need(entry not in book.entries, f"{action}: id is in use")
        self.need(entry > book.entry_last, f"{action}: ids count up, last {book.entry_last}")
        size = tokens * book.cards[action.card].up.kv_bytes_per_token
        total = book.pool_bytes() + size
        self.need(total <= book.policy.pool_bytes_max, f"{action}: pool would hold {total}")
        most = book.tenant_policy(tenant).pool_bytes_max
        if most:
            total = book.pool_bytes(tenant) + size
            self.need(total <= most, f"{action}: tenant would hold {total} of {most}")


class NothingLeft(Check):
    """At the end no slot holds KV of an ended session, and the pool has no entry of one (F22)."""

    name = "nothing-left"

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.SessionEnded):
            return
        for name, card in sorted(self.book.cards.items()):
            for slot in card.slots:
                if slot.session == action.session and card.alive:
                    self.need(not slot.turn, f"{action}: turn {slot.turn} still runs on {name}")

    def finish(self) -> None:
        for name, card in sorted(self.book.cards.items()):
            for number, slot in enumerate(card.slots):
                self.need(
                    not card.alive or not slot.op, f"card {name} slot {number}: {slot.op} hangs"
                )
                if slot.session and card.alive and not self.book.sessions[slot.session].alive:
                    gone = card.up.kv != "full" or slot.broken
                    self.need(gone, f"card {name} slot {number} holds {slot.session}")
        for number, entry in sorted(self.book.entries.items()):
            alive = not entry.prefix and self.book.sessions[entry.session].alive
            stuck = entry.drops_failed >= DROPS_FAILED_MAX
            self.need(alive or stuck, f"entry {number} of ended session {entry.session} is left")


class Openings(Check):
    """An opening is kept for later sessions of its tenant: once, to the token, when one came."""

    name = "openings"

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch) or not action.prefix_tokens:
            return
        book, turn = self.book, self.book.turns[action.turn]
        first = turn.arrived
        self.need(book.cards[action.card].up.kv == "full", f"{action}: the card stores nothing")
        self.need(action.prefix_tokens == first.prefix_tokens, f"{action}: {first.prefix_tokens}")
        self.need(action.prefix_tokens < first.prompt_tokens, f"{action}: nothing comes after it")
        self.need(not action.expect_cached_tokens, f"{action}: it computes only a part of it")
        key = (first.tenant, first.model, first.prefix)
        calls = (turn.arrived for turn in book.turns.values())
        uses = sum((call.tenant, call.model, call.prefix) == key for call in calls)
        self.need(uses > 1, f"{action}: no other call begins with it")
        for number, entry in book.entries.items():
            same = (entry.tenant, entry.model, entry.prefix) == key
            gone = entry.dropping or entry.drops_failed
            self.need(not same or bool(gone), f"{action}: entry {number} has it")


class Retention(Check):
    """While idle KV is there that is clean and whose lease ran out for sure, no dirty KV goes.

    Unless that is larger, and the clean KV is spared as it makes no difference.
    For sure: a lease may be shorter than its lane's time, never longer without the client's word.
    """

    name = "retention"

    def __init__(self, book: object) -> None:
        super().__init__(book)  # type: ignore[arg-type]
        self.progress: set[str] = set()
        self.arriving = ""
        """Session of the call of this step."""
        self.wrong: list[tuple[str, str]] = []
        """Session and complaint; none of sessions that end, now or once their store has."""

    def event(self, event: ev.Event) -> None:
        self.arriving = event.session if isinstance(event, ev.TurnArrived) else ""
        if isinstance(event, ev.ToolProgress):
            self.progress.add(event.session)

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.DropKv):
            return
        card = self.book.cards[action.card]
        dropped = card.slots[action.slot]
        shares, model = Shares(self.book), card.up.model
        if card.draining or not self.at_rest(dropped) or shares.sliced(model):
            return
        now = self.book.now
        if self.book.tenant_policy(dropped.tenant).card_tokens_max:
            return  # it may go for its own tenant's limit
        if dropped.drops_failed or (dropped.loaded and dropped.idle_since_ns == now):
            return  # tried once more, or loaded for a turn that is gone
        size, reserved = length(dropped.tokens), shares.reserved(model)
        if dropped.clean:
            return
        for number, slot in enumerate(card.slots):
            if slot is dropped or slot.op or slot.turn or slot.broken or not self.at_rest(slot):
                continue
            if reserved and (slot.tenant != dropped.tenant or slot.tenant in reserved):
                continue  # who is the most above its reserve gives first, and nobody below it
            if self._over(slot) and slot.clean and length(slot.tokens) >= size:
                complaint = f"{action}: dirty; slot {number} is clean and its lease is over"
                self.wrong.append((dropped.session, complaint))

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        ended = {str(a.session) for a in actions if isinstance(a, act.SessionEnded)}
        for session, complaint in self.wrong:
            self.need(session in ended or session in self.book.storing(), complaint)
        self.wrong.clear()

    def at_rest(self, slot: Slot) -> bool:
        """A resident of a living session that nobody waits for."""
        usable_kv = slot.session and slot.known and slot.kept and slot.tokens
        if not usable_kv or slot.session in self.progress or slot.session == self.arriving:
            return False
        session = self.book.sessions[slot.session]
        ends = session.closed or self.book.now >= session.expires_ns
        if ends or not session.alive:
            return False
        return not any(turn.arrived.session == slot.session for turn in self.book.live_turns())

    def _over(self, slot: Slot) -> bool:
        return self.book.now >= self.book.sessions[slot.session].lease_ns


CHECKS = (
    *(CardRoom, SlotOrder, Prefix, Thrift, Home, Tenants),
    *(PoolCap, NothingLeft, Openings, Retention),
)
