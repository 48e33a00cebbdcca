"""Recognition against a naive model that keeps all histories as text and compares them all."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from bedplate.core.ids import ModelId, SessionId, TenantId, TurnId
from bedplate.engines.base import ChatRequest
from bedplate.errors import UnknownSession
from bedplate.gateway.recognition import Placement, Recogniser
from bedplate.journal.record import Record
from tests.property.naive_recognition import Cut, History, Message, Naive

WINDOW_NS = 60 * 10**9
TOOLS = ({"type": "function", "function": {"name": "look_up"}},)


@dataclass(frozen=True)
class Pending:
    """A call that was placed and not ended."""

    placement: Placement
    context: tuple[object, ...]
    messages: History
    key: tuple[object, ...]


def answered_pairs() -> st.SearchStrategy[Message]:
    return st.tuples(st.just("assistant"), st.sampled_from(["yes", "no"]))


QUESTIONS = st.tuples(st.sampled_from(["user", "tool"]), st.sampled_from(["a", "b"]))
TENANTS = st.sampled_from(["bank", "fund"])


class RecognitionMachine(RuleBasedStateMachine):
    """Both are fed the same calls; each placement must be the model's."""

    pending = Bundle("pending")
    histories = Bundle("histories")

    def __init__(self) -> None:
        super().__init__()
        self.ids = itertools.count()
        self.real = Recogniser(self.new_id)
        self.naive = Naive()
        self.now_ns = 10**18
        self.turns = itertools.count()
        self.notes: list[Record] = []
        self.open: list[Pending] = []

    def new_id(self) -> str:
        return f"{next(self.ids):032x}"

    def call(
        self, tenant: str, name: str | None, context: tuple[object, ...], messages: History
    ) -> Pending:
        model, tools = context
        request = ChatRequest(
            model=ModelId(str(model)),
            messages=tuple({"role": r, "content": c} for r, c in messages),
            tools=TOOLS if tools else (),
        )
        body = repr((context, messages)).encode()
        key = (tenant, name, body)
        kind, session, branch = self.naive.place(
            tenant, name, context, messages, key=key, now_ns=self.now_ns
        )
        placement = self.real.match(
            TenantId(tenant),
            ModelId(str(model)),
            request,
            name,
            self.now_ns,
            turn=TurnId(f"t{next(self.turns)}"),
            body_hash=body,
        )
        if kind == "new":
            session.ident = placement.session
        expected_parent = -1 if branch.head else branch.parent
        assert (
            placement.kind,
            placement.session,
            placement.branch,
            placement.fork_of,
        ) == (kind, session.ident, branch.number, expected_parent)
        assert session.tenant == tenant
        assert placement.public_id == (session.name or session.ident)
        branch.busy = True
        branch.used = next(self.naive.clock)
        session.branches[branch.number] = branch
        arrived = {
            "session": placement.session,
            "branch": int(placement.branch),
            "tenant": tenant,
        }
        self.note("TurnArrived", tenant, placement.session, arrived)
        call = Pending(placement, context, messages, key)
        self.open.append(call)
        return call

    def note(self, kind: str, tenant: str, session: str, body: dict[str, object]) -> None:
        self.notes.append(Record(len(self.notes), self.now_ns, kind, tenant, session, body))

    @rule(
        target=pending,
        tenant=TENANTS,
        name=st.sampled_from([None, None, "alpha", "beta"]),
        tools=st.booleans(),
        system=st.booleans(),
        messages=st.lists(QUESTIONS | answered_pairs(), min_size=1, max_size=3),
    )
    def from_scratch(
        self, tenant: str, name: str | None, tools: bool, system: bool, messages: list[Message]
    ) -> Pending:
        head: History = (("system", "be kind"),) if system else ()
        return self.call(tenant, name, ("m", tools), head + tuple(messages))

    @rule(
        target=pending,
        past=histories,
        tenant=TENANTS | st.none(),
        keep_name=st.booleans(),
        more=st.lists(QUESTIONS | answered_pairs(), max_size=3),
        cut_back=st.integers(0, 3),
    )
    def go_on(
        self,
        past: tuple[Placement, str | None, tuple[object, ...], History],
        tenant: str | None,
        keep_name: bool,
        more: list[Message],
        cut_back: int,
    ) -> Pending:
        placement, name, context, messages = past
        kept = messages[: max(0, len(messages) - cut_back)] + tuple(more)
        if not kept:
            kept = (("user", "a"),)
        caller = tenant or placement.tenant
        if not keep_name or (name == placement.session and caller != placement.tenant):
            name = None  # our own id names nothing to another tenant: `foreign_id`
        return self.call(caller, name, context, kept)

    @rule(target=pending, past=histories, more=st.lists(QUESTIONS, min_size=1, max_size=2))
    def go_on_by_our_id(
        self,
        past: tuple[Placement, str | None, tuple[object, ...], History],
        more: list[Message],
    ) -> object:
        placement, _, context, messages = past
        if all(s.ident != placement.session for s in self.naive.sessions):
            return multiple()
        return self.call(placement.tenant, placement.session, context, messages + tuple(more))

    @rule(past=histories)
    def foreign_id(self, past: tuple[Placement, str | None, tuple[object, ...], History]) -> None:
        placement, _, _, messages = past
        other = "fund" if placement.tenant == "bank" else "bank"
        if all(s.ident != placement.session for s in self.naive.sessions):
            return
        request = ChatRequest(
            model=ModelId("m"), messages=tuple({"role": r, "content": c} for r, c in messages)
        )
        with pytest.raises(UnknownSession):
            self.real.match(
                TenantId(other), ModelId("m"), request, placement.session, 0, turn=TurnId("x")
            )
        with pytest.raises(UnknownSession):
            self.real.find(TenantId(other), placement.session)

    @rule(target=pending, call=pending)
    def same_again(self, call: Pending) -> Pending:
        tenant, name, _ = call.key
        return self.call(str(tenant), name, call.context, call.messages)  # type: ignore[arg-type]

    @rule(
        target=histories,
        call=consumes(pending),
        answer=answered_pairs(),
        disconnected=st.integers(0, 5).map(lambda n: n == 0),
    )
    def answered(self, call: Pending, answer: Message, disconnected: bool) -> object:
        return self.end(call, answer, disconnected=disconnected)

    @rule(call=consumes(pending), disconnected=st.booleans())
    def not_answered(self, call: Pending, disconnected: bool) -> None:
        self.end(call, None, disconnected=disconnected)

    def end(self, call: Pending, answer: Message | None, *, disconnected: bool) -> object:
        if call not in self.open:
            return multiple()
        self.open.remove(call)
        message = None if answer is None else {"role": answer[0], "content": answer[1]}
        body = self.real.turn_ended(call.placement, message, self.now_ns, disconnected=disconnected)
        live = [s for s in self.naive.sessions if s.ident == call.placement.session]
        if not live:
            assert body is None
            return multiple()
        session = live[0]
        branch = session.branches[call.placement.branch]
        branch.busy = False
        when = next(self.naive.clock)
        branch.rested = when
        history = call.messages if answer is None else (*call.messages, answer)
        if answer is not None:
            assert body is not None
            self.note("recognised", session.tenant, session.ident, body)
            branch.head = history
            session.answered.append((call.context, (call.messages, history), branch, when))
        if disconnected:
            self.naive.cuts[call.key] = Cut(
                session, branch, branch.head, answer is not None, self.now_ns + WINDOW_NS
            )
        elif not branch.head:
            del session.branches[branch.number]
            if not session.branches:
                self.naive.sessions.remove(session)
        if answer is None:
            return multiple()
        return (call.placement, call.key[1], call.context, history)

    @rule(seconds=st.sampled_from([1, 30, 61]))
    def time_passes(self, seconds: int) -> None:
        self.now_ns += seconds * 10**9

    @rule(past=histories)
    def forget(self, past: tuple[Placement, str | None, tuple[object, ...], History]) -> None:
        ident = past[0].session
        self.real.forget(ident)
        self.naive.sessions = [s for s in self.naive.sessions if s.ident != ident]

    @precondition(lambda self: not self.open)
    @rule()
    def restart(self) -> None:
        """All is rebuilt from the records; what was never answered is gone, cuts are not known."""
        self.real = Recogniser(self.new_id)
        for record in self.notes:
            self.real.restore(record)
        self.real.retain({SessionId(s.ident) for s in self.naive.sessions})
        self.naive.cuts.clear()
        for session in list(self.naive.sessions):
            session.branches = {n: b for n, b in session.branches.items() if b.head}
            for branch in session.branches.values():
                branch.used = max(w for (_, _, b, w) in session.answered if b is branch)
                branch.rested = branch.used
            if not session.branches:
                self.naive.sessions.remove(session)

    @invariant()
    def same_sessions(self) -> None:
        assert len(self.real) == len(self.naive.sessions)


RecognitionMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestRecognition = RecognitionMachine.TestCase
