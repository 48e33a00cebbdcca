"""The sessions that recognition knows: trees of branches, and the links of what was answered.

Small on purpose: an idle session is an object, its branches, and 36 bytes for each answered turn;
in sessions without a client's name each answer has an index entry too. Nothing here decides where a
call belongs; that is `recognition.py`.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import NamedTuple

from bedplate.core.ids import SessionId, TenantId
from bedplate.core.limits import BRANCHES_MAX
from bedplate.errors import QuotaExceeded
from bedplate.gateway.chain import LINK_BYTES

EVICT_SCAN_MAX = 64
"""Sessions looked at for one eviction; those with a running turn stay, and core bounds them."""


class Bounds(NamedTuple):
    """How much is remembered. What was used longest ago goes first."""

    sessions_max: int = 100_000
    branches_max: int = BRANCHES_MAX
    session_turns_max: int = 4_096
    turns_max: int = 2_000_000
    cut_turns_max: int = 10_000


class Branch:
    """One line of a session.

    `head` is the link of its last answer, empty while it has none. `hold` is not 0 while a turn
    runs. `parent` is the branch that it was forked from, or -1. `opening` see `chain.opening_link`.
    """

    __slots__ = ("head", "hold", "number", "opening", "parent", "session")

    def __init__(self, session: Session, number: int, parent: int, opening: bytes) -> None:
        self.session = session
        self.number = number
        self.parent = parent
        self.opening = opening
        self.head = b""
        self.hold = 0


class Session:
    """One tree. Its k-th answered turn is (prompts[k], answers[k], owners[k]), 16 bytes a link.

    `branches` has the least recently used first. `name` is the client's, or empty.
    """

    __slots__ = (
        "answers",
        "branches",
        "id",
        "name",
        "next_branch",
        "owners",
        "prompts",
        "tenant",
    )

    def __init__(self, session: SessionId, tenant: TenantId, name: str) -> None:
        self.id = session
        self.tenant = tenant
        self.name = name
        self.branches: dict[int, Branch] = {}
        self.next_branch = 0
        self.prompts = bytearray()
        self.answers = bytearray()
        self.owners = array("I")

    @property
    def busy(self) -> bool:
        """Tell whether a turn runs on some branch."""
        return any(branch.hold for branch in self.branches.values())

    def answer(self, at: int) -> bytes:
        """Return the answer link of the at-th turn."""
        return bytes(self.answers[at * LINK_BYTES : (at + 1) * LINK_BYTES])

    def answered_by(self, link: bytes) -> Branch | None:
        """Return the branch whose turn has this answer link, the latest one."""
        return self._owner(self.answers, link)

    def prompted_by(self, link: bytes) -> Branch | None:
        """Return the branch whose turn has this prompt link, the latest one."""
        return self._owner(self.prompts, link)

    def _owner(self, links: bytearray, link: bytes) -> Branch | None:
        at = links.rfind(link)
        while at >= 0 and at % LINK_BYTES:
            at = links.rfind(link, 0, at + LINK_BYTES - 1)
        return None if at < 0 else self.branches[self.owners[at // LINK_BYTES]]


class Index:
    """link -> the branches that carry it, in the order they came. Nearly always there is one."""

    __slots__ = ("_map",)

    def __init__(self) -> None:
        self._map: dict[bytes, Branch | dict[Branch, None]] = {}

    def __len__(self) -> int:
        """Return how many links are known."""
        return len(self._map)

    def add(self, link: bytes, branch: Branch) -> None:
        """Add the branch as the last one under the link."""
        found = self._map.setdefault(link, branch)
        if isinstance(found, dict):
            found.pop(branch, None)
            found[branch] = None
        elif found is not branch:
            self._map[link] = {found: None, branch: None}

    def remove(self, link: bytes, branch: Branch) -> None:
        """Take the branch away from the link, if it is there."""
        found = self._map.get(link)
        if isinstance(found, dict):
            found.pop(branch, None)
            if not found:
                del self._map[link]
        elif found is branch:
            del self._map[link]

    def last(self, link: bytes) -> Branch | None:
        """Return the branch that came last."""
        found = self._map.get(link)
        return next(reversed(found)) if isinstance(found, dict) else found


class Forest:
    """All sessions, and for those without a client's name an index over all of them."""

    def __init__(self, bounds: Bounds) -> None:
        self.heads = Index()  # resting branches by their last answer
        self.answered = Index()  # branches by each of their answers
        self._bounds = bounds
        self._sessions: OrderedDict[SessionId, Session] = OrderedDict()
        self._names: dict[tuple[TenantId, str], Session] = {}
        self._turns = 0
        self._holds = 0

    def __len__(self) -> int:
        """Return how many sessions are known."""
        return len(self._sessions)

    def by_id(self, session: SessionId) -> Session | None:
        """Return the session with this id of ours, whoever owns it."""
        return self._sessions.get(session)

    def by_name(self, tenant: TenantId, name: str) -> Session | None:
        """Return the session that the tenant gave this name."""
        return self._names.get((tenant, name))

    def ids(self) -> tuple[SessionId, ...]:
        """Return all ids, the least recently used first."""
        return tuple(self._sessions)

    def plant(self, session: Session) -> Session:
        """Add a new session, forgetting others where the bounds ask for it."""
        assert session.id not in self._sessions
        self._sessions[session.id] = session
        if session.name:
            self.rename(session, session.name)
        self._evict(keep=session)
        return session

    def rename(self, session: Session, name: str) -> None:
        """Give a session without answers the client's name."""
        assert not session.owners, "answers of a named session stay out of the index"
        session.name = name
        self._names[session.tenant, name] = session

    def forget(self, session_id: SessionId) -> None:
        """Drop a session; unknown ids change nothing."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._turns -= len(session.owners)
        if session.name:
            if self.by_name(session.tenant, session.name) is session:  # not a later one by now
                del self._names[session.tenant, session.name]
            return
        for branch in session.branches.values():
            self.heads.remove(branch.head, branch)
        for at, owner in enumerate(session.owners):
            self.answered.remove(session.answer(at), session.branches[owner])

    def branch(self, session: Session, parent: Branch | None, opening: bytes) -> Branch:
        """Make the session's next branch, a use of its parent; it is in the tree once it is held.

        Raises:
            QuotaExceeded: every branch that the session may have is busy.
        """
        if parent is not None:
            session.branches[parent.number] = session.branches.pop(parent.number)
        if len(session.branches) >= self._bounds.branches_max:
            idle = next((b for b in session.branches.values() if not b.hold), None)
            if idle is None:
                raise QuotaExceeded(
                    f"Session {session.name or session.id} has {len(session.branches)} calls "
                    "running, the most it may have: wait for one to end.",
                    code="session_branches_exceeded",
                    retry_after_s=1,
                )
            self.drop_branch(idle)
        number = -1 if parent is None else parent.number
        branch = Branch(session, session.next_branch, number, opening)
        session.next_branch += 1
        return branch

    def hold(self, branch: Branch) -> None:
        """Mark that a turn runs on the branch, as the last use of branch and session."""
        session = branch.session
        assert not branch.hold
        self.heads.remove(branch.head, branch)
        self._holds += 1
        branch.hold = self._holds
        session.branches.pop(branch.number, None)
        session.branches[branch.number] = branch
        self._sessions.move_to_end(session.id)

    def rest(self, branch: Branch) -> None:
        """Mark that the branch's turn ended."""
        branch.hold = 0
        if branch.head and not branch.session.name:
            self.heads.add(branch.head, branch)

    def learn(self, branch: Branch, prompt: bytes, answer: bytes) -> None:
        """Note one answered turn of a held branch."""
        session = branch.session
        assert branch.hold
        assert len(prompt) == len(answer) == LINK_BYTES
        if len(session.owners) >= self._bounds.session_turns_max:
            oldest = len(session.owners) // 4 + 1
            self._drop_turns(session, [at < oldest for at in range(len(session.owners))])
        session.prompts += prompt
        session.answers += answer
        session.owners.append(branch.number)
        self._turns += 1
        branch.head = answer
        if not session.name:
            self.answered.add(answer, branch)
        self._evict(keep=session)

    def drop_branch(self, branch: Branch) -> None:
        """Drop an idle branch with its turns; a session without a branch goes too."""
        session = branch.session
        assert not branch.hold
        self.heads.remove(branch.head, branch)
        self._drop_turns(session, [owner == branch.number for owner in session.owners])
        del session.branches[branch.number]
        if not session.branches:
            self.forget(session.id)

    def _drop_turns(self, session: Session, gone: list[bool]) -> None:
        assert len(gone) == len(session.owners)
        prompts, answers, owners = bytearray(), bytearray(), array("I")
        for at, owner in enumerate(session.owners):
            if not gone[at]:
                piece = slice(at * LINK_BYTES, (at + 1) * LINK_BYTES)
                prompts += session.prompts[piece]
                answers += session.answers[piece]
                owners.append(owner)
            elif not session.name:
                self.answered.remove(session.answer(at), session.branches[owner])
        self._turns -= len(session.owners) - len(owners)
        session.prompts, session.answers, session.owners = prompts, answers, owners

    def _evict(self, keep: Session) -> None:
        for _ in range(EVICT_SCAN_MAX):
            over = (
                len(self._sessions) > self._bounds.sessions_max
                or self._turns > self._bounds.turns_max
            )
            if not over:
                return
            oldest = next(iter(self._sessions.values()))
            if oldest is keep or oldest.busy:
                self._sessions.move_to_end(oldest.id)
            else:
                self.forget(oldest.id)
