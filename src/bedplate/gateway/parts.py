"""The parts that the endpoints share, made once by `app.Gateway`."""

from __future__ import annotations

from dataclasses import dataclass

from bedplate.gateway.answers import Answers
from bedplate.gateway.audit import TurnedAway
from bedplate.gateway.bodies import BodyRoom
from bedplate.gateway.contents import ContentBook
from bedplate.gateway.door import Door
from bedplate.gateway.http import Pacer
from bedplate.gateway.idempotency import IdempotencyTable
from bedplate.gateway.metrics import Counts
from bedplate.gateway.ports import Runtime, View
from bedplate.gateway.recognition import Recogniser
from bedplate.gateway.words import Words


@dataclass(slots=True)
class Parts:
    """`draining` is set once, by the server: no new calls from then on.

    `body_bytes_max` bounds a request body; `keeps_content` is false where only hashes are
    journaled.
    """

    runtime: Runtime
    view: View
    door: Door
    recogniser: Recogniser
    idempotency: IdempotencyTable
    answers: Answers
    contents: ContentBook
    turned_away: TurnedAway
    counts: Counts
    pacer: Pacer
    words: Words
    body_bytes_max: int
    bodies: BodyRoom
    keeps_content: bool
    draining: bool = False
