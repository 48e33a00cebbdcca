from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.repository import ROOT

pytestmark = pytest.mark.quality

COMMANDS = ("awk", "bash", "cat", "dirname", "rm", "tail", "tee", "touch")


def run_env(tmp_path: Path, python3: str) -> subprocess.CompletedProcess[str]:
    """Run tools/env.sh in an empty repository where `python3` is this bash script."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "env.sh", tmp_path / "tools")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for command in COMMANDS:
        found = shutil.which(command)
        assert found, command
        (binaries / command).symlink_to(found)
    script = binaries / "python3"
    script.write_text(f"#!{binaries}/bash\n{python3}\n")
    script.chmod(0o755)
    return subprocess.run(
        [tmp_path / "tools" / "env.sh"],
        env={"PATH": str(binaries)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_old_python_is_named(tmp_path: Path) -> None:
    result = run_env(tmp_path, '[ "$1" = --version ] && echo Python 3.9.1 && exit 0\nexit 1')
    assert result.returncode == 1
    assert "needs Python 3.11 or newer; found: Python 3.9.1" in result.stderr


def test_a_python_that_cannot_build_environments_is_named(tmp_path: Path) -> None:
    without = '[[ "$*" == *ensurepip* || "$*" == *"import pip"* ]] && exit 1\n'
    result = run_env(tmp_path, without + f'exec "{sys.executable}" "$@"')
    assert result.returncode == 1
    assert "apt install python3-venv" in result.stderr
    assert not (tmp_path / ".venv").exists()


def write_venv(tmp_path: Path, install: str) -> None:
    """Make a .venv whose pip does only this."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    bash = tmp_path / "bin" / "bash"
    python.write_text(f'#!{bash}\nif [ "$3" = install ]; then {install}; fi\nexit 0\n')
    python.chmod(0o755)


def test_a_failed_install_shows_its_log_and_leaves_no_stamp(tmp_path: Path) -> None:
    write_venv(tmp_path, "echo Collecting x; echo ERROR: no x; exit 1")
    result = run_env(tmp_path, "exit 1")
    assert result.returncode == 1
    assert "ERROR: no x\nThe install failed. The whole log is in .venv/install.log" in result.stderr
    assert not (tmp_path / ".venv" / ".stamp").exists()


def test_an_install_shows_its_progress_and_leaves_the_stamp(tmp_path: Path) -> None:
    collect = "for i in {1..60}; do echo Collecting x; done"
    write_venv(tmp_path, f"{collect}; echo Installing collected packages: x")
    result = run_env(tmp_path, "exit 1")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1:] == ["  25 steps", "  50 steps", "  installing"]
    assert (tmp_path / ".venv" / ".stamp").exists()
