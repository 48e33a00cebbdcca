from __future__ import annotations

import re
from pathlib import Path

import pytest

from bedplate.config import load
from bedplate.config.explain import keys
from tools.config_reference import TARGET, page
from tools.repository import ROOT

pytestmark = pytest.mark.quality


def test_the_page_is_what_the_tree_says() -> None:
    assert TARGET.read_text(encoding="utf-8") == page(), "run: make docs"


def test_every_key_is_on_the_page() -> None:
    documented = set(
        re.findall(r"^\| `(\w+)` \|", TARGET.read_text(encoding="utf-8"), re.MULTILINE)
    )
    names = {key.path.rsplit(".", 1)[1] for key in keys()}
    assert len(names) > 60
    assert documented == names


def test_every_key_has_a_description() -> None:
    assert [key.path for key in keys() if not key.field.description] == []


def test_the_example_loads(tmp_path: Path) -> None:
    example = TARGET.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    path = tmp_path / "example.toml"
    path.write_text(example, encoding="utf-8")
    config = load(path, environment={"VLLM_KEY": "k"})
    assert [engine.kind for engine in config.engines] == ["llamacpp", "openai"]
    assert config.pool.size_bytes == 4 << 30


def test_only_the_loader_reads_the_environment() -> None:
    """And what decides, before anything is loaded, whether compiled modules are."""
    reads = re.compile(r"os\.environ|os\.getenv|\bgetenv\(|\benviron\b")
    allowed = {ROOT / "src/bedplate/config/load.py", ROOT / "src/bedplate/compiled.py"}
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "src").rglob("*.py"))
        if path not in allowed and reads.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
