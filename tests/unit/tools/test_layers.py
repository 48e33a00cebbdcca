from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.repository import ROOT

pytestmark = [pytest.mark.quality, pytest.mark.timeout(300)]

LAYERS = [
    "cli",
    "gateway",
    "runtime",
    "twin",
    "replay",
    "engines",
    "metering",
    "pool",
    "journal",
    "perf",
    "config",
    "core",
    "compiled",
    "errors",
]


def lint_imports(source: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(source)!r}); "
    program += "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def sample(tmp_path: Path, imports: dict[str, str]) -> Path:
    package = tmp_path / "bedplate"
    for name in ("", *LAYERS):
        (package / name).mkdir()
        text = f"import bedplate.{imports[name]}\n" if name in imports else ""
        (package / name / "__init__.py").write_text(text)
    return tmp_path


def test_imports_point_down() -> None:
    result = lint_imports(ROOT / "src", ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_an_import_downwards_passes(tmp_path: Path) -> None:
    result = lint_imports(sample(tmp_path, {"gateway": "core", "cli": "errors"}), tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("importer", "imported"),
    [("core", "config"), ("errors", "core"), ("runtime", "gateway"), ("pool", "journal")],
)
def test_an_import_upwards_or_sideways_fails(tmp_path: Path, importer: str, imported: str) -> None:
    result = lint_imports(sample(tmp_path, {importer: imported}), tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"bedplate.{importer} -> bedplate.{imported}" in result.stdout.replace("\n", " ")


def test_a_package_without_a_layer_fails(tmp_path: Path) -> None:
    folder = sample(tmp_path, {})
    (folder / "bedplate" / "utils").mkdir()
    (folder / "bedplate" / "utils" / "__init__.py").write_text("")
    result = lint_imports(folder, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "bedplate.utils" in result.stdout
