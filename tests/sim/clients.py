"""Agents: sessions whose prompts grow, fork, are cut, cancelled, retried, closed or abandoned."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.units import MILLISECOND_NS, SECOND_NS
from tests.sim.cards import CLIENT, Fire, Later
from tests.sim.options import Options
from tests.sim.sequence import Sequence, cut, extend, length, opening

RETRIES_MAX = 3


@dataclass(slots=True)
class Call:
    """One turn as its client sees it."""

    arrived: ev.TurnArrived
    prompt: Sequence
    stops_at: int
    over: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class Agent:
    """One session and what its engine's adapter remembers of each branch."""

    session: SessionId
    tenant: TenantId
    lane: int
    model: ModelId
    turns_left: int
    prefix: str = ""
    prefix_tokens: int = 0
    computed: dict[int, Sequence] = field(default_factory=dict)
    branch_last: int = 0
    busy: int = 0
    retries: int = 0
    gone: bool = False


class Crowd:
    """All agents of one run."""

    def __init__(self, options: Options, rng: random.Random, later: Later) -> None:
        self.options = options
        self.rng = rng
        self.later = later
        self.calls: dict[TurnId, Call] = {}
        self.agents: dict[SessionId, Agent] = {}
        self.tastes = random.Random(f"tastes {options.seed}")

    def start(self) -> None:
        """Schedule every session's first turn."""
        for number in range(self.options.sessions):
            agent = Agent(
                session=SessionId(f"s{number}"),
                tenant=self.rng.choice(self.options.tenants),
                lane=self.rng.randint(0, 2),
                model=self.rng.choice(self.options.models),
                turns_left=self.rng.randint(1, self.options.turns_max),
            )
            if self.options.openings:
                which = self.tastes.randrange(len(self.options.openings))
                agent.prefix_tokens = self.options.openings[which]
                agent.prefix = f"o{which}" if agent.prefix_tokens else ""
            self.agents[agent.session] = agent
            self._soon(self.rng.randint(0, self.options.arrivals_ns), self._calls(agent))

    # -- what agents do

    def _calls(self, agent: Agent) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if agent.gone:
                return
            yield self._next_turn(agent)
            while self._chance(self.options.side_by_side) and agent.busy < 4:
                yield self._next_turn(agent)
            if self._chance(self.options.faults.close):
                self._soon(self._ms(0, 20_000), self._closes(agent))

        return fire

    def _next_turn(self, agent: Agent) -> ev.TurnArrived:
        branches = list(agent.computed)
        source = self.rng.choice(branches) if branches else 0
        branch, fork_of = source, -1
        if branches and self._chance(self.options.forks):
            agent.branch_last += 1
            branch, fork_of = agent.branch_last, source
        base = agent.computed.get(source, ())
        reuse = length(base)
        if self._chance(self.options.cuts):
            reuse = self.rng.randint(0, reuse)
        most = self.options.prompt_more_max if base else self.options.prompt_first_max
        fresh = self.rng.randint(1, most)
        if reuse and self._chance(50):
            fresh = 0
        turn = TurnId(f"{agent.session}.{len(self.calls)}")
        start = cut(base, reuse)
        if not reuse and agent.prefix:
            start = opening(agent.tenant, agent.model, agent.prefix, agent.prefix_tokens)
        prompt = extend(start, f"{turn}?", fresh)
        arrived = ev.TurnArrived(
            turn=turn,
            session=agent.session,
            branch=BranchId(branch),
            fork_of=fork_of,
            tenant=agent.tenant,
            lane=agent.lane,
            model=agent.model,
            prompt_tokens=length(prompt),
            reuse_tokens=reuse,
            limit_tokens=self.rng.choice((0, self.rng.randint(1, self.options.limit_max))),
            resumable=self.rng.random() < 0.5,
            exact=True,
            prefix="" if reuse else agent.prefix,
            prefix_tokens=0 if reuse else agent.prefix_tokens,
        )
        self.calls[turn] = Call(arrived, prompt, self.rng.randint(1, self.options.limit_max))
        agent.busy += 1
        if self._chance(self.options.faults.cancel):
            self._soon(
                self.rng.choice((0, self._ms(0, 3_000), self._ms(0, 60_000))), self._cancels(turn)
            )
        return arrived

    def _cancels(self, turn: TurnId) -> Fire:
        def fire() -> Iterator[ev.Event]:
            call = self.calls[turn]
            if not call.over:
                call.cancelled = True
                reason = self.rng.choice(("client_cancelled", "deadline"))
                yield ev.TurnCancelled(turn, reason)

        return fire

    def _closes(self, agent: Agent) -> Fire:
        def fire() -> Iterator[ev.Event]:
            if not agent.gone:
                agent.gone = True
                yield ev.SessionClosed(agent.session, "client")

        return fire

    # -- what agents learn

    def learn(self, event: ev.TurnEnded) -> None:
        """Remember what a good turn computed, as the engine's adapter does."""
        call = self.calls[event.turn]
        agent = self.agents[call.arrived.session]
        context = extend(call.prompt, f"{event.turn}!", event.out_tokens)
        agent.computed[call.arrived.branch] = cut(context, event.kv_tokens)

    def hear(self, action: act.Action) -> None:
        """Go on after a turn is over; start from nothing after a session ended."""
        if isinstance(action, act.SessionEnded):
            agent = self.agents.get(action.session)
            if agent is not None:
                agent.computed, agent.branch_last = {}, 0
                if agent.gone and agent.turns_left > 0 and self._chance(100):
                    agent.gone = False
                    self._soon(self._ms(1, 5_000), self._calls(agent))
        elif isinstance(action, act.Refuse):
            self._over(action.turn, good=False, wait_ns=action.retry_after_ns)
        elif isinstance(action, act.FailTurn):
            self._over(action.turn, good=False, wait_ns=0)
        elif isinstance(action, act.Settled) and action.turn:
            self._over(action.turn, good=True, wait_ns=0)

    def _over(self, turn: TurnId, *, good: bool, wait_ns: int) -> None:
        call = self.calls.get(turn)
        if call is None or call.over:
            return
        call.over = True
        agent = self.agents[call.arrived.session]
        agent.busy -= 1
        if agent.gone:
            return
        if good:
            agent.retries = 0
            agent.turns_left -= 1
        else:
            agent.retries += 1
        if agent.busy:
            return
        if agent.turns_left <= 0 or agent.retries > RETRIES_MAX:
            self._leaves(agent)
        elif good and self._chance(self.options.faults.vanish // 4):
            agent.gone = True
        else:
            gap = self.rng.randint(0, self.options.gap_ns)
            self._soon(min(wait_ns, 600 * SECOND_NS) + gap, self._calls(agent))
            if self._chance(100):
                self._soon(0, self._progress(agent))

    def _leaves(self, agent: Agent) -> None:
        if self._chance(self.options.faults.vanish):
            agent.gone = True
        else:
            self._soon(self._ms(0, 1_000), self._closes(agent))

    def _progress(self, agent: Agent) -> Fire:
        def fire() -> Iterator[ev.Event]:
            yield ev.ToolProgress(agent.session, BranchId(0), self._ms(0, 10_000))

        return fire

    # -- chance and time

    def _soon(self, delay_ns: int, fire: Fire) -> None:
        self.later(delay_ns, CLIENT, fire)

    def _chance(self, permille: int) -> bool:
        return self.rng.random() * 1000 < permille

    def _ms(self, low: int, high: int) -> int:
        return self.rng.randint(low, high) * MILLISECOND_NS
