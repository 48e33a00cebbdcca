from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli.key import app, duration_ns
from bedplate.config import load
from bedplate.errors import ConfigError, NotAuthenticated
from bedplate.gateway.keys import Credential, KeyStore

DAY_NS = 86_400 * 10**9


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BEDPLATE_CONFIG", raising=False)
    monkeypatch.setenv("BEDPLATE_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def invoke_json(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def authenticate(secret: str, *, later_ns: int = 0) -> Credential:
    with KeyStore(load().keys_path) as store:
        return store.authenticate(secret, time.time_ns() + later_ns)


def test_add_prints_the_secret_once_and_stores_none_of_it(data: Path) -> None:
    result = invoke("add", "--tenant", "fraud", "--lane", "shared", "--lane", "interactive")
    assert result.exit_code == 0
    secret = result.stdout.strip()
    credential = authenticate(secret)
    assert (credential.tenant, credential.lanes, credential.models) == ("fraud", (1, 0), ())
    assert not credential.admin
    assert result.output.count(secret) == 1
    assert secret not in invoke("list").output
    tail = secret.rsplit("_", 1)[1]
    for path in data.iterdir():
        assert tail.encode() not in path.read_bytes()
        assert bytes.fromhex(tail) not in path.read_bytes()
    assert data.stat().st_mode & 0o077 == 0


def test_add_with_all_options() -> None:
    key = invoke_json(
        "add", "--tenant", "a", "--model", "m", "--model", "n", "--label", "ci", "--expires", "90d",
        "--admin",
    )  # fmt: skip
    credential = authenticate(key["secret"])
    assert credential.key_id == key["key_id"]
    assert credential.lanes == (0, 1, 2)
    assert credential.models == ("m", "n")
    assert credential.admin
    assert abs(credential.expires_ns - time.time_ns() - 90 * DAY_NS) < DAY_NS
    with pytest.raises(NotAuthenticated):
        authenticate(key["secret"], later_ns=91 * DAY_NS)


def test_list_shows_state_and_limits() -> None:
    assert invoke_json("list") == {"keys": []}
    assert "bedplate key add" in invoke("list").output
    key = invoke_json("add", "--tenant", "a", "--lane", "batch", "--label", "ci")
    row = invoke_json("list")["keys"][0]
    assert (row["key_id"], row["tenant"], row["label"]) == (key["key_id"], "a", "ci")
    assert (row["lanes"], row["state"], row["expires"]) == (["batch"], "valid", None)
    table = invoke("list").output
    assert key["key_id"] in table
    assert "batch" in table


def test_revoke_ends_a_key() -> None:
    key = invoke_json("add", "--tenant", "a")
    assert invoke_json("revoke", key["key_id"]) == {"key_id": key["key_id"], "done": "revoked"}
    with pytest.raises(NotAuthenticated):
        authenticate(key["secret"])
    assert invoke_json("list")["keys"][0]["state"] == "revoked"
    result = invoke("revoke", "ffffffffffff")
    assert isinstance(result.exception, ConfigError)


def test_rotate_gives_a_new_secret_and_ends_the_old_one_after_the_grace() -> None:
    key = invoke_json("add", "--tenant", "a")
    new = invoke_json("rotate", key["key_id"], "--grace", "10m")
    assert new["secret"] != key["secret"]
    assert authenticate(new["secret"]).key_id == authenticate(key["secret"]).key_id
    with pytest.raises(NotAuthenticated):
        authenticate(key["secret"], later_ns=DAY_NS)
    assert authenticate(new["secret"], later_ns=DAY_NS).tenant == "a"
    newest = invoke_json("rotate", key["key_id"], "--grace", "0")
    with pytest.raises(NotAuthenticated):
        authenticate(new["secret"])
    assert authenticate(newest["secret"]).tenant == "a"


def test_expire_sets_and_clears_the_end() -> None:
    key = invoke_json("add", "--tenant", "a")
    invoke_json("expire", key["key_id"], "--in", "1h")
    with pytest.raises(NotAuthenticated):
        authenticate(key["secret"], later_ns=DAY_NS)
    invoke_json("expire", key["key_id"], "--in", "never")
    assert authenticate(key["secret"], later_ns=DAY_NS).expires_ns == 0
    for now in ("0", "0s"):
        invoke_json("expire", key["key_id"], "--in", "never")
        invoke_json("expire", key["key_id"], "--in", now)
        with pytest.raises(NotAuthenticated):
            authenticate(key["secret"])


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("15m", 900), ("12h", 43_200), ("90d", 7_776_000)]
)
def test_durations(text: str, seconds: int) -> None:
    assert duration_ns(text) == seconds * 10**9


@pytest.mark.parametrize("text", ["", "0d", "-1d", "1", "d", "1w", "1.5h", "1d1h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration"):
        duration_ns(text)


def test_an_unknown_lane_is_refused() -> None:
    assert invoke("add", "--tenant", "a", "--lane", "express").exit_code == 2


def test_commands_find_the_keys_of_a_data_folder(tmp_path: Path) -> None:
    folder = ("--data-dir", str(tmp_path / "other"))
    key = invoke_json("add", "--tenant", "a", *folder)["key_id"]
    assert invoke_json("list") == {"keys": []}
    assert [row["key_id"] for row in invoke_json("list", *folder)["keys"]] == [key]
    for command in (("rotate",), ("expire", "--in", "1h"), ("revoke",)):
        invoke_json(*command, key, *folder)
    with KeyStore(tmp_path / "other" / load().keys_path.name) as store:
        assert [info.state(time.time_ns()) for info in store.list()] == ["revoked"]


def test_a_name_that_the_configuration_does_not_know_is_noted(tmp_path: Path) -> None:
    assert invoke("add", "--tenant", "anyone").stderr.count("Note") == 0  # no tenant has a section
    file = tmp_path / "bedplate.toml"
    file.write_text('[[tenant]]\nid = "fraud"\n')
    result = invoke("add", "--tenant", "fruad", "--model", "gpt", "--config", str(file))
    assert result.exit_code == 0
    assert "the configuration has no tenant 'fruad'" in result.stderr
    assert "no engine serves the model 'gpt'; there is: gemma-3-270m" in result.stderr
    result = invoke(
        "add", "--tenant", "fraud", "--model", "gemma-3-270m", "--config", str(file), "--json"
    )
    assert "Note" not in result.stderr


def test_expire_says_that_an_expired_key_works_again() -> None:
    key = invoke_json("add", "--tenant", "a")["key_id"]
    assert "works again" not in invoke("expire", key, "--in", "never").stdout
    with KeyStore(load().keys_path) as store:
        store.expire(key, at_ns=time.time_ns() - 1)
    assert "it had expired and works again" in invoke("expire", key, "--in", "never").stdout


def test_keys_need_no_secret_of_an_endpoint(tmp_path: Path) -> None:
    file = tmp_path / "bedplate.toml"
    file.write_text(
        '[[engine]]\nkind = "openai"\nname = "e"\nmodel = "m"\nurl = "http://127.0.0.1:1"\n'
        'api_key_env = "NOT_SET_IN_TESTS"\n'
    )
    assert invoke_json("list", "--config", str(file)) == {"keys": []}
