"""A tiny core that keeps nothing: lane order, then arrival; recompute always; drop after each turn.

It proves that world and checkers let a correct core through, and its wrong children (`test_bites`)
prove that the checkers bite. It shares no code with the real core.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import CardId, SessionId, SlotId, TurnId
from bedplate.core.limits import DISPATCH_ATTEMPTS_MAX, Policy
from tests.sim.book import snake


@dataclass(slots=True)
class Job:
    """One turn."""

    arrived: ev.TurnArrived
    at_ns: int
    limit: int
    deadline_ns: int
    gap_ns: int
    attempts: int = 0
    out: int = 0
    queue_ns: int = 0
    card: str = ""
    place: tuple[CardId, SlotId] | None = None
    since_ns: int = 0
    slot_ns: int = 0
    computing: bool = False
    cancelled: bool = False
    over: bool = False


class Naive:
    """The tiny core."""

    def __init__(self) -> None:
        self.now = 0
        self.policy: Policy | None = None
        self.cards: dict[CardId, ev.CardUp] = {}
        self.draining: set[CardId] = set()
        self.full: dict[tuple[CardId, SlotId], tuple[str, int]] = {}
        """Slots in use: run or drop, and the tokens to count."""
        self.jobs: dict[TurnId, Job] = {}
        self.sessions: dict[str, int] = {}
        """When each ends if it stays silent."""
        self.closed: set[str] = set()
        self.ended: dict[tuple[str, int], int] = {}
        """When the last turn of each branch of a living session ended."""
        self.closing = False
        self.stalled = False
        self.timer: int | None = None
        self.out: list[act.Action] = []
        self._digest = b"\0" * 32

    @property
    def digest(self) -> bytes:
        """Chain over all steps."""
        return self._digest

    def handle(self, now_ns: int, event: ev.Event) -> tuple[act.Action, ...]:
        """Take one step."""
        self.now, self.out = now_ns, []
        if isinstance(event, ev.TimerFired):
            self.timer = None
        handler = getattr(self, f"on_{snake(type(event))}", None)
        if handler is not None:
            handler(event)
        self._expire()
        self._release()
        self._end_sessions()
        self._arm()
        actions = tuple(self.out)
        text = repr((now_ns, event, actions))
        self._digest = hashlib.sha256(self._digest + text.encode()).digest()
        return actions

    # -- events

    def on_policy_changed(self, event: ev.PolicyChanged) -> None:
        self.policy, self.closing = event.policy, False

    def on_journal_stalled(self, event: ev.JournalStalled) -> None:
        self.stalled = event.on

    def on_shutdown_requested(self, event: ev.ShutdownRequested) -> None:
        self.closing = True

    def on_card_up(self, event: ev.CardUp) -> None:
        self._lose(event.card)
        self.cards[event.card] = event

    def on_card_down(self, event: ev.CardDown) -> None:
        self._lose(event.card)
        self.cards.pop(event.card, None)

    def on_card_draining(self, event: ev.CardDraining) -> None:
        (self.draining.add if event.on else self.draining.discard)(event.card)

    def on_turn_arrived(self, event: ev.TurnArrived) -> None:
        policy = self.policy
        assert policy is not None
        limit = event.limit_tokens or policy.lanes[event.lane].output_tokens
        room = max(
            (c.context_tokens for c in self.cards.values() if c.model == event.model), default=0
        )
        reason = self._refusal(event, room)
        if reason:
            self.out.append(act.Refuse(event.turn, reason, "", 1))
            return
        limit = min(limit, room - event.prompt_tokens)
        deadline = self.now + policy.lanes[event.lane].wait_max_ns
        gap = self.now - self.ended.get((event.session, event.branch), self.now)
        self.jobs[event.turn] = Job(event, self.now, limit, deadline, gap)
        self.sessions[event.session] = self.now + policy.lanes[event.lane].idle_max_ns

    def _refusal(self, event: ev.TurnArrived, room: int) -> str:
        policy = self.policy
        assert policy is not None
        tenant = next(
            (t for t in policy.tenants if t.tenant == event.tenant), policy.default_tenant
        )
        mine = [j for j in self.jobs.values() if not j.over and j.arrived.tenant == event.tenant]
        waiting = sum(1 for j in mine if j.place is None and j.arrived.lane == event.lane)
        if self.closing:
            return "draining"
        if self.stalled:
            return "journal_error"
        if not room:
            return "no_engine"
        if event.prompt_tokens + 1 > room:
            return "context_length_exceeded"
        on_cards = tenant.card_tokens_max // policy.block_tokens * policy.block_tokens
        most = min((n for n in (tenant.session_tokens_max, on_cards) if n), default=0)
        if most and event.prompt_tokens + 1 > most:
            return "context_length_exceeded"
        if waiting >= policy.lanes[event.lane].queue_max:
            return "lane_full"
        if tenant.inflight_max and len(mine) >= tenant.inflight_max:
            return "quota_exceeded"
        return ""

    def on_turn_started(self, event: ev.TurnStarted) -> None:
        job = self._running(event.turn, event.attempt)
        if job is not None:
            job.computing = False

    def on_tokens_emitted(self, event: ev.TokensEmitted) -> None:
        job = self._running(event.turn, event.attempt)
        if job is not None:
            job.out = event.out_tokens

    def on_turn_ended(self, event: ev.TurnEnded) -> None:
        job = self._running(event.turn, event.attempt)
        if job is None:
            return
        job.out = event.out_tokens
        self._leave(job)
        if event.status in ("error", "lost"):
            self.out.append(act.FailTurn(event.turn, "engine_error", event.status))
        self._settle(job, event.status, event.prompt_tokens, event.cached_tokens)

    def on_dispatch_failed(self, event: ev.DispatchFailed) -> None:
        job = self._running(event.turn, event.attempt)
        if job is not None:
            job.out = event.out_tokens
            self._leave(job)
            self._again(job, event.code, retryable=event.retryable)

    def on_turn_cancelled(self, event: ev.TurnCancelled) -> None:
        job = self.jobs.get(event.turn)
        if job is None or job.over or job.cancelled:
            return
        job.cancelled = True
        if job.place is not None:
            self.out.append(act.CancelTurn(event.turn, job.attempts))
        else:
            self._settle(job, "cancelled", 0, 0)

    def on_session_closed(self, event: ev.SessionClosed) -> None:
        if event.session in self.sessions:
            self.closed.add(event.session)
            for name, job in self.jobs.items():
                if job.arrived.session == event.session:
                    self.on_turn_cancelled(ev.TurnCancelled(name, "client_cancelled"))

    def on_kv_dropped(self, event: ev.KvDropped) -> None:
        if self.full.get((event.card, event.slot), ("", 0))[0] == "drop":
            del self.full[(event.card, event.slot)]

    def on_kv_failed(self, event: ev.KvFailed) -> None:
        if event.op == "drop" and (event.card, event.slot) in self.full:
            self.out.append(act.DropKv(event.card, event.slot))

    # -- turns

    def _running(self, turn: TurnId, attempt: int) -> Job | None:
        job = self.jobs.get(turn)
        if job is None or job.over or job.place is None or job.attempts != attempt:
            return None
        return job

    def _leave(self, job: Job) -> None:
        assert job.place is not None
        card, slot = job.place
        job.place = None
        job.slot_ns += self.now - job.since_ns
        job.since_ns = self.now
        _, tokens = self.full.pop((card, slot))
        if self.cards[card].kv == "full":
            self.full[(card, slot)] = ("drop", tokens)
            self.out.append(act.DropKv(card, slot))

    def _again(self, job: Job, code: str, *, retryable: bool) -> None:
        blocked = job.out > 0 and not job.arrived.resumable
        if job.cancelled:
            self._settle(job, "cancelled", 0, 0)
        elif (
            not retryable
            or blocked
            or job.attempts >= DISPATCH_ATTEMPTS_MAX
            or (job.out >= job.limit)
        ):
            self.out.append(act.FailTurn(job.arrived.turn, code, ""))
            self._settle(job, "error", 0, 0)
        else:
            assert self.policy is not None
            job.deadline_ns = self.now + self.policy.lanes[job.arrived.lane].wait_max_ns

    def _lose(self, card: CardId) -> None:
        for job in self.jobs.values():
            if job.place is not None and job.place[0] == card and not job.over:
                job.place = None
                job.slot_ns += self.now - job.since_ns
                job.since_ns = self.now
                self._again(job, "engine_lost", retryable=True)
        self.full = {place: hold for place, hold in self.full.items() if place[0] != card}

    def _settle(self, job: Job, status: str, prompt: int, cached: int) -> None:
        job.over = True
        first = job.arrived
        if not job.attempts:
            job.queue_ns = self.now - job.at_ns
        self.out.append(
            act.Settled(
                first.turn, first.session, first.branch, first.tenant, first.lane, first.model,
                job.card, status, prompt, cached, job.out, job.queue_ns, job.slot_ns, job.gap_ns,
                0, 0, job.attempts, True,
            )
        )  # fmt: skip
        assert self.policy is not None
        self.sessions[first.session] = self.now + self.policy.lanes[first.lane].idle_max_ns
        self.ended[(first.session, first.branch)] = self.now

    # -- the rest of a step

    def _expire(self) -> None:
        for job in self.jobs.values():
            if job.over or self.now < job.deadline_ns:
                continue
            if job.place is None:
                if job.attempts:
                    self.out.append(act.FailTurn(job.arrived.turn, "engine_lost", "waited"))
                else:
                    self.out.append(act.Refuse(job.arrived.turn, "lane_full", "waited", 1))
                self._settle(job, "lane_full", 0, 0)
            elif not job.cancelled:
                job.cancelled = True
                self.out.append(act.CancelTurn(job.arrived.turn, job.attempts))

    def _release(self) -> None:
        order = [j for j in self.jobs.values() if not j.over and j.place is None]
        for job in sorted(order, key=lambda j: (j.arrived.lane, j.at_ns, j.arrived.turn)):
            self._place(job)

    def _place(self, job: Job) -> None:
        first, policy = job.arrived, self.policy
        assert policy is not None
        key = (first.session, first.branch)
        others = [j for j in self.jobs.values() if not j.over and j is not job]
        if any((j.arrived.session, j.arrived.branch) == key and j.place for j in others):
            return
        tenant = next(
            (t for t in policy.tenants if t.tenant == first.tenant), policy.default_tenant
        )
        busy = sum(1 for j in others if j.place and j.arrived.tenant == first.tenant)
        if tenant.running_max and busy >= tenant.running_max:
            return
        for name, card in sorted(self.cards.items()):
            slots = [SlotId(n) for n in range(card.slots) if (name, n) not in self.full]
            holds = [hold for place, hold in self.full.items() if place[0] == name]
            running = sum(1 for why, _ in holds if why == "run")
            used = sum(tokens for _, tokens in holds)
            need = first.prompt_tokens + job.limit
            if card.model != first.model or name in self.draining or not slots:
                continue
            fits = used + need <= card.kv_tokens and need <= card.context_tokens
            computing = sum(
                1 for j in self.jobs.values() if j.place and j.place[0] == name and j.computing
            )
            if card.prompt_streams and computing >= card.prompt_streams:
                continue
            if running < card.running_max and fits:
                self._run(job, name, slots[0])
                return

    def _run(self, job: Job, card: CardId, slot: SlotId) -> None:
        first, policy = job.arrived, self.policy
        assert policy is not None
        if not job.attempts:
            job.queue_ns = self.now - job.at_ns
        job.attempts += 1
        job.computing = True
        job.place, job.since_ns = (card, slot), self.now
        need = first.prompt_tokens + job.limit
        self.full[(card, slot)] = ("run", need)
        job.deadline_ns = self.now + policy.run_base_ns + policy.run_token_ns * need
        job.card = card
        self.out.append(
            act.Dispatch(
                first.turn, job.attempts, first.session, first.branch, card, slot, 0, False,
                job.limit, job.out,
            )
        )  # fmt: skip

    def _end_sessions(self) -> None:
        assert self.policy is not None
        for name, expires_ns in list(self.sessions.items()):
            busy = any(not j.over and j.arrived.session == name for j in self.jobs.values())
            old = self.now >= expires_ns
            if not busy and (old or name in self.closed):
                reason = "closed" if name in self.closed else "expired"
                self.out.append(act.SessionEnded(SessionId(name), reason))
                del self.sessions[name]
                self.ended = {at: ns for at, ns in self.ended.items() if at[0] != name}
                self.closed.discard(name)

    def _arm(self) -> None:
        assert self.policy is not None
        due = [j.deadline_ns for j in self.jobs.values() if not j.over and not j.cancelled]
        busy = {j.arrived.session for j in self.jobs.values() if not j.over}
        due += [expires_ns for name, expires_ns in self.sessions.items() if name not in busy]
        at_ns = min(due, default=None)
        if at_ns == self.timer:
            return
        self.timer = at_ns
        self.out.append(act.ClearTimer() if at_ns is None else act.SetTimer(at_ns))
