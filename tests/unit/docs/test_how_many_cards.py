"""What the page on how many cards one needs asks a reader to type works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bedplate.cli.sim import app
from tools.repository import ROOT

pytestmark = pytest.mark.quality

PAGE = (ROOT / "docs" / "how-to" / "how-many-cards.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (text,) = [text for found, text in blocks if found == kind]
    return str(text)


def test_its_loop_and_its_reading_fit_together(tmp_path: Path) -> None:
    """With the load cut down to a few sessions, and one run in place of five."""
    command = re.search(r"bedplate sim (.*?) > cards-\$count\.json", block("sh"), re.DOTALL)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " ").replace("$count", "4"))
    done = CliRunner().invoke(app, [*words, "--set", "workload.sessions_max=8"])
    assert done.exit_code == 0, done.output + repr(done.exception)
    counts = re.findall(r"\d+", block("sh").splitlines()[0])
    for count in counts:
        (tmp_path / f"cards-{count}.json").write_text(done.stdout, encoding="utf-8")
    read = subprocess.run(
        [sys.executable, "-c", block("python")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    shown = block("")
    assert read.stdout.splitlines()[0] == shown.splitlines()[0]
    assert [line.split()[0] for line in read.stdout.splitlines()[1:]] == counts
    assert [line.split()[0] for line in shown.splitlines()[1:]] == counts
