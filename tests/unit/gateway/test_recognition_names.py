"""Names of sessions that come back from the journal."""

from __future__ import annotations

from itertools import count

from bedplate.core.ids import ModelId, SessionId, TenantId, TurnId
from bedplate.engines.base import ChatRequest
from bedplate.gateway.recognition import NOTE_KIND, Recogniser
from bedplate.journal.record import Record


def test_a_name_that_was_given_again_is_the_later_sessions_after_a_restart() -> None:
    numbers = count()
    first = Recogniser(lambda: str(next(numbers)))
    request = ChatRequest(model=ModelId("m"), messages=({"role": "user", "content": "a"},))
    notes: list[Record] = []
    sessions: list[SessionId] = []
    for turn in ("t1", "t2"):
        place = first.match(TenantId("bank"), ModelId("m"), request, "alpha", 0, turn=TurnId(turn))
        body = first.turn_ended(place, {"role": "assistant", "content": "b"}, 0)
        assert body is not None
        notes.append(Record(len(notes), 0, NOTE_KIND, "bank", place.session, body))
        sessions.append(place.session)
        if turn == "t1":
            first.forget(place.session)  # it expired
    again = Recogniser(lambda: str(next(numbers)))
    for note in notes:
        again.restore(note)
    again.retain({sessions[1]})
    assert again.find(TenantId("bank"), "alpha") == sessions[1]


def test_a_call_that_drops_the_last_answer_starts_from_the_branch_that_was_asked() -> None:
    numbers = count()
    recogniser = Recogniser(lambda: str(next(numbers)))
    asked = ({"role": "user", "content": "a"},)
    request = ChatRequest(model=ModelId("m"), messages=asked)
    place = recogniser.match(TenantId("t"), ModelId("m"), request, "s", 0, turn=TurnId("t1"))
    recogniser.turn_ended(place, {"role": "assistant", "content": "b"}, 0)
    edited = ChatRequest(model=ModelId("m"), messages=(*asked, {"role": "user", "content": "c"}))
    again = recogniser.match(TenantId("t"), ModelId("m"), edited, "s", 0, turn=TurnId("t2"))
    assert (again.kind, again.fork_of) == ("fork", place.branch)
