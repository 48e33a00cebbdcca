from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedplate.errors import JournalError
from bedplate.journal import Content, Record, content_hash
from bedplate.journal.record import DEPTH_MAX, canonical_bytes, leaf_hashes, record_of, rows_of
from tests.conformance import naive_journal as naive

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1)
keys = st.text(st.characters(max_codepoint=127), max_size=8)
values = st.recursive(
    integers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(keys, values, max_size=6)


@settings(max_examples=60)
@given(texts, texts, texts, bodies, st.integers(0, 2**62), st.integers(0, 2**63 - 1))
def test_any_record_has_the_bytes_of_the_page_and_comes_back(
    kind: str, tenant: str, session: str, body: dict[str, Any], seq: int, time_ns: int
) -> None:
    record = Record(seq, time_ns, kind, tenant, session, body)
    data = naive.canonical(record._asdict())
    assert canonical_bytes(record) == data
    (row,) = rows_of([record])
    assert leaf_hashes([row]) == [naive.leaf(data)]
    assert record_of(row) == record
    assert json.loads(data) == record._asdict()


def test_tuples_are_written_as_lists() -> None:
    (row,) = rows_of([Record(0, 0, "k", "", "", {"a": (1, ("b",))})])
    assert row[5] == b'{"a":[1,["b"]]}'


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"flag": True}, "'flag' is a bool"),
        ({"a": {"ratio": 0.5}}, "'ratio' is a float"),
        ({"none": None}, "'none' is a NoneType"),
        ({"raw": b"x"}, "'raw' is a bytes"),
        ({"seen": {1, 2}}, "'seen' is a set"),
        ({"big": 2**63}, "'big' is an integer of more than 64 bits"),
        ({"list": [1, 2**63]}, "'list' is a int"),
        ({"schlüssel": 1}, "keys are ASCII"),
        ({1: 1}, "keys are ASCII"),
        ([1], "needs an object"),
    ],
)
def test_what_the_form_cannot_hold_is_refused_by_name(body: Any, named: str) -> None:
    with pytest.raises(JournalError, match=r"record 5 \(note\)") as caught:
        rows_of([Record(5, 0, "note", "", "", body)])
    assert named in caught.value.message


def test_half_a_surrogate_is_refused_without_repeating_it() -> None:
    with pytest.raises(JournalError, match="record 0"):
        rows_of([Record(0, 0, "note", "", "", {"a": "\ud800"})])


def test_nesting_has_a_bound() -> None:
    deep: Any = 1
    for _ in range(DEPTH_MAX - 1):
        deep = {"a": deep}
    rows_of([Record(0, 0, "note", "", "", {"a": deep})])
    with pytest.raises(JournalError, match="deep"):
        rows_of([Record(0, 0, "note", "", "", {"a": {"a": deep}})])
    listed: Any = 1
    for _ in range(DEPTH_MAX - 1):
        listed = [listed]
    rows_of([Record(0, 0, "note", "", "", {"a": listed})])
    with pytest.raises(JournalError, match="deep"):
        rows_of([Record(0, 0, "note", "", "", {"a": [listed]})])


@pytest.mark.parametrize("time_ns", [-1, 2**63, 1.0, True])
def test_a_time_is_a_64_bit_count(time_ns: Any) -> None:
    with pytest.raises(JournalError, match="time_ns"):
        rows_of([Record(0, time_ns, "note", "", "", {})])


def test_a_content_is_named_by_its_sha256() -> None:
    name = content_hash(b"abc")
    assert name == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert Content(name, "t", "s", b"abc").hash == name
