"""Checks of turns, sessions, limits and metering: what a client or a payer would suffer from."""

from __future__ import annotations

from collections import Counter

from bedplate import errors
from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.limits import BRANCH_QUEUE_MAX, DISPATCH_ATTEMPTS_MAX
from bedplate.core.units import SECOND_NS
from tests.sim.book import GOOD_ENDS, Book, Turn
from tests.sim.checkers import Check
from tests.sim.patience import patience_ns, served
from tests.sim.sequence import length

PLACED_NS = 60 * SECOND_NS
"""So long after a policy change what was placed before it may still start: KV moves hang."""
CODES = frozenset(
    cls.code
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.BedplateError)
)


class OneEnd(Check):
    """A turn is told its end once, settles once, and does nothing after."""

    name = "one-end"

    def action(self, action: act.Action) -> None:
        if isinstance(action, act.Refuse | act.FailTurn):
            turn = self._turn(action.turn, action)
            self.need(turn.told == 0, f"{action}: told twice")
            self.need(action.reason in CODES, f"{action}: unknown code")
            well = turn.ended is not None and turn.ended.status in GOOD_ENDS
            self.need(not well or turn.stopping, f"{action}: it ended well")
            if isinstance(action, act.Refuse):
                self.need(turn.delivered == 0, f"{action}: tokens were delivered")
                self.need(not turn.running, f"{action}: it is running")
                self.need(action.retry_after_ns >= 0, f"{action}: negative wait")
        elif isinstance(action, act.Settled) and action.turn:
            turn = self._turn(action.turn, action)
            self.need(turn.settled == 0, f"{action}: settled twice")
        elif isinstance(action, act.Dispatch):
            turn = self._turn(action.turn, action)
            self.need(not turn.over, f"{action}: it is over")
            self.need(not turn.running, f"{action}: it is running")
            self.need(not turn.cancelled, f"{action}: it was cancelled")
            self.need(not self.book.sessions[action.session].closed, f"{action}: session closed")
        elif isinstance(action, act.CancelTurn):
            turn = self._turn(action.turn, action)
            self.need(turn.running, f"{action}: it is not running")
            self.need(turn.attempts == action.attempt, f"{action}: attempt {turn.attempts} runs")

    def _turn(self, name: str, action: act.Action) -> Turn:
        turn = self.book.turns.get(name)
        self.need(turn is not None, f"{action}: no such turn")
        assert turn is not None
        return turn

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        if isinstance(event, ev.TurnEnded):
            turn = self.book.turns.get(event.turn)
            if turn is None or turn.ended is not event:
                return
            if event.status in GOOD_ENDS:
                self.need(turn.settled == 1, f"{event}: not settled in the same step")
        for action in actions:
            if isinstance(action, act.FailTurn):
                turn = self.book.turns[action.turn]
                self.need(turn.settled == 1 or turn.running, f"{action}: failed, never settled")

    def finish(self) -> None:
        for name, turn in self.book.turns.items():
            if turn.accepted:
                self.need(turn.over, f"turn {name} hangs: {turn}")
                self.need(turn.settled == 1, f"turn {name} settled {turn.settled} times: {turn}")
            self.need(not turn.running, f"turn {name} still on card {turn.card}")


class Attempts(Check):
    """Attempts count from 1, are few, and never repeat what a client already has (F10, F16)."""

    name = "attempts"

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Dispatch):
            return
        turn = self.book.turns[action.turn]
        self.need(action.attempt == turn.attempts + 1, f"{action}: after {turn.attempts}")
        tries = action.attempt - turn.yielded
        self.need(tries <= DISPATCH_ATTEMPTS_MAX, f"{action}: too many")
        self.need(action.resume_tokens == turn.delivered, f"{action}: {turn.delivered} delivered")
        if turn.delivered:
            self.need(turn.arrived.resumable, f"{action}: not resumable")
        if turn.limit:
            self.need(action.limit_tokens == turn.limit, f"{action}: limit was {turn.limit}")


class Limits(Check):
    """Limits of the turn, the card, the tenant and the queues."""

    name = "limits"

    def action(self, action: act.Action) -> None:
        book = self.book
        assert book.policy is not None
        if not isinstance(action, act.Dispatch):
            return
        turn, card = book.turns[action.turn], book.cards[action.card]
        wanted = turn.arrived.limit_tokens
        self.need(action.limit_tokens >= 1, f"{action}: no room for a token")
        self.need(not wanted or action.limit_tokens <= wanted, f"{action}: client said {wanted}")
        whole = turn.arrived.prompt_tokens + action.limit_tokens
        most = card.up.context_tokens
        self.need(whole <= most, f"{action}: {whole} tokens, card takes {most}")
        running = sum(1 for _ in card.running())
        self.need(running < card.up.running_max, f"{action}: {running} run on {card.up.card}")
        tenant = book.tenant_policy(turn.arrived.tenant)
        if tenant.running_max and book.now - book.policy_ns > PLACED_NS:
            busy = sum(
                1
                for other in book.turns.values()
                if other.running and other.arrived.tenant == turn.arrived.tenant
            )
            self.need(busy < tenant.running_max, f"{action}: tenant runs {busy}")
        together = [
            other
            for other in card.slots + [s for c in book.cards.values() for s in c.slots]
            if other.turn and (other.session, other.branch) == (action.session, action.branch)
        ]
        self.need(not together, f"{action}: the branch runs already")

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        if isinstance(event, ev.TurnArrived) and self.book.turns[event.turn].accepted:
            self._accepted(event)

    def _accepted(self, event: ev.TurnArrived) -> None:
        book = self.book
        assert book.policy is not None
        self.need(not book.stalled, f"{event}: accepted while the journal is stalled")
        self.need(not book.shutdown, f"{event}: accepted after shutdown")
        self.need(
            not book.sessions[event.session].closed, f"{event}: accepted after its session closed"
        )
        tenant = book.tenant_policy(event.tenant)
        mine = [t for t in book.live_turns() if t.arrived.tenant == event.tenant]
        if tenant.inflight_max:
            self.need(len(mine) <= tenant.inflight_max, f"{event}: {len(mine)} in flight")
        queue = sum(1 for t in mine if t.waiting and t.arrived.lane == event.lane)
        again = sum(1 for t in mine if t.waiting and t.attempts)
        most = book.policy.lanes[event.lane].queue_max + book.placed_most() + again
        self.need(queue <= most, f"{event}: {queue} wait, {most} may")
        context = book.context_of(event.tenant)
        if context:
            self.need(event.prompt_tokens < context, f"{event}: context of the session")


class Refusals(Check):
    """Nobody is turned away without the reason that is given."""

    name = "refusals"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.crowded = False
        """Some session was let in when there were as many as may be: another had to go."""

    def event(self, event: ev.Event) -> None:
        if isinstance(event, ev.TurnArrived) and self.book.full:
            self.crowded = self.crowded or self.book.is_new(event.session)

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Refuse):
            return
        turn = self.book.turns[action.turn]
        if turn.accepted:
            self._waited(action, turn)
        else:
            self.need(self._holds(action.reason, turn.arrived), f"{action}: not so, {turn.arrived}")

    def _waited(self, action: act.Refuse, turn: Turn) -> None:
        least = patience_ns(self.book, turn.arrived)
        waited = self.book.now - turn.at_ns
        code = "lane_full" if served(self.book, turn.arrived.model) else "no_engine"
        self.need(action.reason == code, f"{action}: it was accepted")
        calm = self.book.now - self.book.policy_ns > waited
        self.need(waited >= least or not calm, f"{action}: after {waited}")

    def _holds(self, reason: str, event: ev.TurnArrived) -> bool:
        book = self.book
        cards = [card for card in book.cards.values() if card.up.model == event.model]
        if reason == "draining":
            return book.shutdown
        if reason == "journal_error":
            return book.stalled
        if reason == "no_engine":
            serving = [card for card in cards if card.alive and not card.draining]
            paused = serving and all(card.open_until_ns > book.now for card in serving)
            return bool(paused) or not any(card.alive for card in cards)
        if reason == "context_length_exceeded":
            longest = max((card.up.context_tokens for card in cards if card.alive), default=0)
            most = book.context_of(event.tenant) or longest
            return event.prompt_tokens + 1 > min(longest, most)
        if reason == "capacity":
            known = book.sessions[event.session].accepted
            return not known and book.full and not self._gives(event)
        if reason == "session_not_found":
            return self._ends(event.session)
        if reason == "lane_full":
            return self._queue(event) >= self._queue_max(event)
        judged = ("quota_exceeded", "budget_exceeded", "session_budget_exceeded")
        return reason in judged  # by `checks_rates` and `checks_budgets`

    def _gives(self, event: ev.TurnArrived) -> bool:
        """A tenant with the most sessions, more than the caller's, has one that is idle.

        A silent one that is being stored may be on its way out, or is idle: it is so either way.
        """
        stored, idle = self.book.storing(), set()
        surely: Counter[str] = Counter()
        maybe: Counter[str] = Counter()
        for name, session in self.book.sessions.items():
            if session.alive and session.accepted and not session.closed:
                leaves = name in stored and not session.open_turns
                maybe[session.tenant] += 1
                surely[session.tenant] += not leaves
                if not leaves and not session.open_turns:
                    idle.add(session.tenant)
        most = max(surely.values(), default=0)
        gives = any(surely[tenant] == most for tenant in idle)
        return most > maybe[event.tenant] and gives

    def _ends(self, name: str) -> bool:
        """The session was closed; or it was silent for too long, and only a store keeps it.

        Or it makes room for another one, as soon as its store has ended.
        """
        session = self.book.sessions[name]
        stores = name in self.book.storing()
        over = self.crowded or self.book.now >= session.expires_ns
        silent = not session.open_turns and over
        return session.accepted and (session.closed or (silent and stores))

    def _queue(self, event: ev.TurnArrived) -> int:
        return sum(
            1
            for turn in self.book.open.values()
            if turn.waiting
            and (turn.arrived.tenant, turn.arrived.lane) == (event.tenant, event.lane)
        )

    def _queue_max(self, event: ev.TurnArrived) -> int:
        assert self.book.policy is not None
        behind = sum(
            1
            for turn in self.book.open.values()
            if (turn.arrived.session, turn.arrived.branch) == (event.session, event.branch)
        )
        full = behind >= BRANCH_QUEUE_MAX
        return 0 if full else self.book.policy.lanes[event.lane].queue_max


class Deadlines(Check):
    """No turn outlives its waits and runs; hung engines do not hold a client (F22)."""

    name = "deadlines"

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Settled | act.Refuse | act.FailTurn) or not action.turn:
            return
        turn, policy = self.book.turns[action.turn], self.book.policy
        assert policy is not None
        wait = max(lane.wait_max_ns for lane in policy.lanes)
        run = policy.run_base_ns + policy.run_token_ns * turn.need + 30 * SECOND_NS
        most = 900 * SECOND_NS + wait * (turn.attempts + 1) + run * max(1, turn.attempts)
        took = self.book.now - turn.at_ns
        self.need(took <= most, f"{action}: took {took}, at most {most}")


class Metering(Check):
    """Each row says what the engines did: same tokens, same card, times within the turn's life."""

    name = "metering"

    def action(self, action: act.Action) -> None:
        if not isinstance(action, act.Settled):
            return
        self.need(action.kv_card_token_ns >= 0, f"{action}: negative area")
        self.need(action.kv_pool_token_ns >= 0, f"{action}: negative area")
        if not action.turn:
            self.need(action.out_tokens == 0, f"{action}: tokens without a turn")
            self.need(action.prompt_tokens == 0, f"{action}: tokens without a turn")
            return
        turn = self.book.turns[action.turn]
        first = turn.arrived
        self.need(
            (action.tenant, action.lane, action.model, action.session, action.branch)
            == (first.tenant, first.lane, first.model, first.session, first.branch),
            f"{action}: turn was {first}",
        )
        self.need(action.attempts == turn.attempts, f"{action}: {turn.attempts} attempts")
        self.need(action.out_tokens == turn.delivered, f"{action}: {turn.delivered} came out")
        self.need(
            action.cached_tokens <= max(0, action.prompt_tokens), f"{action}: cached > prompt"
        )
        if turn.attempts:
            self.need(action.card == turn.card, f"{action}: ran on {turn.card}")
        end = turn.ended
        if end is not None and not turn.told:
            same = action.status == end.status or turn.stopping
            self.need(same, f"{action}: engine said {end.status}")
            self.need(action.exact == end.exact, f"{action}: engine said exact={end.exact}")
            if turn.attempts == 1:
                measured = (end.prompt_tokens, end.cached_tokens)
                self.need(
                    (action.prompt_tokens, action.cached_tokens) == measured,
                    f"{action}: engine measured {measured}",
                )
        if turn.told_then is not None and end is None:
            then = (turn.told_then.prompt_tokens, turn.told_then.cached_tokens)
            row = (action.prompt_tokens, action.cached_tokens)
            self.need(row == then, f"{action}: it had yielded with {then}")
        if not turn.attempts:
            used = (action.prompt_tokens, action.out_tokens, action.slot_ns)
            self.need(used == (0, 0, 0), f"{action}: never ran")
        if turn.alone:
            self.need(action.tool_ns == turn.gap_ns, f"{action}: tool gap was {turn.gap_ns}")
        life = self.book.now - turn.at_ns
        self.need(min(action.queue_ns, action.slot_ns, action.tool_ns) >= 0, f"{action}: negative")
        self.need(action.queue_ns + action.slot_ns <= life, f"{action}: lived {life}")
        if turn.attempts == 1 and turn.ended is not None:
            waited = turn.first_dispatch_ns - turn.at_ns
            self.need(action.queue_ns == waited, f"{action}: waited {waited}")
            self.need(action.slot_ns == life - waited, f"{action}: ran {life - waited}")


class Sessions(Check):
    """Sessions end once, are silent after, and all end when nobody calls any more (F22)."""

    name = "sessions"

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.pressed = 0
        """Sessions that were let in when there were as many as may be: each evicts one at most."""
        self.presses = 0

    def event(self, event: ev.Event) -> None:
        self.presses = 0
        if isinstance(event, ev.TurnArrived):
            self.presses = int(self.book.is_new(event.session) and self.book.full)
            self.pressed += self.presses

    def action(self, action: act.Action) -> None:
        if isinstance(action, act.SessionEnded):
            session = self.book.sessions.get(action.session)
            self.need(session is not None and session.alive, f"{action}: not alive")
            left = [t for t in self.book.live_turns() if t.arrived.session == action.session]
            self.need(not left, f"{action}: {len(left)} turns are not over")
            if action.reason == "evicted":
                self.pressed -= 1
                self.need(self.pressed >= 0, f"{action}: nobody needed its place")
        elif isinstance(action, act.Settled) and not action.turn and action.session:
            self.need(action.session in self.book.sessions, f"{action}: unknown session")
        elif isinstance(action, act.Settled) and not action.turn:
            area = action.kv_pool_token_ns
            most = [
                length(entry.tokens) * (self.book.now - entry.since_ns)
                for entry in self.book.entries.values()
                if entry.prefix and (entry.tenant, entry.model) == (action.tenant, action.model)
            ]
            self.need(0 < area <= max(most, default=0), f"{action}: openings took {most}")

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        book = self.book
        if isinstance(event, ev.TurnArrived) and self.book.turns[event.turn].told:
            self.pressed -= self.presses
        busy: set[str] | None = None
        for name, session in book.sessions.items():
            if not session.alive or not session.accepted or session.open_turns:
                continue
            if not session.closed and (book.now < session.expires_ns):
                continue
            busy = book.storing() if busy is None else busy
            self.need(name in busy, f"{name} should have ended: {session}")

    def finish(self) -> None:
        if self.book.shutdown:
            return
        for name, session in self.book.sessions.items():
            self.need(not session.alive or not session.accepted, f"session {name} never ended")


CHECKS = (OneEnd, Attempts, Limits, Refusals, Deadlines, Metering, Sessions)
