from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from bench.harness.results import Commit, commit_of, folder_name, hardware


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_commit_is_dirty_for_changed_and_for_new_files_but_not_for_results(
    tmp_path: Path,
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    clean = commit_of(tmp_path)
    assert len(clean.id) == 40
    assert not clean.dirty
    results = tmp_path / "bench" / "results" / "one"
    results.mkdir(parents=True)
    (results / "meta.json").write_text("{}")
    assert commit_of(tmp_path) == clean
    (tmp_path / "new.py").write_text("")
    assert commit_of(tmp_path).dirty
    (tmp_path / "new.py").unlink()
    (tmp_path / "code.py").write_text("a = 2\n")
    assert commit_of(tmp_path).dirty


def test_what_is_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == Commit("none", dirty=True)


def test_a_folder_is_named_by_bench_date_and_commit() -> None:
    when = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    commit = Commit("0123456789abcdef", dirty=False)
    assert folder_name("spine", commit, when, quick=False) == "spine-20260304-050607-0123456789"
    assert folder_name("spine", commit, when, quick=True).endswith("-quick")


def test_hardware_names_the_file_system_of_a_folder(tmp_path: Path) -> None:
    found = hardware(tmp_path)
    assert isinstance(found["journal_file_system"], str)
    assert hardware(Path("/proc"))["journal_file_system"] == "proc"
