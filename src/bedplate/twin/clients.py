"""Agents: they ask the turns of a workload, each after the end of the one before, and try again.

A refusal, a failed answer and a gateway that is away are met as a well-behaved client meets them:
the same turn is asked again after the time that the service named, or a pause that doubles, a
bounded number of times (`RetryRule`); what a retry cannot cure is not tried again. A turn that
fails for good ends its session, and what would have followed from it (later turns, sub-agents) is
never asked.
"""

from __future__ import annotations

from collections.abc import Callable

from bedplate.core import actions as act
from bedplate.core.events import Event, SessionClosed, TurnArrived
from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.twin.call import Call
from bedplate.twin.heap import CLIENT, Heap
from bedplate.twin.outcome import SessionRow, TurnRow
from bedplate.twin.retry import RETRIES, RetryRule
from bedplate.twin.workload.form import Session, Workload, prompt_tokens

HOPELESS = frozenset(
    ("context_length_exceeded", "invalid_request_error", "session_not_found", "engine_timeout")
)
"""Codes after which the same call would fail again."""
GOOD_ENDS = frozenset(("stop", "length", "tool_calls"))


class Agent:
    """One session of the workload on its way.

    `context_tokens` are the last prompt and answer, of which the leading `computed_tokens` are
    known to have been computed on its branch. `children` are sessions that its turns spawn,
    `joining` how many of them the next turn still waits for.
    """

    __slots__ = (
        "call",
        "children",
        "computed_tokens",
        "context_tokens",
        "ended_ns",
        "failed",
        "id",
        "index",
        "joining",
        "open",
        "over",
        "resumable",
        "session",
        "started_ns",
        "tenant",
        "turns_done",
    )

    def __init__(self, index: int, session: Session) -> None:
        self.index = index
        self.session = session
        self.id = SessionId(session.key)
        self.tenant = TenantId(session.tenant)
        self.resumable = not any(turn.tool for turn in session.turns)
        self.children: list[Agent] = []
        self.joining = 0
        self.turns_done = 0
        self.context_tokens = 0
        self.computed_tokens = 0
        self.started_ns = -1
        self.ended_ns = -1
        self.call: Call | None = None
        self.open = False
        self.failed = False
        self.over = False


class Clients:
    """All agents of a run. `tell` gives an event to the core.

    `calls` has every turn that is asked and not settled, by its id. `left` counts the sessions that
    may still do something. `retries_ns` has when a turn was heard to need another try, `failures`
    how often a call failed for which reason. While `away` nobody answers at the door.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        heap: Heap,
        tell: Callable[[Event], None],
        model: ModelId,
        close_sessions: bool,
        retry: RetryRule = RETRIES,
    ) -> None:
        self._heap = heap
        self._tell = tell
        self._model = model
        self._close_sessions = close_sessions
        self._tries = retry.tries
        self._pause_ns = retry.pause_ns
        self._pause_max_ns = retry.pause_max_ns
        self._began_ns = heap.now_ns
        self.agents = [Agent(i, session) for i, session in enumerate(workload.sessions)]
        self._by_id = {agent.id: agent for agent in self.agents}
        self._roots: list[Agent] = []
        for agent in self.agents:
            spawn = agent.session.spawn
            if spawn is None:
                self._roots.append(agent)
            else:
                self.agents[spawn.session].children.append(agent)
        self._roots.sort(key=lambda agent: agent.session.start_ns)
        self._next_root = 0
        self.calls: dict[TurnId, Call] = {}
        self.rows: list[TurnRow] = []
        self.left = len(self.agents)
        self.retries_ns: list[int] = []
        self.failures: dict[str, int] = {}
        self.away = False
        self._slow_tools: dict[str, float] = {}

    def start(self) -> None:
        """Let the first session begin in its time; each then brings on the next."""
        if self._roots:
            self._await_root()

    def _await_root(self) -> None:
        at_ns = self._began_ns + self._roots[self._next_root].session.start_ns
        self._heap.at(at_ns, CLIENT, self._root, None)

    def _root(self, _: None) -> None:
        agent = self._roots[self._next_root]
        self._next_root += 1
        if self._next_root < len(self._roots):
            self._await_root()
        self._ask_next(agent)

    def set_tool_pace(self, tool: str, factor: float) -> None:
        """Let gaps of a tool ("" for all that have no factor of their own) last so much longer."""
        self._slow_tools.pop(tool, None)
        if factor != 1.0:
            self._slow_tools[tool] = factor

    # Asking.

    def _ask_next(self, agent: Agent) -> None:
        """Ask the session's next turn."""
        number = agent.turns_done
        turns = agent.session.turns
        turn = turns[number]
        call = Call(agent.index, number, agent.id, 0)
        prompt, keep = prompt_tokens(turn, agent.context_tokens)
        call.prompt_tokens = prompt = max(1, prompt)
        call.reuse_tokens = min(keep, agent.computed_tokens, prompt - 1)
        call.repeated_tokens = min(keep, prompt - 1)
        call.out_tokens = max(1, turn.out_tokens)
        call.limit_tokens = turn.limit_tokens
        if number + 1 < len(turns) and turns[number + 1].tool:
            call.tool = turns[number + 1].tool
            call.status = "tool_calls"
        call.resumable = agent.resumable
        call.arrival_ns = self._heap.now_ns
        if number == 0:
            agent.started_ns = call.arrival_ns
        agent.call = call
        self._ask(call)

    def _ask(self, call: Call) -> None:
        call.asked_ns = self._heap.now_ns
        if self.away:
            self._failed(call, "lost")
            return
        agent = self.agents[call.owner]
        self.calls[call.turn] = call
        agent.open = True
        session = agent.session
        begins = call.reuse_tokens == 0 and session.prefix_tokens < call.prompt_tokens
        self._tell(
            TurnArrived(
                call.turn,
                agent.id,
                BranchId(0),
                -1,
                agent.tenant,
                agent.session.lane,
                self._model,
                call.prompt_tokens,
                call.reuse_tokens,
                call.limit_tokens,
                agent.resumable,
                True,
                session.prefix if begins else "",
                session.prefix_tokens if begins else 0,
            )
        )

    def _ask_again(self, call: Call) -> None:
        known_tokens = self.agents[call.owner].computed_tokens
        call.reuse_tokens = min(call.reuse_tokens, known_tokens)
        self._ask(call)

    # Hearing.

    def refused(self, action: act.Refuse) -> None:
        """The service does not take the turn, or gave it up in its queue."""
        call = self.calls.pop(action.turn, None)
        if call is not None:
            self._failed(call, "refused", reason=action.reason, after_ns=action.retry_after_ns)

    def failed(self, action: act.FailTurn) -> None:
        """An accepted turn ends with an error."""
        call = self.calls.pop(action.turn, None)
        if call is not None:
            self._failed(call, "error", reason=action.reason)

    def settled(self, action: act.Settled) -> None:
        """A turn is over; one that was refused or failed has been heard of before."""
        call = self.calls.pop(action.turn, None)
        if call is None:
            return
        if action.status not in GOOD_ENDS:
            self._failed(call, action.status)
            return
        self._row(call, action.card, action.queue_ns, action.status)
        agent = self.agents[call.owner]
        agent.call = None
        agent.context_tokens = call.prompt_tokens + action.out_tokens
        agent.computed_tokens = call.kv_tokens
        number = agent.turns_done
        agent.turns_done += 1
        if agent.children:
            self._spawn(agent, number)
        if agent.turns_done == len(agent.session.turns):
            agent.ended_ns = self._heap.now_ns
            self._end(agent)
        elif agent.joining == 0:
            self._pause(agent)

    def session_ended(self, session: SessionId) -> None:
        """The core forgot a session: what it computed is not known any more."""
        agent = self._by_id[session]
        agent.open = False
        agent.computed_tokens = 0

    def hang_up(self) -> None:
        """The gateway is gone, and with it every call under way: each is asked again later."""
        self.away = True
        lost = list(self.calls.values())
        self.calls.clear()
        for call in lost:
            self._failed(call, "lost")

    # Going on.

    def _pause(self, agent: Agent) -> None:
        """Let the tool run that comes before the next turn."""
        turn = agent.session.turns[agent.turns_done]
        gap_ns = turn.gap_ns
        if self._slow_tools:
            factor = self._slow_tools.get(turn.tool, self._slow_tools.get("", 1.0))
            gap_ns = int(gap_ns * factor)
        self._heap.at(self._heap.now_ns + gap_ns, CLIENT, self._ask_next, agent)

    def _spawn(self, agent: Agent, number: int) -> None:
        for child in agent.children:
            spawn = child.session.spawn
            assert spawn is not None
            if spawn.turn == number:
                agent.joining += spawn.joins
                at_ns = self._heap.now_ns + child.session.start_ns
                self._heap.at(at_ns, CLIENT, self._ask_next, child)

    def _failed(self, call: Call, status: str, *, reason: str = "", after_ns: int = 0) -> None:
        """Ask again after a while, or give the session up."""
        agent = self.agents[call.owner]
        why = reason or status
        self.failures[why] = self.failures.get(why, 0) + 1
        if reason not in HOPELESS and call.tries + 1 < self._tries:
            # No pause doubles more often than that; the shift stays small for any number of tries.
            pause_ns = max(after_ns, min(self._pause_max_ns, self._pause_ns << min(call.tries, 32)))
            agent.call = call.again()
            self.retries_ns.append(self._heap.now_ns - self._began_ns)
            self._heap.at(self._heap.now_ns + pause_ns, CLIENT, self._ask_again, agent.call)
            return
        agent.failed = True
        self._row(call, "", 0, status)
        self._end(agent)

    def _end(self, agent: Agent) -> None:
        """Nothing more comes of a session: its own later turns, and what these would spawn."""
        agent.over = True
        agent.call = None
        self.left -= 1
        if agent.open and self._close_sessions and not self.away:
            self._tell(SessionClosed(agent.id, "client"))
        self._forget_children(agent)
        spawn = agent.session.spawn
        if spawn is not None and spawn.joins:
            parent = self.agents[spawn.session]
            parent.joining -= 1
            if parent.joining == 0 and not parent.over and parent.turns_done > spawn.turn:
                self._pause(parent)

    def _forget_children(self, agent: Agent) -> None:
        ended = [agent]
        while ended:
            parent = ended.pop()
            for child in parent.children:
                spawn = child.session.spawn
                assert spawn is not None
                if spawn.turn >= parent.turns_done and not child.over:
                    child.over = True
                    self.left -= 1
                    ended.append(child)

    # Looking back.

    def _row(self, call: Call, card: str, queue_ns: int, status: str) -> None:
        began_ns = self._began_ns
        ran = call.first_ns >= 0
        self.rows.append(
            TurnRow(
                call.owner,
                call.number,
                card,
                call.arrival_ns - began_ns,
                call.first_ns - began_ns if ran else -1,
                self._heap.now_ns - began_ns,
                queue_ns,
                call.prompt_tokens,
                call.cached_tokens,
                call.delivered_tokens,
                status,
                max(0, call.asked_ns - call.arrival_ns),
                max(0, call.repeated_tokens - call.cached_tokens) if ran else 0,
            )
        )

    def turn_rows(self) -> list[TurnRow]:
        """Return a row for every turn that was asked, by session and turn."""
        for agent in self.agents:
            if agent.call is not None:
                self._row(agent.call, "", 0, "unfinished")
                agent.call = None
        self.rows.sort()
        return self.rows

    def session_rows(self) -> list[SessionRow]:
        """Return a row for every session; one that never began has no start."""
        began_ns = self._began_ns
        return [
            SessionRow(
                agent.index,
                agent.started_ns - began_ns if agent.started_ns >= 0 else -1,
                agent.ended_ns - began_ns if agent.ended_ns >= 0 else -1,
                agent.turns_done,
                agent.failed,
            )
            for agent in self.agents
        ]
