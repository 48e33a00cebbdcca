"""The workload file: what is written is read again, and what cannot be is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from bedplate.errors import InvalidRequest
from bedplate.twin.workload.form import Turn, Workload
from bedplate.twin.workload.generate import Mix, generate
from bedplate.twin.workload.native import check, dump, write
from bedplate.twin.workload.read import read_workload
from bedplate.twin.workload.transform import share_openings

HEAD = '{"bedplate_workload":1,"name":"w","source":"by hand"}\n'


def line(
    key: str = "k",
    *,
    lane: str = "batch",
    start: int = 0,
    spawn: str = "null",
    turns: str = '[[0,"",-1,5,1,0]]',
) -> str:
    return (
        f'{{"key":"{key}","tenant":"t","lane":"{lane}","kind":"x","start_ns":{start},'
        f'"spawn":{spawn},"turns":{turns}}}\n'
    )


def test_a_workload_comes_back_as_it_was(tmp_path: Path) -> None:
    mix = Mix(shares={"loan_parser": 1.0, "fraud_triage": 1.0}, sessions_per_hour=40)
    made = generate(mix, seed=1)
    path = tmp_path / "w.jsonl"
    write(made, path)
    assert read_workload(path) == made
    assert b"".join(dump(made)) == path.read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.jsonl"]


def test_a_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    turns = '[[0,"",-1,5,1],[9,"sql",-1,2,3,64]]'
    path.write_text(HEAD + line("a", turns=turns) + "\n" + line("b", spawn="[0,0,true]", start=7))
    found = read_workload(path)
    check(found)
    assert found.sessions[0].turns[1] == (9, "sql", -1, 2, 3, 64)
    assert found.sessions[0].turns[0].limit_tokens == 0
    assert found.sessions[1].spawn == (0, 0, True)


def test_openings_come_back_as_they_were(tmp_path: Path) -> None:
    made = generate(Mix(shares={"fraud_triage": 1.0}, sessions_per_hour=40), seed=1)
    path = tmp_path / "w.jsonl"
    write(share_openings(made, 3000), path)
    found = read_workload(path)
    assert found.sessions == share_openings(made, 3000).sessions
    assert {one.prefix for one in found.sessions} >= {"fraud_triage"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (line().replace("}", ',"prefix":"o"}'), "prefix_tokens, or neither"),
        (line().replace("}", ',"prefix":"o","prefix_tokens":5}'), "must be longer"),
        (line()[:40], "line 2: .*cut off"),
        (line(lane="fast"), "line 2: lane 'fast'"),
        (line(turns="[]"), "line 2: .*length"),
        (line(turns='[[5,"",-1,5,1]]'), "first turn has a gap"),
        (line(turns='[[0,"",-1,0,1]]'), "turn 0 has 0 new and 1 output tokens"),
        (line(turns='[[0,"",-2,5,1]]'), "turn 0 keeps -2"),
        (line(turns='[[0,"",-1,5]]'), "line 2: "),
        (line(turns='[[0,"",-1,5,NaN]]'), "line 2: "),
        (line(turns='[[0,"",-1,5,1.5]]'), "line 2: .*int"),
        (line(start=-1), "line 2: .*>= 0"),
        (line(key=""), "line 2: .*key"),
        (line(spawn="[0,0,false]"), "line 2: .*does not come before"),
        (line() + line(spawn="[0,3,false]"), "line 3: .*no such turn"),
        (line() + line(spawn="[0,0,true]"), "line 3: .*joins a turn that does not exist"),
        (line(start=5) + line(start=4), "line 3: .*sort root sessions"),
        (line() + line(), "line 3: .*has the same key"),
        (line().replace('"kind"', '"sort"'), "line 2: "),
    ],
)
def test_what_is_wrong_is_named_by_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(HEAD + text)
    with pytest.raises(InvalidRequest, match=rf"(?s)w\.jsonl, {said}" if "line" in said else said):
        read_workload(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(HEAD.replace(":1,", ":2,") + line())
    with pytest.raises(InvalidRequest, match="version 2; this reads version 1"):
        read_workload(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    made = generate(Mix(shares={"fraud_triage": 1.0}, sessions_per_hour=60), seed=1)
    with pytest.raises(InvalidRequest, match="cannot write"):
        write(made, tmp_path / "nowhere" / "w.jsonl")


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    made = generate(Mix(shares={"fraud_triage": 1.0}, sessions_per_hour=60), seed=1)
    first = made.sessions[0]
    for wrong, said in (
        ((), "no sessions"),
        ((first, first), "the same key"),
        ((first._replace(start_ns=10**19),), "out of range"),
        ((first._replace(turns=(Turn(0, "", -1, 10**10, 1),)),), "new and 1 output"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            write(Workload("mix", "by hand", wrong), tmp_path / "w.jsonl")
    assert not list(tmp_path.iterdir())
