"""A service from a configuration: what stops it before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bedplate.config import load
from bedplate.errors import JournalBusy
from bedplate.journal import Journal
from bedplate.runtime.build import build_service


def test_a_second_service_is_told_of_another_folder(tmp_path: Path) -> None:
    config = load(overrides={"service.data_dir": tmp_path}, environment={})
    with (
        Journal.open(config.journal_dir, origin="bedplate/x"),
        pytest.raises(JournalBusy, match="stop it first, or serve another folder with --data-dir"),
    ):
        build_service(config)
