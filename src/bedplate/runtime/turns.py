"""A turn as its client sees it: a call goes in, a stream of outputs comes out, or one error.

The stream is the only thing between an engine's pace and a client's. Its buffer is bounded: the
executor waits for `room` before it asks the engine for more, so a slow reader holds its own turn
back and nobody else's. The gates of the journal are here too: nothing before the record of the
arrival is durable, no end before the record of the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bedplate.core.events import TurnArrived
from bedplate.core.ids import CardId, TurnId
from bedplate.engines.base import ChatRequest, Finished, Lineage, Output, Prompt
from bedplate.errors import BedplateError
from bedplate.journal import Content

BUFFER_OUTPUTS_MAX = 256
"""Outputs that wait for a slow reader before its engine is held back."""


@dataclass(slots=True)
class Call:
    """A checked and prepared model call.

    `contents` are stored with the record of the arrival, `content` note included. `answered` is
    called once if the turn ends well and its client is still there, just before its end is
    recorded: notes that it writes become durable with the end. It must not raise. `due_at` is when
    its client wants it over, on the event loop's clock, None for never.
    """

    turn: TurnId
    lineage: Lineage
    request: ChatRequest
    prompt: Prompt
    contents: Sequence[Content] = field(default=())
    answered: Callable[[Finished], None] | None = None
    due_at: float | None = None

    def arrived(self) -> TurnArrived:
        """Return the event that the core is told."""
        lineage, prompt, request = self.lineage, self.prompt, self.request
        return TurnArrived(
            turn=self.turn,
            session=lineage.session,
            branch=lineage.branch,
            fork_of=lineage.fork_of,
            tenant=lineage.tenant,
            lane=lineage.lane,
            model=request.model,
            prompt_tokens=prompt.tokens,
            reuse_tokens=prompt.reuse_tokens,
            limit_tokens=request.limit_tokens,
            resumable=prompt.resumable,
            exact=prompt.exact,
            prefix=prompt.prefix,
            prefix_tokens=prompt.prefix_tokens,
            least_tokens=prompt.least_tokens,
            most_tokens=prompt.most_tokens,
        )


class TurnStream:
    """Iterate over what one turn brings forth.

    Each item holds everything at hand, never nothing. The iteration ends after Finished, or after a
    cancel; it raises the error of a refused or failed turn. One reader only.

    Attributes:
        arrival_ns: Time of the arrival.
        queue_ns: From arrival to the first dispatch; 0 until then.
        started_ns: Time of the first Started; 0 until then.
        limit_tokens: Output limit in force; 0 until the first dispatch.
        card: Card of the latest dispatch; empty until then.
    """

    __slots__ = (
        "_buffer",
        "_cancel",
        "_committed",
        "_end_seq",
        "_ended",
        "_failure",
        "_gate_seq",
        "_over",
        "_reader",
        "_writer",
        "arrival_ns",
        "card",
        "limit_tokens",
        "queue_ns",
        "started_ns",
        "turn",
    )

    def __init__(
        self,
        turn: TurnId,
        *,
        committed: Callable[[int], Awaitable[None]],
        cancel: Callable[[TurnId, str], None],
    ) -> None:
        self.turn = turn
        self.arrival_ns = 0
        self.queue_ns = 0
        self.started_ns = 0
        self.limit_tokens = 0
        self.card = CardId("")
        self._committed = committed
        self._cancel = cancel
        self._buffer: list[Output] = []
        self._gate_seq = 0
        self._end_seq = 0
        self._ended = False
        self._failure: BedplateError | None = None
        self._over = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # The client's side.

    def __aiter__(self) -> TurnStream:
        return self

    async def __anext__(self) -> Sequence[Output]:
        """Return what is at hand. A caller that is cancelled while it waits here loses nothing."""
        while not self._over:
            if self._buffer:
                await self._committed(self._gate_seq)
                if isinstance(self._buffer[0], Finished):
                    await self._committed(self._end_seq)
                if self.cancelled:
                    break
                return self._take()
            if self._failure is not None:
                await self._committed(self._end_seq)
                if self.cancelled:
                    break
                self._over = True
                raise self._failure
            assert self._reader is None, "a stream has one reader"
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        raise StopAsyncIteration

    def cancel(self, reason: str) -> None:
        """Give the turn up: `client_cancelled`, `deadline` or `shutdown`; the first call counts.

        The iteration ends at once, whatever was buffered. A turn that has ended stays as it is.
        """
        if self._over:
            return
        ended = self.ended
        self._over = True
        self._release()
        self._wake_reader()
        if not ended:
            self._cancel(self.turn, reason)

    # The executor's side.

    @property
    def ended(self) -> bool:
        """True when the last item or the error is in, or the client gave up."""
        return self._over or self._ended

    @property
    def cancelled(self) -> bool:
        """True when nobody reads any more."""
        return self._over

    def open_gate(self, seq: int) -> None:
        """Name the record of the arrival: nothing is given out before it is durable."""
        self._gate_seq = seq

    def push(self, outputs: Sequence[Output]) -> None:
        """Add outputs, none of them Finished; dropped when the turn has ended."""
        if self.ended:
            return
        self._buffer.extend(outputs)
        self._wake_reader()

    def finish(self, finished: Finished, seq: int) -> None:
        """Add the end, given out once record `seq` is durable; nothing if the turn failed."""
        if self.ended:
            return
        self._buffer.append(finished)
        self._ended = True
        self._end_seq = seq
        self._wake_reader()

    def fail(self, error: BedplateError, seq: int) -> None:
        """End the turn with an error, raised after what is buffered and once `seq` is durable."""
        if self.ended:
            return
        self._failure = error
        self._ended = True
        self._end_seq = seq
        self._wake_reader()

    @property
    def full(self) -> bool:
        """True while the reader is so far behind that the engine has to wait."""
        return len(self._buffer) >= BUFFER_OUTPUTS_MAX

    async def room(self) -> None:
        """Return once the buffer is not full, or nobody reads any more."""
        while self.full and not self._over:
            assert self._writer is None, "a stream has one writer"
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    def _take(self) -> list[Output]:
        """Take what may go out now: the end only when nothing else is left."""
        items = self._release()
        if isinstance(items[-1], Finished):
            if len(items) == 1:
                self._over = True
            else:
                self._buffer.append(items.pop())
        return items

    def _release(self) -> list[Output]:
        items, self._buffer = self._buffer, []
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
        return items

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
