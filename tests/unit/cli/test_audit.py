from __future__ import annotations

import base64
import json
import os
import pwd
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli.audit import app
from bedplate.errors import BedplateError, ChainBroken, ConfigError, InvalidRequest, Truncated
from bedplate.journal import Content, Journal, Reader, Record, content_hash
from bedplate.journal.keys import PUBLIC_FILE
from bedplate.journal.storage import DATABASE_FILE
from tests.conformance import naive_journal as naive
from tests.unit.journal.builders import ORIGIN, citing, records, written


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BEDPLATE_CONFIG", raising=False)
    monkeypatch.setenv("BEDPLATE_DATA_DIR", str(tmp_path / "data"))
    written(tmp_path / "data" / "journal", [3, 1_200])
    return tmp_path / "data" / "journal"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def invoke_json(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def failure(*arguments: str) -> BedplateError:
    result = invoke(*arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, BedplateError), result.exception
    return result.exception


def expected_root() -> str:
    leaves = [naive.leaf(naive.canonical(record._asdict())) for record in records(1_203)]
    return base64.b64encode(naive.root(leaves)).decode()


def test_verify_prints_size_root_checkpoints_and_key(folder: Path) -> None:
    result = invoke("verify")
    assert result.exit_code == 0
    key = (folder / PUBLIC_FILE).read_text().strip()
    assert f"verified: 1203 records of {ORIGIN}" in result.stdout
    assert f"root {expected_root()}" in result.stdout
    assert f"2 checkpoints signed by {key}" in result.stdout
    assert "kept outside" in result.stderr
    assert "kept outside" not in result.stdout


def test_verify_as_json(folder: Path) -> None:
    found = invoke_json("verify", "--deep")
    assert found == {
        "verified": True,
        "origin": ORIGIN,
        "size": 1_203,
        "root": expected_root(),
        "key": (folder / PUBLIC_FILE).read_text().strip(),
        "checkpoints": 2,
        "unsigned": 0,
        "contents": 0,
        "external_size": None,
    }


def test_where_the_journal_is_can_be_said_in_three_ways(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "bedplate.toml"
    file.write_text(f'[journal]\npath = "{folder}"\n')
    for option in (
        ["--config", str(file)],
        ["--data-dir", str(folder.parent)],
        ["--data-dir", str(folder)],
    ):
        assert invoke_json("verify", *option)["size"] == 1_203
    error = failure("verify", "--config", str(file), "--data-dir", str(folder))
    assert isinstance(error, ConfigError)


def test_verify_fails_on_any_change(folder: Path) -> None:
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        database.execute("UPDATE record SET tenant = 'wealth' WHERE seq = 700")
    assert isinstance(failure("verify"), ChainBroken)


def test_verify_against_a_checkpoint_and_key_from_outside(folder: Path, tmp_path: Path) -> None:
    outside, key = tmp_path / "outside", tmp_path / "key"
    assert invoke("checkpoint", "--out", str(outside)).exit_code == 0
    shutil.copy(folder / PUBLIC_FILE, key)
    found = invoke_json("verify", "--checkpoint", str(outside), "--key", str(key))
    assert found["external_size"] == 1_203
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        database.execute("DELETE FROM record WHERE seq > 2")
        database.execute("DELETE FROM checkpoint WHERE size > 3")
    assert invoke("verify").exit_code == 0
    assert isinstance(failure("verify", "--checkpoint", str(outside)), Truncated)
    assert isinstance(failure("verify", "--checkpoint", str(tmp_path / "none")), InvalidRequest)


def test_checkpoint_goes_out_while_a_writer_holds_the_journal(folder: Path, tmp_path: Path) -> None:
    with Journal.open(folder, origin=ORIGIN) as journal:
        journal.append(records(1_000, start=1_203))
        out = tmp_path / "checkpoint"
        out.write_text("an older one")
        result = invoke("checkpoint", "--out", str(out))
        assert result.exit_code == 0
        assert "2203 records" in result.stdout
        assert out.read_bytes() == journal.checkpoint()
        assert invoke("checkpoint").stdout.encode() == journal.checkpoint()
        found = invoke_json("checkpoint")
        assert (found["size"], found["note"].encode()) == (2_203, journal.checkpoint())
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_checkpoint_of_an_empty_journal_says_so(folder: Path, tmp_path: Path) -> None:
    with Journal.open(tmp_path / "empty", origin=ORIGIN):
        error = failure("checkpoint", "--data-dir", str(tmp_path / "empty"))
    assert "no checkpoint yet" in error.message


@pytest.mark.parametrize("seq", [0, 2, 700, 1_202])
def test_a_proof_can_be_checked_by_the_page_alone(seq: int) -> None:
    found = invoke_json("proof", str(seq))
    made = records(1_203)
    leaves = [naive.leaf(naive.canonical(record._asdict())) for record in made]
    assert found["record"].encode() == naive.canonical(made[seq]._asdict())
    assert base64.b64decode(found["leaf"]) == leaves[seq]
    assert [base64.b64decode(p) for p in found["proof"]] == naive.inclusion(seq, leaves)
    assert found["checkpoint"].split("\n")[2] == expected_root()


@pytest.mark.parametrize("seq", ["1203", "99999"])
def test_a_proof_needs_a_covered_record(seq: str) -> None:
    assert "covers 1203 records" in failure("proof", seq).message


def test_a_proof_of_a_changed_record_is_refused(folder: Path) -> None:
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        database.execute("UPDATE record SET tenant = 'wealth' WHERE seq = 700")
    assert "does not match" in failure("proof", "700").message


def test_without_a_journal_the_place_is_named(tmp_path: Path) -> None:
    error = failure("verify", "--data-dir", str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in error.message


def said(folder: Path) -> list[Content]:
    """Add contents of two sessions, one of which two tenants have."""
    owners = [("fraud", "s-a"), ("fraud", "s-a"), ("fraud", "s-b"), ("wealth", "s-b")]
    kept = [
        Content(content_hash(b"secret %d" % at), tenant, session, b"secret %d" % at)
        for at, (tenant, session) in enumerate(owners)
    ]
    with Journal.open(folder, origin=ORIGIN) as journal:
        journal.append([citing(1_203 + at, content) for at, content in enumerate(kept)], kept)
    return kept


def test_erase_takes_one_session_and_leaves_a_note_of_who_did(folder: Path) -> None:
    kept = said(folder)
    found = invoke_json("erase", "--session", "s-a")
    uid = os.getuid()
    assert found == {
        "tenant": "fraud",
        "session": "s-a",
        "erased": 2,
        "record": 1_207,
        "uid": uid,
        "user": pwd.getpwuid(uid).pw_name,
    }
    with Reader(folder) as reader:
        stored = [reader.content(content.hash) for content in kept]
        note = next(reader.read(1_207))
    assert stored == [None, None, b"secret 2", b"secret 3"]
    assert (note.kind, note.tenant, note.session) == ("operator", "fraud", "s-a")
    assert note.body == {"verb": "erase", "uid": uid, "user": found["user"], "contents": 2}
    assert b"secret 0" not in (folder / DATABASE_FILE).read_bytes()
    assert invoke_json("verify", "--deep")["contents"] == 2


def test_erase_asks_which_tenant_where_several_have_the_id(folder: Path) -> None:
    kept = said(folder)
    assert "fraud, wealth; say which" in failure("erase", "--session", "s-b").message
    result = invoke("erase", "--session", "s-b", "--tenant", "wealth")
    assert result.exit_code == 0
    assert result.stdout == "erased 1 contents of session s-b of wealth; record 1207 says who did\n"
    with Reader(folder) as reader:
        assert [reader.content(content.hash) for content in kept[2:]] == [b"secret 2", None]


def name_sessions(folder: Path, **names: str) -> None:
    with Journal.open(folder, origin=ORIGIN) as journal:
        for session, name in names.items():
            seq, time_ns = journal.next_seq, journal.last_time_ns
            session = session.replace("_", "-")
            journal.append([Record(seq, time_ns, "recognised", "fraud", session, {"name": name})])


def test_erase_takes_a_name_that_one_session_had(folder: Path) -> None:
    said(folder)
    name_sessions(folder, s_a="case-1", s_b="case-2", s_c="case-3")
    assert "holds no contents" in failure("erase", "--session", "case-3").message
    foreign = failure("erase", "--session", "case-1", "--tenant", "wealth")
    assert "holds no contents" in foreign.message
    for name, session, count in (("case-1", "s-a", 2), ("case-2", "s-b", 1)):
        found = invoke_json("erase", "--session", name)
        assert (found["tenant"], found["session"], found["erased"]) == ("fraud", session, count)


def test_erase_asks_for_the_id_where_several_sessions_had_the_name(folder: Path) -> None:
    said(folder)
    name_sessions(folder, s_a="case-1", s_b="case-1")
    error = failure("erase", "--session", "case-1")
    assert "several sessions were named 'case-1': s-a of fraud, s-b of fraud" in error.message


@pytest.mark.parametrize(
    "arguments", [("--session", "s-9"), ("--session", ""), ("--session", "s-a", "--tenant", "x")]
)
def test_erase_of_what_is_not_there_writes_nothing(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    said(folder)
    snapshot = Content(content_hash(b"state"), "", "", b"state")
    with Journal.open(folder, origin=ORIGIN) as journal:
        journal.append([citing(1_207, snapshot)], [snapshot])
    error = failure("erase", *arguments)
    assert isinstance(error, InvalidRequest)
    assert "holds no contents" in error.message
    assert invoke_json("verify")["contents"] == 5
    assert invoke_json("verify")["size"] == 1_208


def test_erase_is_refused_while_the_service_writes(folder: Path) -> None:
    said(folder)
    with Journal.open(folder, origin=ORIGIN):
        error = failure("erase", "--session", "s-a")
        assert f"is being written by process {os.getpid()}; stop it first" in error.message
    assert invoke_json("verify")["contents"] == 4
