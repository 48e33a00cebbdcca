from __future__ import annotations

import base64
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli.audit import app
from bedplate.errors import BedplateError, ChainBroken, ConfigError, InvalidRequest, Truncated
from bedplate.journal import Journal
from bedplate.journal.keys import PUBLIC_FILE
from bedplate.journal.storage import DATABASE_FILE
from tests.conformance import naive_journal as naive
from tests.unit.journal.builders import ORIGIN, records, written


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
