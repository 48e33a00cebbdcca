"""A gateway from a configuration and a started service, with what the journal remembers for it."""

from __future__ import annotations

from bedplate.config import Config
from bedplate.core import view
from bedplate.core.ids import SessionId
from bedplate.gateway.answers import Answers
from bedplate.gateway.app import Gateway, make_gateway
from bedplate.gateway.audit import TurnedAway
from bedplate.gateway.bodies import BodyRoom
from bedplate.gateway.contents import ContentBook
from bedplate.gateway.door import Door
from bedplate.gateway.forest import Bounds
from bedplate.gateway.http import Pacer
from bedplate.gateway.idempotency import NOTE_KIND as ANSWERED
from bedplate.gateway.idempotency import IdempotencyTable
from bedplate.gateway.keys import KeyStore
from bedplate.gateway.metrics import Counts
from bedplate.gateway.parts import Parts
from bedplate.gateway.recognition import NOTE_KIND as RECOGNISED
from bedplate.gateway.recognition import Recogniser
from bedplate.gateway.view import CoreView
from bedplate.gateway.words import Words
from bedplate.runtime.service import Service

SESSION_WORD_BYTES = 16
"""Unguessable, though an id is worth nothing to another tenant: it stands in URLs and logs."""


def build_gateway(config: Config, service: Service, keys: KeyStore) -> Gateway:
    """Return the gateway of a started service; the caller closes `keys`.

    Cost: reads the journal's notes of sessions and answers once; run it off the event loop.
    """
    words = Words()
    recogniser = Recogniser(
        lambda: words.draw(SESSION_WORD_BYTES),
        Bounds(sessions_max=config.service.sessions_max),
    )
    idempotency = IdempotencyTable()
    now_ns = service.now_ns()
    kinds = (RECOGNISED, ANSWERED, "TurnArrived", "SessionClosed")
    for record in service.journal.read(kinds=kinds):
        recogniser.restore(record)
        idempotency.restore(record, now_ns)
    recogniser.retain({SessionId(found.session) for found in view.sessions(service.base)})
    return make_gateway(
        Parts(
            runtime=service,
            view=CoreView(service),
            door=Door(keys),
            recogniser=recogniser,
            idempotency=idempotency,
            answers=Answers(service.journal.content),
            contents=ContentBook(),
            turned_away=TurnedAway(service.note),
            counts=Counts(),
            pacer=Pacer(config.service.header_wait_seconds),
            words=words,
            body_bytes_max=config.service.body_bytes_max,
            bodies=BodyRoom(config.service.body_bytes_max),
            keeps_content=config.journal.content,
        )
    )
