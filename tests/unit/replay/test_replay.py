from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bedplate.core import CORE_VERSION
from bedplate.core.actions import Settled
from bedplate.core.base import Base
from bedplate.core.codec import body_of
from bedplate.core.events import (
    CardUp,
    Event,
    PolicyChanged,
    TurnArrived,
    TurnEnded,
    TurnStarted,
)
from bedplate.core.limits import default_policy
from bedplate.errors import ReplayDivergence
from bedplate.journal import Journal, Reader, Record
from bedplate.metering.rows import usage_body
from bedplate.replay import core_version, replay
from bedplate.replay import fold as folds


def events(turns: int) -> list[Event]:
    card = CardUp("c", "m", "", "hints", True, 4, 4, 8192, 8192, 0)  # type: ignore[arg-type]
    found: list[Event] = [PolicyChanged(default_policy()), card]
    for i in range(turns):
        turn, session = f"t{i}", f"s{i % 3}"
        found.append(
            TurnArrived(turn, session, 0, -1, "a", 0, "m", 50 + i, 0, 8, True, True)  # type: ignore[arg-type]
        )
        found.append(TurnStarted(turn, 1, 50 + i, 0))  # type: ignore[arg-type]
        found.append(TurnEnded(turn, 1, "stop", 50 + i, 0, 5, 55 + i, "", True))  # type: ignore[arg-type]
    return found


def written(folder: Path, turns: int = 10, *, core: str | None = None) -> Path:
    """Write the journal of a live run by hand: records, usage notes, a digest every five events."""
    base = Base()
    records: list[Record] = []

    def add(kind: str, body: dict[str, Any], tenant: str = "", session: str = "") -> int:
        seq = len(records)
        records.append(Record(seq, 1000 + seq, kind, tenant, session, body))
        return seq

    add("core_started", {"core": core or core_version(), "bedplate": "1"})
    for count, event in enumerate(events(turns)):
        seq = add(type(event).__name__, body_of(event))
        for action in base.handle(1000 + seq, event):
            if isinstance(action, Settled):
                body = usage_body(action, event_seq=seq, price_version="p")
                add("usage", body, action.tenant, action.session)
        if count % 5 == 4:
            add("digest", {"event_seq": seq, "digest": base.digest.hex()})
    with Journal.open(folder, origin="test") as journal:
        journal.append(records)
    return folder


def changed(folder: Path, kind: str, edit) -> Path:  # type: ignore[no-untyped-def]
    """Copy a journal with the first record of a kind edited, as a forger with the key would."""
    with Reader(folder) as reader:
        records = list(reader.read())
    index = next(i for i, r in enumerate(records) if r.kind == kind)
    edited = edit(records[index])
    records[index : index + 1] = [] if edited is None else [edited]
    records = [r._replace(seq=seq) for seq, r in enumerate(records)]
    other = folder.parent / "changed"
    with Journal.open(other, origin="test") as journal:
        journal.append(records)
    return other


def test_a_true_journal_comes_out_the_same(tmp_path: Path) -> None:
    seen: list[int] = []
    with Reader(written(tmp_path / "j")) as reader:
        report = replay(reader, progress=seen.append)
    assert report.same
    assert (report.events, report.rows, report.digests) == (32, 10, 6)
    assert report.digest_live == report.digest_replay
    assert len(report.digest_live) == 64
    assert report.start_seq == 0


def test_another_hash_seed_in_another_process_decides_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path / "j", turns=30)
    code = (
        "import sys, json; from pathlib import Path; from dataclasses import asdict;"
        "from bedplate.journal import Reader; from bedplate.replay import replay;"
        "r = replay(Reader(Path(sys.argv[1]))); print(json.dumps([r.same, r.digest_replay]))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], env=env, capture_output=True, check=True
    )
    assert os.environ.get("PYTHONHASHSEED") != "4242"
    with Reader(folder) as reader:
        assert json.loads(done.stdout) == [True, replay(reader).digest_live]


def test_a_changed_event_shows_at_the_next_digest(tmp_path: Path) -> None:
    def edit(record: Record) -> Record:
        return record._replace(body={**record.body, "prompt_tokens": 51})

    folder = changed(written(tmp_path / "j"), "TurnArrived", edit)
    with Reader(folder) as reader:
        report = replay(reader)
        digests = [r.seq for r in reader.read(kinds=("digest",))]
    assert not report.same
    assert report.first_divergence == digests[0]
    assert report.digest_live != report.digest_replay


def test_a_changed_usage_row_shows(tmp_path: Path) -> None:
    def edit(record: Record) -> Record:
        return record._replace(body={**record.body, "out_tokens": 1})

    folder = changed(written(tmp_path / "j"), "usage", edit)
    with Reader(folder) as reader:
        report = replay(reader)
        (first, *_) = [r.seq for r in reader.read(kinds=("usage",))]
    assert report.first_divergence is None
    assert report.row_mismatches == (first,)
    assert not report.same


def test_a_usage_row_taken_out_shows(tmp_path: Path) -> None:
    folder = changed(written(tmp_path / "j"), "usage", lambda record: None)
    with Reader(folder) as reader:
        report = replay(reader)
    assert not report.same
    assert report.row_mismatches


def test_a_usage_row_too_many_shows(tmp_path: Path) -> None:
    folder = written(tmp_path / "j")
    with Journal.open(folder, origin="test") as journal:
        last = list(journal.read(kinds=("usage",)))[-1]
        seq = journal.next_seq
        journal.append([last._replace(seq=seq, time_ns=journal.last_time_ns)])
        report = replay(journal)
    assert report.row_mismatches == (seq,)


def test_a_record_that_halts_the_core_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "j")
    handle = Base.handle

    def buggy(self: Base, now_ns: int, event: Event) -> object:
        assert not (isinstance(event, TurnEnded) and event.turn == "t4"), "a bug"
        return handle(self, now_ns, event)

    monkeypatch.setattr(Base, "handle", buggy)
    with Reader(folder) as reader:
        report = replay(reader)
        record = next(r for r in reader.read(kinds=("TurnEnded",)) if r.body["turn"] == "t4")
    assert report.halted_at == record.seq
    assert f"--skip {record.seq}" in report.halt
    assert not report.same


def test_another_core_says_what_to_do(tmp_path: Path) -> None:
    with (
        Reader(written(tmp_path / "j", core="0-old")) as reader,
        pytest.raises(ReplayDivergence, match="0-old wrote this journal"),
    ):
        replay(reader)


def test_a_record_of_another_form_is_a_divergence(tmp_path: Path) -> None:
    def edit(record: Record) -> Record:
        return record._replace(body={**record.body, "extra": 1})

    folder = changed(written(tmp_path / "j"), "TurnStarted", edit)
    with Reader(folder) as reader, pytest.raises(ReplayDivergence, match="no TurnStarted"):
        replay(reader)


def test_an_empty_journal_replays_to_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j", origin="test") as journal:
        report = replay(journal)
    assert (report.same, report.events, report.digest_live) == (True, 0, "")


def test_the_version_depends_on_the_cores_sources() -> None:
    assert core_version() == core_version()
    assert core_version().startswith(f"{CORE_VERSION}-")
    assert folds.MISMATCHES_MAX > 0
