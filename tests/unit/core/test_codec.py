"""Every event goes through the journal's form and comes back equal; anything else is refused."""

from __future__ import annotations

import json
import typing

import pytest

from bedplate.core import events as ev
from bedplate.core.actions import Action, Refuse, SetTimer
from bedplate.core.codec import EVENT_TYPES, body_of, digest_bytes, event_from
from bedplate.core.ids import TurnId
from bedplate.core.limits import LanePolicy, TenantPolicy, default_policy


def sample(cls: type) -> ev.Event:
    """Build an event of a class with a different value in every field."""
    values: dict[str, object] = {}
    for index, (name, hint) in enumerate(typing.get_type_hints(cls).items()):
        base = getattr(hint, "__supertype__", hint)
        if name == "policy":
            tenants = (TenantPolicy(typing.cast("typing.Any", "t"), 1, 2, 3, 4, 5, 6),)
            values[name] = default_policy()._replace(tenants=tenants)
        else:
            values[name] = {str: f"w{index}", int: index + 3, bool: bool(index % 2)}[base]
    event: ev.Event = cls(**values)
    return event


EVENTS = [sample(cls) for cls in EVENT_TYPES.values()]


def test_all_events_of_the_union_are_known() -> None:
    assert set(EVENT_TYPES.values()) == set(typing.get_args(ev.Event))
    assert len(EVENT_TYPES) == 25


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_round_trip_through_json(event: ev.Event) -> None:
    body = json.loads(json.dumps(body_of(event)))
    again = event_from(type(event).__name__, body)
    assert again == event
    assert type(again) is type(event)
    assert [type(value) for value in again] == [type(value) for value in event]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_bodies_hold_integers_strings_lists_and_objects_only(event: ev.Event) -> None:
    def look(value: object) -> None:
        assert type(value) in (int, str, list, dict), value
        for item in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        ):
            look(item)

    look(body_of(event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_missing_and_extra_fields_are_refused(event: ev.Event) -> None:
    kind, body = type(event).__name__, body_of(event)
    with pytest.raises(ValueError, match="exactly the fields"):
        event_from(kind, {**body, "extra": 1})
    for name in body:
        with pytest.raises(ValueError, match="exactly the fields"):
            event_from(kind, {k: v for k, v in body.items() if k != name})


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("TurnArrived", {"prompt_tokens": "3"}),
        ("TurnArrived", {"prompt_tokens": 3.0}),
        ("TurnArrived", {"prompt_tokens": True}),
        ("TurnArrived", {"prompt_tokens": None}),
        ("TurnArrived", {"turn": 3}),
        ("TurnArrived", {"resumable": 2}),
        ("TurnArrived", {"resumable": "yes"}),
        ("PolicyChanged", {"policy": {}}),
        ("PolicyChanged", {"policy": [1]}),
    ],
)
def test_wrong_types_are_refused(kind: str, change: dict[str, object]) -> None:
    body = body_of(sample(EVENT_TYPES[kind]))
    with pytest.raises(ValueError, match=r"expected|needs exactly"):
        event_from(kind, {**body, **change})


def test_wrong_types_inside_a_policy_are_refused() -> None:
    body = body_of(ev.PolicyChanged(default_policy()))
    body["policy"]["lanes"][0]["queue_max"] = "many"
    with pytest.raises(ValueError, match="expected int"):
        event_from("PolicyChanged", body)
    body["policy"]["lanes"] = "none"
    with pytest.raises(ValueError, match="expected a list"):
        event_from("PolicyChanged", body)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown event kind 'Nothing'"):
        event_from("Nothing", {})


def test_digest_bytes_tell_time_kind_values_and_actions_apart() -> None:
    cancelled = ev.TurnCancelled(TurnId("a"), "deadline")
    closed = ev.SessionClosed(typing.cast("typing.Any", "a"), "deadline")
    refuse: tuple[Action, ...] = (Refuse(TurnId("a"), "lane_full", "é", 1),)
    seen = {
        digest_bytes(1, cancelled, ()),
        digest_bytes(2, cancelled, ()),
        digest_bytes(1, closed, ()),
        digest_bytes(1, cancelled, refuse),
        digest_bytes(1, cancelled, (*refuse, SetTimer(5))),
        digest_bytes(1, ev.TurnCancelled(TurnId("b"), "deadline"), ()),
    }
    assert len(seen) == 6
    assert all(line.isascii() for line in seen)


def test_lane_policy_survives_inside_its_policy() -> None:
    event = ev.PolicyChanged(default_policy())
    again = event_from("PolicyChanged", json.loads(json.dumps(body_of(event))))
    assert isinstance(again, ev.PolicyChanged)
    assert all(isinstance(lane, LanePolicy) for lane in again.policy.lanes)
