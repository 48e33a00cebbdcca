"""Packaged models: joined once, shared by data directories, and only when they are right."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from bedplate.engines.llamacpp.packages import Licence, Package, packaged_file
from bedplate.engines.llamacpp.settings import Settings
from bedplate.errors import ConfigError

PARTS = (b"GGUF" + bytes(3_000_000), b"weights" * 1000)
CONTENT = b"".join(PARTS)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Install a package of two parts."""
    for index, part in enumerate(PARTS):
        module = tmp_path / "site" / f"some_model_part{index}"
        (module / "data").mkdir(parents=True)
        (module / "__init__.py").write_text("")
        (module / "data" / f"m.part{index}").write_bytes(part)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return Package(
        module="some_model_part0",
        parts=tuple((f"some_model_part{index}", f"m.part{index}") for index in range(2)),
        digest=hashlib.sha256(CONTENT).hexdigest(),
        licence=Licence("x", "https://example.org"),
    )


def settings(tmp_path: Path, data: str, *, cache: str | None = "cache") -> Settings:
    return Settings(
        name="e",
        model="m",
        path="package:x",
        data_dir=tmp_path / data,
        cache_dir=tmp_path / cache if cache else None,
    )


def test_data_directories_share_one_file(package: Package, tmp_path: Path) -> None:
    first = packaged_file(package, settings(tmp_path, "a"))
    made = first.stat()
    second = packaged_file(package, settings(tmp_path, "b"))
    assert first == second == tmp_path / "cache" / "models" / f"{package.digest}.gguf"
    assert (second.stat().st_ino, second.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    assert first.read_bytes() == CONTENT
    assert not list(tmp_path.glob("[ab]/**/*.gguf"))


def test_many_at_once_join_it_once(package: Package, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        wants = [settings(tmp_path, str(index)) for index in range(8)]
        found = set(threads.map(lambda want: packaged_file(package, want), wants))
    assert len(found) == 1
    assert found.pop().read_bytes() == CONTENT
    files = {path.name for path in (tmp_path / "cache" / "models").iterdir()}
    assert files == {f"{package.digest}.gguf", "digests.json", "lock"}


def test_what_a_killed_process_left_is_no_obstacle(package: Package, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    (folder / f"{package.digest}.new").write_bytes(b"half" * 2_000_000)
    assert packaged_file(package, settings(tmp_path, "a")).read_bytes() == CONTENT
    assert not list(folder.glob("*.new"))


def test_a_damaged_file_is_made_again(package: Package, tmp_path: Path) -> None:
    file = packaged_file(package, settings(tmp_path, "a"))
    file.write_bytes(CONTENT[:-1])
    assert packaged_file(package, settings(tmp_path, "a")).read_bytes() == CONTENT


@pytest.mark.parametrize("cache", ["a-file/below", None])
def test_without_a_cache_the_data_directory_has_it(
    package: Package, tmp_path: Path, cache: str | None
) -> None:
    (tmp_path / "a-file").write_text("")
    file = packaged_file(package, settings(tmp_path, "a", cache=cache))
    assert file.parent == tmp_path / "a" / "models"
    assert file.read_bytes() == CONTENT


def test_nowhere_to_write_is_said(package: Package, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        packaged_file(package, settings(tmp_path, "a", cache=None))


def test_changed_parts_are_refused_and_leave_nothing(package: Package, tmp_path: Path) -> None:
    (tmp_path / "site" / "some_model_part1" / "data" / "m.part1").write_bytes(b"other")
    with pytest.raises(ConfigError, match="install it again"):
        packaged_file(package, settings(tmp_path, "a"))
    assert {path.name for path in (tmp_path / "cache" / "models").iterdir()} == {"lock"}


def test_a_missing_package_is_named(package: Package, tmp_path: Path) -> None:
    absent = replace(package, parts=(*package.parts, ("no_such_model", "m.part2")))
    with pytest.raises(ConfigError, match="pip install some-model-part0"):
        packaged_file(absent, settings(tmp_path, "a"))
