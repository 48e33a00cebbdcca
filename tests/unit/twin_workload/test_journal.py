"""A journal's turns as a workload: gaps behind ends, lines as sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bedplate.core import events as ev
from bedplate.core.codec import body_of
from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.errors import BedplateError, InvalidRequest
from bedplate.journal import Journal, Record
from bedplate.twin.workload.form import Spawn, Turn
from bedplate.twin.workload.native import check
from bedplate.twin.workload.read import read_workload

S = 10**9
START = 1_700_000_000 * S


class Log:
    """Records at instants that a test chooses, in seconds."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, at_s: float, event: ev.Event) -> None:
        kind = type(event).__name__
        seq, time_ns = len(self.records), START + round(at_s * S)
        self.records.append(Record(seq, time_ns, kind, "", "", body_of(event)))

    def arrived(self, at_s: float, turn: str, prompt: int, **fields: Any) -> None:
        values: dict[str, Any] = {
            "session": SessionId("s"),
            "branch": BranchId(0),
            "fork_of": -1,
            "tenant": TenantId("fraud"),
            "lane": 1,
            "model": ModelId("m"),
            "reuse_tokens": 0,
            "limit_tokens": 64,
            "resumable": False,
            "exact": True,
            **fields,
        }
        self.add(at_s, ev.TurnArrived(turn=TurnId(turn), prompt_tokens=prompt, **values))

    def ended(
        self, at_s: float, turn: str, prompt: int, out: int, *, tool: str = "", attempt: int = 1
    ) -> None:
        status = "stop" if out else "lost"
        held = prompt + out
        self.add(
            at_s, ev.TurnEnded(TurnId(turn), attempt, status, prompt, 0, out, held, tool, True)
        )

    def store(self, folder: Path) -> Path:
        with Journal.open(folder / "journal", origin="cell-1") as journal:
            journal.append(self.records)
        return folder


def test_turns_of_a_line_follow_one_another(tmp_path: Path) -> None:
    log = Log()
    log.arrived(0, "a", 100)
    log.ended(4, "a", 100, 10, tool="sql")
    log.arrived(9, "b", 150, reuse_tokens=110)
    log.ended(11, "b", 151, 20)
    log.arrived(12, "refused", 400, reuse_tokens=171)
    log.arrived(20, "c", 90, reuse_tokens=40, limit_tokens=0)
    log.ended(21, "c", 90, 0)  # the card was lost; the second attempt is what counts
    log.ended(25, "c", 90, 7, attempt=2)
    found = read_workload(log.store(tmp_path))
    check(found)
    (session,) = found.sessions
    assert (session.key, session.tenant, session.lane, session.start_ns) == ("s", "fraud", 1, 0)
    assert session.turns == (
        Turn(0, "", -1, 100, 10, 64),
        Turn(5 * S, "sql", 110, 41, 20, 64),
        Turn(9 * S, "", 40, 50, 7, 0),
    )
    assert "1 turns without an answer left out" in found.source
    assert read_workload(tmp_path / "journal") == found
    assert read_workload(tmp_path / "journal" / "journal.sqlite") == found


def test_a_fork_is_spawned_by_the_turn_that_ended_before_it(tmp_path: Path) -> None:
    log = Log()
    log.arrived(0, "a", 100)
    log.ended(4, "a", 100, 10)
    log.arrived(5, "fork", 60, branch=BranchId(1), fork_of=0, reuse_tokens=50)
    log.ended(6, "fork", 60, 5)
    log.arrived(5, "other", 70, session=SessionId("t"), lane=0)
    log.ended(8, "other", 70, 5)
    log.arrived(9, "b", 150, reuse_tokens=110)
    log.ended(11, "b", 150, 20)
    log.records.sort(key=lambda record: record.time_ns)
    log.records = [record._replace(seq=seq) for seq, record in enumerate(log.records)]
    found = read_workload(log.store(tmp_path))
    check(found)
    main, fork, other = found.sessions
    assert (fork.key, fork.spawn, fork.start_ns) == ("s/1", Spawn(0, 0, joins=True), S)
    assert fork.turns == (Turn(0, "", -1, 60, 5, 64),)
    assert main.turns[1] == Turn(3 * S, "", 110, 40, 20, 64)  # 9 − 6: behind the fork
    assert (other.key, other.start_ns, other.lane) == ("t", 5 * S, 0)


def test_a_database_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"SQLite format 3\x00" + b"\x00" * 100)
    with pytest.raises(BedplateError):
        read_workload(tmp_path)


@pytest.mark.parametrize(
    ("prompt", "out", "reuse", "said"),
    [
        (-5, 10, 0, "keeps -6 tokens"),
        (100, -10, 0, "100 new and -10 output tokens"),
        (10**12, 10, 0, "0 new and 10 output tokens"),
        (100, 10, -7, "keeps -7 tokens"),
    ],
)
def test_numbers_that_no_turn_can_have_are_refused(
    tmp_path: Path, prompt: int, out: int, reuse: int, said: str
) -> None:
    log = Log()
    log.arrived(0, "a", 100)
    log.ended(1, "a", 100, 10)
    log.arrived(2, "b", 100, reuse_tokens=reuse)
    log.ended(3, "b", prompt, out)
    with pytest.raises(InvalidRequest, match="turn 1 ") as caught:
        read_workload(log.store(tmp_path))
    assert str(tmp_path) in caught.value.message
    assert said in caught.value.message
