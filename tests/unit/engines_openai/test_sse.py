"""Events are whole whatever the network does to the bytes."""

from __future__ import annotations

import pytest

from bedplate.engines.openai import sse
from bedplate.engines.openai.sse import EventSplitter
from bedplate.errors import EngineProtocolError

STREAM = (
    'data: {"a": "账"}\n\n: ping\n\nevent: x\nid: 7\ndata: 1\ndata: 2\n\ndata:3\n\ndata: [DONE]\n\n'
)
EVENTS = [' {"a": "账"}'.encode(), b" 1\n 2", b"3", b" [DONE]"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1_000])
def test_events_are_the_same_wherever_the_stream_is_cut(size: int, line_end: str) -> None:
    data = STREAM.replace("\n", line_end).encode()
    splitter = EventSplitter()
    found = [
        event for at in range(0, len(data), size) for event in splitter.feed(data[at : at + size])
    ]
    if line_end == "\r":  # the last CR may still become a CRLF
        found += splitter.feed(b": end")
    assert found == EVENTS


def test_many_events_of_one_read_come_together() -> None:
    assert EventSplitter().feed(b"data: 1\n\n" * 32) == [b" 1"] * 32


def test_a_done_without_its_blank_line_still_counts() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: [DONE]") == [b" 1"]
    assert splitter.tail() == [b" [DONE]"]


def test_half_an_event_at_the_end_is_dropped() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b'data: {"choices": [') == []
    assert splitter.tail() == []


def test_an_event_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 100)
    splitter = EventSplitter()
    for _ in range(7):
        assert splitter.feed(b"data: 1234567") == []
    with pytest.raises(EngineProtocolError, match="100"):
        splitter.feed(b"data: 1234567")
