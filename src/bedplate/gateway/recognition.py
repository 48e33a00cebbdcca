"""Which session, and which branch of it, a call belongs to.

Agents send their whole history with every call, so a session shows itself: a call whose messages
begin with a history that ended in an answer of ours goes on from that answer. This module keeps
those histories as hash chains (`chain.py`, one link after each message) and places each call. It is
a pure data structure: no I/O, no clock, and ids come from the caller's source, so the same calls
give the same placements.

    messages:   system  user   answer  tool   answer  tool        one call
    links:    0       1      2       3      4       5      6
                     opening prompt  answer prompt  answer prompt

A call goes on from its longest prefix that ends at an answer link, here 5 if turn two is known. A
shared system prompt is no answer: sub-agents that have it in common are sessions of their own.

Rules, in this order:

    retry   An identical call within 60 s of a disconnect that we saw takes the place of the turn
            that was cut: same session, same branch. (If the cut came after the last token, the
            branch already stands behind the answer, so the retry is a branch beside it.)
    extend  The longest match is the last answer of a branch on which nothing runs. If several
            branches are equal word for word, the one that came to rest last.
    fork    The longest match is an earlier answer, or its branch is busy: a new branch, whose
            parent is the branch that shares the most with the call, unanswered prompts included.
    new     No match: a new session.

A call that names its session (X-Session-Id) is placed by the same rules inside that session only.
If it shares no answer with it, it opens a new branch there. Its parent is the branch that was asked
the longest prompt that the call begins with (an answer was dropped), else the latest branch with
the same tools and system prompt (a history was compacted), else none: `fork_of` is -1. The name is
an id that we gave out, or the client's own word; such words belong to the tenant, and an unknown
one creates the session. An id of ours that lives in another tenant is refused with 404. Calls
without a name are never placed in a session that a client named: its name alone says what belongs
to it.
`prompt_cache_key` plays no part: many conversations share one.

A placement holds its branch until `turn_ended`, so of two calls at one instant one extends and one
forks. After a restart the forest grows back from journal records: `restore` each, then `retain`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.units import SECOND_NS
from bedplate.engines.base import ChatRequest, JsonObject, Lineage
from bedplate.errors import InvalidRequest, UnknownSession
from bedplate.gateway.chain import answer_positions, chain_of, next_link, opening_link
from bedplate.gateway.forest import Bounds, Branch, Forest, Session
from bedplate.journal.record import Record

NOTE_KIND = "recognised"
RESTORE_KINDS = (NOTE_KIND, "TurnArrived", "SessionClosed")
"""Kinds of journal records that `Recogniser.restore` reads."""
RETRY_WINDOW_NS = 60 * SECOND_NS
SESSION_HEADER = "X-Session-Id"
SESSION_NAME_MAX = 128

NEW, EXTEND, FORK, RETRY = "new", "extend", "fork", "retry"

RetryKey = tuple[TenantId, str, bytes]
"""Tenant, session name and body hash: what makes two calls identical."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@~=+-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a call stands in its session's tree; holds the branch until `Recogniser.turn_ended`.

    `kind`: new | extend | fork | retry. `public_id` is what the client sees in X-Session-Id: its
    own name for the session, else ours. `fork_of` is the parent of a branch without an answer yet,
    or -1. `retry_of` is the cut turn whose place this call takes, else empty.
    """

    kind: str
    tenant: TenantId
    model: ModelId
    session: SessionId
    branch: BranchId
    fork_of: int
    public_id: str
    turn: TurnId
    retry_of: TurnId
    prompt_link: bytes
    retry_key: RetryKey
    hold: int

    def lineage(self, lane: int) -> Lineage:
        """Return the form that engines and runtime take."""
        return Lineage(self.tenant, self.session, self.branch, self.fork_of, lane)


class _CutTurn(NamedTuple):
    """A turn whose client went away; `head` is its branch's last answer at that time."""

    branch: Branch
    head: bytes
    turn: TurnId
    answered: bool
    until_ns: int


class Recogniser:
    """Places calls in sessions, and remembers what was answered. See the module's docstring."""

    def __init__(self, new_id: Callable[[], str], bounds: Bounds | None = None) -> None:
        """Start empty.

        Args:
            new_id: Gives a fresh, unguessable word for each session, used as `s-<word>`.
            bounds: How much to remember.
        """
        self._new_id = new_id
        self._bounds = Bounds() if bounds is None else bounds
        self._forest = Forest(self._bounds)
        self._cut: OrderedDict[RetryKey, _CutTurn] = OrderedDict()

    def __len__(self) -> int:
        """Return how many sessions are remembered."""
        return len(self._forest)

    def __contains__(self, session: object) -> bool:
        """Return whether a session of this id is remembered."""
        return isinstance(session, str) and self._forest.by_id(SessionId(session)) is not None

    def match(
        self,
        tenant: TenantId,
        model: ModelId,
        request: ChatRequest,
        session_header: str | None,
        now_ns: int,
        *,
        turn: TurnId,
        body_hash: bytes = b"",
    ) -> Placement:
        """Place a call and hold its branch; every placement needs exactly one `turn_ended`.

        Args:
            tenant: From the credential, never from the call.
            model: Served model name.
            request: The checked call.
            session_header: Value of X-Session-Id, None when the client names no session.
            now_ns: Time of the call.
            turn: The id under which the call will run.
            body_hash: Hash of the body as received; when empty, no later call is a retry of this.

        Raises:
            InvalidRequest: the session name is malformed.
            UnknownSession: the name is the id of another tenant's session.
            QuotaExceeded: every branch that the session may have is busy.

        Cost: a message_hash and a 48-byte hash for each message, then some dictionary look-ups.
        """
        name = "" if session_header is None else checked_name(session_header)
        key = (tenant, name, body_hash)
        links = chain_of(tenant, model, request)
        cut = self._take_cut(key, now_ns)
        if cut is not None:
            kind, branch = RETRY, cut.branch
            if cut.answered:
                branch = self._forest.branch(branch.session, branch, branch.opening)
        elif name:
            kind, branch = self._place_in(tenant, name, request, links)
        else:
            kind, branch = self._recognise(tenant, request, links)
        session = branch.session
        assert session.tenant == tenant, "INV-07: a call only meets sessions of its own tenant"
        self._forest.hold(branch)
        return Placement(
            kind=kind,
            tenant=tenant,
            model=model,
            session=session.id,
            branch=BranchId(branch.number),
            fork_of=-1 if branch.head else branch.parent,
            public_id=session.name or session.id,
            turn=turn,
            retry_of=TurnId("") if cut is None else cut.turn,
            prompt_link=links[-1],
            retry_key=key,
            hold=branch.hold,
        )

    def turn_ended(
        self,
        placement: Placement,
        message: JsonObject | None,
        now_ns: int,
        *,
        disconnected: bool = False,
    ) -> JsonObject | None:
        """Let go of the branch and learn the answer, whatever became of the turn.

        Args:
            placement: From `match`.
            message: The whole assistant message (`Finished.message`) if the turn ran to its end,
                else None: refused, failed, cancelled.
            now_ns: Time of the end.
            disconnected: The client went away before it had all; opens the retry window.

        Returns:
            The body of the `recognised` note to journal for tenant and session of the placement,
            or None when there is nothing to remember.
        """
        session = self._forest.by_id(placement.session)
        branch = None if session is None else session.branches.get(placement.branch)
        if branch is None:
            return None  # the session was closed meanwhile
        assert branch.hold == placement.hold, f"turn {placement.turn} ended twice"
        body = None
        if message is not None:
            answer = next_link(placement.prompt_link, message)
            self._forest.learn(branch, placement.prompt_link, answer)
            body = _note_body(placement, branch)
        self._forest.rest(branch)
        if disconnected and placement.retry_key[2]:
            self._remember_cut(placement, branch, answered=message is not None, now_ns=now_ns)
        elif not branch.head:
            self._forest.drop_branch(branch)
        return body

    def find(self, tenant: TenantId, public_id: str) -> SessionId:
        """Return the session that a client of `tenant` calls `public_id`.

        Raises:
            UnknownSession: this tenant has none of that name, whatever others have.
        """
        session = self._forest.by_id(SessionId(public_id))
        if session is None or session.tenant != tenant:
            session = self._forest.by_name(tenant, public_id)
        if session is None:
            raise UnknownSession(
                f"No session {public_id[:SESSION_NAME_MAX]!r}: it ended or never existed. "
                "GET /v1/sessions lists the tenant's live sessions."
            )
        return session.id

    def public_id(self, session: SessionId) -> str:
        """Return what clients call the session: their own name for it, else ours."""
        found = self._forest.by_id(session)
        return session if found is None else found.name or session

    def forget(self, session: SessionId) -> None:
        """Drop all that is remembered of an ended session; unknown ids change nothing."""
        self._forest.forget(session)

    def restore(self, record: Record) -> None:
        """Fold one journal record: `recognised` notes, TurnArrived, SessionClosed; others pass.

        TurnArrived counts branches that were opened and never answered, so that no number is given
        out twice. Call `retain` after the last record.
        """
        body = record.body
        if record.kind == "SessionClosed":
            self.forget(SessionId(body["session"]))
        elif record.kind == "TurnArrived":
            session = self._restored(SessionId(body["session"]), TenantId(body["tenant"]))
            session.next_branch = max(session.next_branch, body["branch"] + 1)
        elif record.kind == NOTE_KIND:
            self._restore_turn(record)

    def retain(self, live: Collection[SessionId]) -> None:
        """Forget every session that is not in `live` or has no answer: the end of a restart."""
        for session_id in self._forest.ids():
            session = self._forest.by_id(session_id)
            if session is not None and (session_id not in live or not session.branches):
                self._forest.forget(session_id)

    def _restored(self, session_id: SessionId, tenant: TenantId) -> Session:
        session = self._forest.by_id(session_id)
        if session is None:
            session = self._forest.plant(Session(session_id, tenant, ""))
        assert session.tenant == tenant, "INV-07: a session has one tenant"
        return session

    def _restore_turn(self, record: Record) -> None:
        body = record.body
        session = self._restored(SessionId(record.session), TenantId(record.tenant))
        if body["name"] and not session.name:
            self._forest.rename(session, body["name"])
        branch = session.branches.get(body["branch"])
        if branch is None:
            opening = bytes.fromhex(body["opening"])
            branch = Branch(session, body["branch"], body["parent"], opening)
            session.next_branch = max(session.next_branch, branch.number + 1)
        self._forest.hold(branch)
        self._forest.learn(branch, bytes.fromhex(body["prompt"]), bytes.fromhex(body["answer"]))
        self._forest.rest(branch)

    def _recognise(
        self, tenant: TenantId, request: ChatRequest, links: list[bytes]
    ) -> tuple[str, Branch]:
        for at in answer_positions(request.messages):
            resting = self._forest.heads.last(links[at])
            if resting is not None:
                return EXTEND, resting
            owner = self._forest.answered.last(links[at])
            if owner is not None:
                return FORK, self._fork(owner, request, links, at)
        return NEW, self._open(tenant, "", opening_link(request, links))

    def _place_in(
        self, tenant: TenantId, name: str, request: ChatRequest, links: list[bytes]
    ) -> tuple[str, Branch]:
        opening = opening_link(request, links)
        session = self._forest.by_id(SessionId(name))
        if session is not None and session.tenant != tenant:
            raise UnknownSession(f"No session {name!r}. Leave out {SESSION_HEADER} to open one.")
        session = session or self._forest.by_name(tenant, name)
        if session is None:
            return NEW, self._open(tenant, name, opening)
        for at in answer_positions(request.messages):
            owner = session.answered_by(links[at])
            if owner is None:
                continue
            for branch in reversed(session.branches.values()):
                if branch.head == links[at] and not branch.hold:
                    return EXTEND, branch
            return FORK, self._fork(owner, request, links, at)
        parent = self._prompted(session, links)
        for branch in reversed(session.branches.values()):
            if parent is None and opening and branch.opening == opening:
                parent = branch
        return FORK, self._forest.branch(session, parent, opening)

    def _fork(self, owner: Branch, request: ChatRequest, links: list[bytes], at: int) -> Branch:
        parent = self._prompted(owner.session, links[at + 1 :]) or owner
        return self._forest.branch(owner.session, parent, opening_link(request, links))

    @staticmethod
    def _prompted(session: Session, links: list[bytes]) -> Branch | None:
        """Return the branch that was asked the longest of these prompts, whatever it answered."""
        for link in reversed(links):
            branch = session.prompted_by(link)
            if branch is not None:
                return branch
        return None

    def _open(self, tenant: TenantId, name: str, opening: bytes) -> Branch:
        session_id = SessionId(f"s-{self._new_id()}")
        while self._forest.by_id(session_id) is not None:
            session_id = SessionId(f"s-{self._new_id()}")
        session = self._forest.plant(Session(session_id, tenant, name))
        return self._forest.branch(session, None, opening)

    def _take_cut(self, key: RetryKey, now_ns: int) -> _CutTurn | None:
        cut = self._cut.pop(key, None)
        if cut is None or now_ns > cut.until_ns:
            return None
        session = self._forest.by_id(cut.branch.session.id)
        if session is None or session.branches.get(cut.branch.number) is not cut.branch:
            return None
        untouched = not cut.branch.hold and cut.branch.head == cut.head
        return cut if untouched or cut.answered else None

    def _remember_cut(
        self, placement: Placement, branch: Branch, *, answered: bool, now_ns: int
    ) -> None:
        cut = _CutTurn(branch, branch.head, placement.turn, answered, now_ns + RETRY_WINDOW_NS)
        self._cut[placement.retry_key] = cut
        self._cut.move_to_end(placement.retry_key)
        oldest = next(iter(self._cut.values()))
        if len(self._cut) > self._bounds.cut_turns_max or oldest.until_ns < now_ns:
            self._cut.popitem(last=False)


def checked_name(name: str) -> str:
    """Return the session name as it is.

    Raises:
        InvalidRequest: it is empty, too long, or would not stand in a URL path or a log as it is.
    """
    if len(name) > SESSION_NAME_MAX or _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{SESSION_HEADER} must be 1 to {SESSION_NAME_MAX} letters, digits or . _ : @ ~ = + -, "
            "and begin with a letter or digit.",
            param=SESSION_HEADER,
        )
    return name


def _note_body(placement: Placement, branch: Branch) -> JsonObject:
    """Return what `Recogniser.restore` needs of one answered turn."""
    return {
        "turn": placement.turn,
        "kind": placement.kind,
        "name": branch.session.name,
        "branch": branch.number,
        "parent": branch.parent,
        "opening": branch.opening.hex(),
        "prompt": placement.prompt_link.hex(),
        "answer": branch.head.hex(),
    }
