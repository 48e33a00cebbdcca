"""What cannot serve is refused before anything starts, by `config check` as by `serve` (F07)."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bedplate.cli.main import application
from bedplate.cli.preflight import preflight, tenant_faults
from bedplate.config import load
from bedplate.config.tree import Config
from bedplate.errors import ConfigError
from bedplate.gateway.keys import KeyStore


def config(*tenants: str) -> Config:
    return Config.model_validate({"tenant": tuple({"id": name} for name in tenants)})


def test_failures_f07_a_limit_that_matches_nobody_is_a_fault(tmp_path: Path) -> None:
    """F07: the message names the place, the name, the nearest one, and what to do."""
    with KeyStore(tmp_path / "keys.db") as keys:
        keys.add("fraud", now_ns=1)
        keys.add("risk", now_ns=1)
        (fault,) = tenant_faults(config("risk", "fruad"), keys)
        for words in ('tenant[1].id: no key names "fruad"', 'is "fraud"', "key add --tenant fruad"):
            assert words in fault
        assert tenant_faults(config("risk", "fraud"), keys) == []


def test_a_tenant_whose_key_was_revoked_may_keep_its_section(tmp_path: Path) -> None:
    with KeyStore(tmp_path / "keys.db") as keys:
        key = keys.add("fraud", now_ns=1)
        keys.revoke(key.key_id, now_ns=2)
        assert tenant_faults(config("fraud"), keys) == []


def test_before_the_first_key_nothing_is_compared(tmp_path: Path) -> None:
    with KeyStore(tmp_path / "keys.db") as keys:
        assert tenant_faults(config("anyone"), keys) == []


def test_nothing_is_made_where_there_are_no_keys_yet(tmp_path: Path) -> None:
    found = load(None, overrides={"service.data_dir": tmp_path / "data"})
    preflight(found, None)
    assert not (tmp_path / "data").exists()


def test_check_refuses_what_serve_refuses(tmp_path: Path) -> None:
    """Every fault has a line of its own, with the file and the key; both commands say the same."""
    file = tmp_path / "bedplate.toml"
    file.write_text(
        '[[engine]]\nkind = "llamacpp"\npath = "none.gguf"\n[[tenant]]\nid = "fruad"\n',
        encoding="utf-8",
    )
    with KeyStore(tmp_path / "keys.db") as keys:
        keys.add("fraud", now_ns=1)
    loaded = load(file, overrides={"service.data_dir": tmp_path})
    with pytest.raises(ConfigError) as caught:
        preflight(loaded, file, tmp_path)
    lines = caught.value.message.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [str(file), "engine[0].path"],
        [str(file), "tenant[0].id"],
    ]
    assert f"key add --tenant fruad --config {file} --data-dir {tmp_path}`" in lines[1]
    for words in (["config", "check", str(file)], ["serve", "--config", str(file)]):
        done = CliRunner().invoke(application([words[0]]), [*words, "--data-dir", str(tmp_path)])
        assert done.exit_code != 0
        assert isinstance(done.exception, ConfigError)
        assert done.exception.message == caught.value.message
