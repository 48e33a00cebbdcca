"""Limits that match nobody do not start (F07)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bedplate.cli.serve import check_tenants
from bedplate.config.tree import Config
from bedplate.errors import ConfigError
from bedplate.gateway.keys import KeyStore


def config(*tenants: str) -> Config:
    return Config.model_validate({"tenant": tuple({"id": name} for name in tenants)})


def test_failures_f07_a_limit_that_matches_nobody_fails_at_load(tmp_path: Path) -> None:
    """F07: the message names the place, the name, the nearest one, and what to do."""
    with KeyStore(tmp_path / "keys.db") as keys:
        keys.add("fraud", now_ns=1)
        keys.add("risk", now_ns=1)
        with pytest.raises(ConfigError) as caught:
            check_tenants(config("risk", "fruad"), keys)
        for words in ('tenant[1].id: no key names "fruad"', 'is "fraud"', "key add --tenant fruad"):
            assert words in caught.value.message
        check_tenants(config("risk", "fraud"), keys)


def test_a_tenant_whose_key_was_revoked_may_keep_its_section(tmp_path: Path) -> None:
    with KeyStore(tmp_path / "keys.db") as keys:
        key = keys.add("fraud", now_ns=1)
        keys.revoke(key.key_id, now_ns=2)
        check_tenants(config("fraud"), keys)


def test_before_the_first_key_nothing_is_compared(tmp_path: Path) -> None:
    with KeyStore(tmp_path / "keys.db") as keys:
        check_tenants(config("anyone"), keys)
