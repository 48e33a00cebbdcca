from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.harness import registry
from bench.harness.results import ROOT

README = ROOT / "bench" / "README.md"


@pytest.mark.parametrize("name", registry.NAMES)
def test_a_bench_bears_its_name_and_its_claims_are_unique(name: str) -> None:
    bench = registry.load(name)
    assert bench.name == name
    assert "\n" not in bench.summary
    names = [spec.name for spec in bench.specs]
    assert len(names) == len(set(names)) > 0
    parts = [part.name for part in bench.parts]
    assert len(parts) == len(set(parts))


def test_every_file_of_a_bench_is_registered() -> None:
    files = {path.stem.replace("_", "-") for path in (ROOT / "bench" / "benches").glob("[!_]*.py")}
    assert files == set(registry.NAMES)


def test_an_unknown_bench_is_told_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match="there is: spine"):
        registry.load("no_such_bench")


def test_spine_claims_what_the_project_claims() -> None:
    assert {spec.name: spec.target for spec in registry.load("spine").specs} == {
        "kv_load_vs_prefill": ">= 400",
        "gateway_rps": ">= 500",
        "gateway_first_byte_p50_ms": "<= 1.5",
        "gateway_first_byte_p99_ms": "<= 8",
        "core_events": ">= 30000",
        "journal_append": ">= 50000",
        "journal_verify": ">= 250000",
        "idle_session_kb": "<= 12",
    }


def test_every_claim_is_documented_with_its_target() -> None:
    text = README.read_text(encoding="utf-8")
    for name in registry.NAMES:
        bench = registry.load(name)
        assert f"## {name}" in text
        for spec in bench.specs:
            relation, bound = spec.target.split()
            shown = {">=": "≥", "<=": "≤"}[relation] + f" {float(bound):,g}"
            assert f"| `{spec.name}` | {shown} {spec.unit} |" in text, spec.name


def test_the_command_lists_without_starting_anything(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "list"],
        cwd=ROOT,
        env={"PYTHONPATH": "src", "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "gateway_rps" in done.stdout
    assert list(tmp_path.iterdir()) == []
