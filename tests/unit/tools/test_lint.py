from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.repository import CODE_FOLDERS, ROOT

pytestmark = [pytest.mark.quality, pytest.mark.timeout(300)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_ruff_finds_nothing() -> None:
    result = run("ruff", "check", *(f for f in CODE_FOLDERS if (ROOT / f).is_dir()))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_code_is_formatted() -> None:
    result = run("ruff", "format", "--check", *(f for f in CODE_FOLDERS if (ROOT / f).is_dir()))
    assert result.returncode == 0, result.stdout + result.stderr


def test_mypy_finds_nothing() -> None:
    result = run("mypy")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("BLE001", "try:\n    f()\nexcept Exception:\n    g()\n"),
        ("S110", "try:\n    f()\nexcept ValueError:\n    pass\n"),
        ("E722", "try:\n    f()\nexcept:\n    raise\n"),
        ("T201", "print(1)\n"),
        ("F401", "import os\n"),
        ("D103", "def f() -> None: ...\n"),
    ],
)
def test_ruff_bites(tmp_path: Path, rule: str, source: str) -> None:
    path = tmp_path / "sample.py"
    path.write_text(source)
    result = run("ruff", "check", "--no-cache", f"--config={ROOT / 'pyproject.toml'}", str(path))
    assert result.returncode == 1, result.stdout + result.stderr
    assert rule in result.stdout


def test_ruff_format_bites(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("x=1\n")
    result = run("ruff", "format", "--check", f"--config={ROOT / 'pyproject.toml'}", str(path))
    assert result.returncode == 1, result.stdout + result.stderr


def test_mypy_bites(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("def f(x): return x\n\ndef g() -> int:\n    return 'a'\n")
    result = run(
        "mypy", f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={tmp_path}", str(path)
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "no-untyped-def" in result.stdout
    assert "return-value" in result.stdout
