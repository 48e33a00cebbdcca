"""Workloads: broken sources end in a clear error, changed workloads keep their form."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedplate.errors import BedplateError
from bedplate.twin.workload.form import Session, Spawn, Turn, Workload, prompt_tokens
from bedplate.twin.workload.native import check, dump, write
from bedplate.twin.workload.read import read_workload
from bedplate.twin.workload.source import assemble, families_of
from bedplate.twin.workload.statistics import statistics
from bedplate.twin.workload.transform import (
    Place,
    assign,
    clamp_gaps,
    clamp_tokens,
    repeat,
    restart,
    scale_rate,
    scale_tokens,
    take,
)
from tests.unit.twin_workload import samples

SOURCES = {
    "azure": ("a.csv", samples.AZURE),
    "burstgpt": ("b.csv", samples.BURST_2),
    "mooncake": ("m.jsonl", samples.MOONCAKE),
    "claude-code": ("t.json", samples.claude_text()),
    "lmcache": ("l.jsonl", samples.lmcache_text()),
    "tau-bench": ("t.json", samples.TAU),
    "servegen": ("c-trace.csv", samples.SERVEGEN_TRACE),
    "personas": ("mix.toml", samples.MIX.replace("120", "5")),
    "bedplate": (
        "w.jsonl",
        '{"bedplate_workload":1,"name":"w","source":"s"}\n'
        '{"key":"a","tenant":"t","lane":"batch","kind":"k","start_ns":0,"spawn":null,'
        '"turns":[[0,"",-1,5,1],[9,"sql",3,2,3,64]]}\n',
    ),
}
NUMBERS = (b"-1", b"NaN", b"1e400", b"99999999999999999999", b"null", b'"x"', b"0", b"1.5", b"[]")


@st.composite
def broken(draw: st.DrawFn, text: bytes) -> bytes:
    """Return a source that was cut, or in which something else stands in place of some bytes."""
    start = draw(st.integers(0, len(text)))
    if draw(st.booleans()):
        return text[:start]
    end = draw(st.integers(start, min(len(text), start + 12)))
    other = draw(st.sampled_from(NUMBERS) | st.binary(max_size=6))
    return text[:start] + other + text[end:]


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_broken_source_is_read_or_refused(name: str, data: st.DataObject) -> None:
    file, text = SOURCES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, file)
        path.write_bytes(data.draw(broken(text.encode())))
        if name == "servegen":
            Path(folder, "c-dataset.json").write_text(samples.SERVEGEN_DATASET)
        try:
            check(read_workload(path, format=name, limit=20))
        except BedplateError as error:
            refusal = error.message
        else:
            return
        assert folder in refusal or name == "personas"


SIZES = st.integers(1, 500)
TURNS = st.builds(
    Turn,
    st.integers(0, 10**11),
    st.sampled_from(["", "sql", "读取"]),
    st.integers(-1, 800),
    SIZES,
    SIZES,
    st.integers(0, 500),
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Return a workload with sub-agents, its families mixed as the form allows."""
    sessions: list[Session] = []
    start_ns = 0
    for number in range(draw(st.integers(1, 8))):
        turns = tuple(draw(st.lists(TURNS, min_size=1, max_size=5)))
        turns = (turns[0]._replace(gap_ns=0), *turns[1:])
        spawn = None
        spawned = draw(st.booleans())
        if spawned and sessions:
            parent = draw(st.integers(0, len(sessions) - 1))
            turn = draw(st.integers(0, len(sessions[parent].turns) - 1))
            last = turn == len(sessions[parent].turns) - 1
            spawn = Spawn(parent, turn, joins=not last and draw(st.booleans()))
            begin_ns = draw(st.integers(0, 10**10))
        else:
            start_ns += draw(st.integers(0, 10**10)) if sessions else 0
            begin_ns = start_ns
        lane = draw(st.integers(0, 2))
        sessions.append(Session(f"k{number}", "t", lane, "x", begin_ns, spawn, turns))
    return Workload("w", "drawn", tuple(sessions))


@settings(deadline=None)
@given(workload=workloads())
def test_what_is_written_is_read_again(workload: Workload) -> None:
    check(workload)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.jsonl")
        write(workload, path)
        assert read_workload(path) == workload


@settings(deadline=None)
@given(workload=workloads())
def test_families_come_together_again(workload: Workload) -> None:
    once = assemble("w", "s", families_of(workload.sessions))
    check(once)
    assert sorted(session.key for session in once.sessions) == sorted(
        session.key for session in workload.sessions
    )
    assert assemble("w", "s", families_of(once.sessions)) == once
    told, before = statistics(once), statistics(workload)
    assert told._replace(source="") == before._replace(source="")


def links(workload: Workload) -> set[tuple[str, str, int, bool]]:
    return {
        (session.key, workload.sessions[session.spawn.session].key, *session.spawn[1:])
        for session in workload.sessions
        if session.spawn is not None
    }


@settings(deadline=None)
@given(
    workload=workloads(),
    count=st.integers(1, 10),
    factor=st.floats(0.01, 50),
    context=st.integers(2, 2_000),
)
def test_changed_workloads_keep_their_form(
    workload: Workload, count: int, factor: float, context: int
) -> None:
    for changed in (
        scale_rate(workload, factor),
        restart(workload, factor, seed=1),
        assign(workload, [Place("a", 0), Place("", -1), Place("b", 2)]),
        scale_tokens(workload, factor),
        clamp_tokens(workload, context),
        clamp_gaps(workload, factor),
        repeat(workload, count, seed=1),
    ):
        check(changed)
    assert links(scale_rate(workload, factor)) == links(workload)
    part = take(workload, count)
    check(part)
    roots = [session.key for session in workload.sessions if session.spawn is None][:count]
    assert [session.key for session in part.sessions if session.spawn is None] == roots
    assert links(part) <= links(workload)


@settings(deadline=None)
@given(workload=workloads(), context=st.integers(2, 2_000))
def test_no_turn_exceeds_the_context_that_it_was_cut_to(workload: Workload, context: int) -> None:
    for session in clamp_tokens(workload, context).sessions:
        held = 0
        for turn in session.turns:
            prompt, keep = prompt_tokens(turn, held)
            assert 0 <= keep <= held
            held = prompt + turn.out_tokens
            assert held <= context
    roomy = clamp_tokens(workload, 10_000_000)
    assert roomy.sessions == workload.sessions
    assert b"".join(dump(roomy._replace(source="drawn"))) == b"".join(dump(workload))
