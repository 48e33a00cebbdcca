from __future__ import annotations

from pathlib import Path

import pytest

from tools.repository import tracked
from tools.tracked import faults

pytestmark = pytest.mark.quality


def found_in(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "sample.txt"
    path.write_text(text, encoding="utf-8")
    return list(faults([path], root=tmp_path))


def test_the_repository_names_no_registry_and_no_machine_path() -> None:
    paths = tracked()
    assert any(path.name == "pyproject.toml" for path in paths)
    assert list(faults(paths)) == []


@pytest.mark.parametrize(
    "pieces",
    [
        ("https://py", "pi.org/simple"),
        ("https://py", "pi.some-mirror.example/simple"),
        ("https://files.python", "hosted.org/packages"),
        ("https://registry.", "npmjs.org/uplot"),
        ("https://static.", "crates.io/crates"),
        ("https://proxy.", "golang.org"),
        ("pip install --index", "-url X"),
        ("pip install --extra-index", "-url X"),
        ("pip install --find", "-links X"),
    ],
)
def test_a_registry_is_found(tmp_path: Path, pieces: tuple[str, str]) -> None:
    found = found_in(tmp_path, "first\n" + "".join(pieces))
    assert len(found) == 1
    assert found[0].startswith("sample.txt:2: names a package registry: ")


@pytest.mark.parametrize("folder", ["work", "root", "home/ann", "Users/ann", "opt/wheels"])
@pytest.mark.parametrize("before", ["", '"', "=", "cd "])
def test_a_machine_path_is_found(tmp_path: Path, folder: str, before: str) -> None:
    found = found_in(tmp_path, f"{before}/{folder}/x")
    assert len(found) == 1
    assert found[0].startswith("sample.txt:1: names a path of one machine: ")


@pytest.mark.parametrize(
    "text",
    [
        "src/work/x.py and ./root/x and " + "/".join(("~", "work", "x")),
        "https://example.com/work/x",
        "/tmp/x /dev/shm/x /var/lib/bedplate /etc/bedplate.toml",
        "orjson==3.0",
        "pip install -c constraints.txt",
    ],
)
def test_what_is_free_of_both_passes(tmp_path: Path, text: str) -> None:
    assert found_in(tmp_path, text) == []
