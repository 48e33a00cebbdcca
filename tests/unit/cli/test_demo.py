"""What the demonstration says of itself."""

from __future__ import annotations

from bedplate.cli.demo import DURATION
from tools.repository import ROOT


def test_the_readme_and_the_screen_name_the_same_time() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"the demo {DURATION} more" in readme
    assert DURATION == "two to three minutes", "README.zh-CN.md says it in its own words"
    assert "演示还要两三分钟" in (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
