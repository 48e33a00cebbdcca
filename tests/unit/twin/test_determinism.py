"""The same seed gives the same digest and the same figures in any process, under any hash seed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.twin.mixed_run import print_of

ROOT = Path(__file__).parents[3]


def digest_in(python: str, hash_seed: str) -> str:
    """Return the hash of all that must agree, as another process finds it.

    The core and the twin need nothing but the standard library, so a bare interpreter will do.
    """
    script = (
        "import hashlib; from tests.unit.twin.mixed_run import print_of;"
        "print(hashlib.sha256(print_of(5).encode()).hexdigest())"
    )
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    done = subprocess.run(
        [python, "-c", script],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_another_process_with_another_hash_seed_comes_to_the_same() -> None:
    assert digest_in(sys.executable, "0") == digest_in(sys.executable, "12345")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_python_at_hand_comes_to_the_same(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    assert digest_in(python, "7") == digest_in(sys.executable, "7")


def interpreter(version: str) -> str | None:
    """Return a Python of this version that runs: on the path, or kept by pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in sorted(kept.glob(f"{version}.*/bin/python"))]
    for python in filter(None, (shutil.which(f"python{version}"), *found)):
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python  # a version manager's stub is on the path and does not run
    return None


def test_another_seed_draws_other_tails() -> None:
    assert print_of(5) != print_of(6)
