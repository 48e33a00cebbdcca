"""The compiled modules are those of this source, and decide as the source does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bedplate
from bedplate import compiled
from bedplate.core import base
from tools.compile import has_compiler, is_fresh, sources

ROOT = Path(__file__).parents[3]

SCRIPT = """\
import hashlib, json
import bedplate
from bedplate.core import base
from bedplate.core.snapshot import restore, snapshot
from tests.unit.twin.mixed_run import outcome

kept = []

def heard(core, now_ns, event, actions):
    if core.seq % 100 == 0:
        saved = snapshot(core)
        assert snapshot(restore(saved)) == saved
        kept.append(json.dumps(saved))

digest = outcome(5, heard).digest
snapshots = hashlib.sha256("".join(kept).encode()).hexdigest()
print(json.dumps([bedplate.COMPILED, base.__file__[-3:], digest, len(kept), snapshots]))
"""


def run(form: str) -> list[object]:
    """Run the same load in a process of its own; return its form and what it did."""
    environment = {
        **os.environ,
        "BEDPLATE_COMPILED": form,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[object] = json.loads(done.stdout)
    return found


def fresh() -> None:
    """Skip where nothing can be compiled, or a source was edited since."""
    if not has_compiler():
        pytest.skip("no C compiler with Python's headers on this machine")
    if (compiled.folder() / compiled.MANIFEST).exists() and not is_fresh(compiled.folder()):
        pytest.skip("a source was edited since `make env` compiled it: the source runs")


def test_what_was_compiled_is_what_runs() -> None:
    fresh()
    assert run("1")[:2] == [True, ".so"]
    assert (os.environ.get("BEDPLATE_COMPILED") != "0") == bedplate.COMPILED
    assert Path(base.__file__).suffix == (".so" if bedplate.COMPILED else ".py")


def test_both_forms_take_the_same_decisions_and_snapshots() -> None:
    fresh()
    one, other = run("1"), run("0")
    assert one[:2] == [True, ".so"]
    assert other[:2] == [False, ".py"]
    assert one[2:] == other[2:]
    assert one[3] != 0, "snapshots were taken"


def test_an_edited_source_is_what_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = list(sys.meta_path)
    monkeypatch.delenv("BEDPLATE_COMPILED", raising=False)
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path)
    manifest = {"fingerprint": "of another text", "sources": sources(), "modules": {}}
    (tmp_path / compiled.MANIFEST).write_text(json.dumps(manifest))
    assert not compiled.use()
    assert sys.meta_path == found


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"fingerprint": 1, "sources": ["none.py"]}']
)
def test_a_broken_manifest_is_no_reason_to_fail(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("BEDPLATE_COMPILED", raising=False)
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path)
    (tmp_path / compiled.MANIFEST).write_text(text)
    assert not compiled.use()
