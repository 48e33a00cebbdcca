"""One turn on its way: the call as its client sees it, each run of it as its card does."""

from __future__ import annotations

from bedplate.core.actions import Dispatch
from bedplate.core.ids import CardId, SessionId, TurnId
from bedplate.twin.batch import Sequence


class Call:
    """A turn of the workload that is asked; a retry is another one, under an id of its own.

    `reuse_tokens` of the prompt equal what the branch computed before; of them `cached_tokens` were
    not computed again. `out_tokens` is how long the answer would be without a limit; it ends with
    `status`, calling `tool`. `delivered_tokens` of it have reached the client, over all dispatches,
    and `kv_tokens` are in a slot at its end. `card` is where it was dispatched last. Of the prompt
    `repeated_tokens` were computed once before, by an earlier turn or a run that was lost. Once it
    has yielded with a token out, `first_cached_tokens` are those that its first run found, −1
    before. The turn
    arrived at `arrival_ns`, and was asked as this call at `asked_ns`.
    Times are −1 before their moment.
    """

    __slots__ = (
        "arrival_ns",
        "asked_ns",
        "cached_tokens",
        "card",
        "delivered_tokens",
        "first_cached_tokens",
        "first_ns",
        "kv_tokens",
        "limit_tokens",
        "number",
        "out_tokens",
        "owner",
        "prompt_tokens",
        "repeated_tokens",
        "resumable",
        "reuse_tokens",
        "session",
        "status",
        "tool",
        "tries",
        "turn",
    )

    def __init__(self, owner: int, number: int, session: SessionId, tries: int) -> None:
        """`owner` is the session's index in the workload, `number` the turn's in the session."""
        self.owner = owner
        self.number = number
        self.session = session
        self.tries = tries
        name = f"{session}/{number}"
        self.turn = TurnId(f"{name}~{tries}" if tries else name)
        self.prompt_tokens = 0
        self.reuse_tokens = 0
        self.repeated_tokens = 0
        self.out_tokens = 0
        self.limit_tokens = 0
        self.resumable = False
        self.status = "stop"
        self.tool = ""
        self.card = CardId("")
        self.arrival_ns = -1
        self.asked_ns = -1
        self.first_ns = -1
        self.cached_tokens = 0
        self.first_cached_tokens = -1
        self.delivered_tokens = 0
        self.kv_tokens = 0

    def again(self) -> Call:
        """Return the same turn to be asked once more, from its beginning."""
        other = Call(self.owner, self.number, self.session, self.tries + 1)
        other.prompt_tokens = self.prompt_tokens
        other.reuse_tokens = self.reuse_tokens
        computed = self.first_ns >= 0
        other.repeated_tokens = self.prompt_tokens if computed else self.repeated_tokens
        other.out_tokens = self.out_tokens
        other.limit_tokens = self.limit_tokens
        other.resumable = self.resumable
        other.status = self.status
        other.tool = self.tool
        other.arrival_ns = self.arrival_ns
        return other


class Run(Sequence):
    """One dispatch of a turn.

    It ends when its turn has `target_tokens`, `cut_short` by the limit in force or as the workload
    says. `delivered_before` of them came from earlier attempts and are part of its prompt here. The
    core heard of `told_tokens` at `told_ns`. A copy of its first `prefix_tokens` tokens is wanted.
    `yields`: it is stopped to go on later.
    """

    __slots__ = (
        "attempt",
        "cached_tokens",
        "call",
        "cut_short",
        "delivered_before",
        "limit_tokens",
        "prefix_entry",
        "prefix_tokens",
        "started",
        "target_tokens",
        "told_ns",
        "told_tokens",
        "yields",
    )

    def __init__(self, number: int, order: Dispatch, call: Call, cached_tokens: int) -> None:
        before = call.delivered_tokens
        super().__init__(number, order.slot, call.prompt_tokens + before, cached_tokens)
        self.call = call
        self.attempt = order.attempt
        self.cached_tokens = cached_tokens
        self.delivered_before = before
        self.limit_tokens = order.limit_tokens
        self.prefix_entry = order.prefix_entry
        self.prefix_tokens = order.prefix_tokens
        self.cut_short = call.out_tokens > order.limit_tokens
        self.target_tokens = order.limit_tokens if self.cut_short else call.out_tokens
        self.out_tokens = max(1, self.target_tokens - before)
        self.started = False
        self.yields = False
        self.told_ns = 0
        self.told_tokens = before
