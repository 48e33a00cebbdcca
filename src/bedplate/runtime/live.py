"""What the runtime keeps of a turn while it lives, and of the run that a dispatch began."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bedplate.core.ids import CardId, EntryId, SlotId
from bedplate.engines.base import Engine, Started
from bedplate.errors import BedplateError
from bedplate.runtime.turns import Call, TurnStream


@dataclass(slots=True, eq=False)
class Run:
    """One dispatch of one turn. `stopping` names why it is being stopped, empty while it runs.

    Of the time since `began_ns` the engine waited `held_ns` for a client that read too slowly.
    """

    attempt: int
    card: CardId
    slot: SlotId
    limit_tokens: int
    delivered_before: int
    began_ns: int
    prefix_entry: EntryId = field(default=EntryId(0))
    started: Started | None = None
    stopping: str = ""
    over: bool = False
    reported_tokens: int = 0
    reported_ns: int = 0
    held_ns: int = 0
    task: asyncio.Task[None] | None = None
    deadline: asyncio.TimerHandle | None = None
    grace: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class LiveTurn:
    """A turn between its arrival and its end. `out_tokens` and `text` count all attempts.

    `first` is what the first run found of the prompt, once the turn has yielded behind it. `due`
    ends it when its client's own deadline is over.
    """

    call: Call
    stream: TurnStream
    engine: Engine
    out_tokens: int = 0
    delivered: bool = False
    text: list[str] = field(default_factory=list)
    run: Run | None = None
    first: Started | None = None
    error: BedplateError | None = None
    due: asyncio.TimerHandle | None = None
