from __future__ import annotations

import re

import pytest

from tools.constraints import TARGET, declared, pinned

pytestmark = pytest.mark.quality


def test_every_version_that_is_needed_is_pinned_and_no_other() -> None:
    lines = TARGET.read_text(encoding="ascii").splitlines()
    assert lines == pinned(declared(extras=True)), "run: make constraints"


def test_lines_are_plain() -> None:
    lines = TARGET.read_text(encoding="ascii").splitlines()
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][\w.!+]*", line)] == []


def test_what_is_required_by_the_required_is_pinned_too() -> None:
    names = {line.split("==")[0] for line in pinned(["httpx"])}
    assert {"httpx", "httpcore", "h11", "anyio"} <= names
    assert "h2" not in names  # only with httpx[http2]


def test_a_package_that_is_not_installed_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no-such-package"):
        pinned(["no-such-package"])
