"""Recognition as slow as it gets: every history is kept as text, and all of them are compared."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

Message = tuple[str, str]
History = tuple[Message, ...]


@dataclass(eq=False)
class ModelBranch:
    """One branch as told in full: what it answered so far, and the parent it came from."""

    number: int
    parent: int
    opening: tuple[object, ...] | None
    head: History = ()
    busy: bool = False
    used: int = 0
    rested: int = 0


@dataclass(eq=False)
class ModelSession:
    """One session as told in full."""

    tenant: str
    name: str | None
    ident: str = ""
    branches: dict[int, ModelBranch] = field(default_factory=dict)
    answered: list[tuple[tuple[object, ...], tuple[History, History], ModelBranch, int]] = field(
        default_factory=list
    )
    next_branch: int = 0


@dataclass(frozen=True)
class Cut:
    session: ModelSession
    branch: ModelBranch
    head: History
    answered: bool
    until_ns: int


class Naive:
    """The rules of recognition over full texts, as slow as it gets."""

    def __init__(self) -> None:
        self.sessions: list[ModelSession] = []
        self.cuts: dict[tuple[object, ...], Cut] = {}
        self.clock = itertools.count(1)

    def place(
        self,
        tenant: str,
        name: str | None,
        context: tuple[object, ...],
        messages: History,
        *,
        key: tuple[object, ...],
        now_ns: int,
    ) -> tuple[str, ModelSession, ModelBranch]:
        cut = self.cuts.pop(key, None)
        if cut is not None and self.still_valid(cut, now_ns):
            if cut.answered:
                grown = self.grow(cut.session, cut.branch, cut.branch.opening)
                return "retry", cut.session, grown
            return "retry", cut.session, cut.branch
        opening = opening_of(context, messages)
        named = [s for s in self.sessions if s.tenant == tenant and name in (s.ident, s.name or "")]
        if name is not None:
            if not named:
                return self.new(tenant, name, opening)
            candidates = named[:1]
        else:
            candidates = [s for s in self.sessions if s.tenant == tenant and s.name is None]
        for length in range(len(messages), 0, -1):
            prefix = messages[:length]
            owners = [
                (when, s, b)
                for s in candidates
                for (c, history, b, when) in s.answered
                if c == context and history[1] == prefix
            ]
            if not owners:
                continue
            resting = [
                (b.used if name is not None else b.rested, s, b)
                for (_, s, b) in owners
                if b.head == prefix and not b.busy
            ]
            if resting:
                _, session, branch = max(resting, key=lambda item: item[0])
                return "extend", session, branch
            _, session, owner = max(owners, key=lambda item: item[0])
            source = self.prompted(session, context, messages, longer_than=length) or owner
            return "fork", session, self.grow(session, source, opening)
        if name is None:
            return self.new(tenant, None, opening)
        alike = [b for b in named[0].branches.values() if opening and b.opening == opening]
        parent = max(alike, key=lambda b: b.used) if alike else None
        parent = self.prompted(named[0], context, messages, longer_than=0) or parent
        return "fork", named[0], self.grow(named[0], parent, opening)

    @staticmethod
    def prompted(
        session: ModelSession, context: tuple[object, ...], messages: History, *, longer_than: int
    ) -> ModelBranch | None:
        """Return the branch that was asked the longest prompt the messages begin with."""
        deepest = [
            (len(history[0]), when, b)
            for (c, history, b, when) in session.answered
            if c == context
            and longer_than < len(history[0])
            and history[0] == messages[: len(history[0])]
        ]
        return max(deepest, key=lambda item: item[:2])[2] if deepest else None

    def still_valid(self, cut: Cut, now_ns: int) -> bool:
        if now_ns > cut.until_ns or cut.session not in self.sessions:
            return False
        if cut.session.branches.get(cut.branch.number) is not cut.branch:
            return False
        return cut.answered or (not cut.branch.busy and cut.branch.head == cut.head)

    def new(
        self, tenant: str, name: str | None, opening: tuple[object, ...] | None
    ) -> tuple[str, ModelSession, ModelBranch]:
        session = ModelSession(tenant, name)
        self.sessions.append(session)
        return "new", session, self.grow(session, None, opening)

    def grow(
        self,
        session: ModelSession,
        parent: ModelBranch | None,
        opening: tuple[object, ...] | None,
    ) -> ModelBranch:
        if parent is not None:
            parent.used = next(self.clock)
        branch = ModelBranch(session.next_branch, -1 if parent is None else parent.number, opening)
        session.next_branch += 1
        return branch


def opening_of(context: tuple[object, ...], messages: History) -> tuple[object, ...] | None:
    """Tools and leading system messages, None when there are neither."""
    system = tuple(itertools.takewhile(lambda m: m[0] == "system", messages))
    return (context, system) if system or context[1] else None
