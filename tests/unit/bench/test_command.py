"""The command with a small bench in the place of the real ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import bedplate
import bench.__main__ as command
from bench.harness import registry, results
from bench.harness.claims import Measured, Spec
from bench.harness.run import Bench, BenchError, Part, Run


def measure_good(run: Run) -> Mapping[str, Measured]:
    run.figure("beside", "12 (11 to 13)")
    run.rounds["good"] = [1, 2]
    run.config["good"] = {"quick": run.quick}
    (run.scratch / "log").write_text("x")
    return {"speed": Measured(10.0, 2, "nothing"), "delay_ms": Measured(9.0, 2)}


def measure_bad(run: Run) -> Mapping[str, Measured]:
    raise BenchError("wrong answers")


GOOD = Part(
    "good",
    (Spec("speed", "1/s", ">= 5", "fast"), Spec("delay_ms", "ms", "<= 8", "slow")),
    measure_good,
)
BAD = Part("bad", (Spec("other", "1/s", ">= 1", "fails"),), measure_bad)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sample = Bench("sample", "for tests", (BAD, GOOD), seeds=(7,))
    monkeypatch.setattr(registry, "NAMES", ("sample",))
    monkeypatch.setattr(registry, "load", {"sample": sample}.__getitem__)
    real = results.write
    monkeypatch.setattr(
        results, "write", lambda run, done: real(run, done, results=tmp_path / "results")
    )
    return tmp_path


def run(folder: Path, *arguments: str) -> int:
    return command.main(["run", "sample", "--cache", str(folder / "cache"), *arguments])


def test_a_missed_target_is_no_failure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--part", "good") == 0
    out = capsys.readouterr().out
    assert "speed" in out
    assert "NO" in out
    assert "12 (11 to 13)" in out


def test_the_json_form_is_exact(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--part", "good", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "bench": "sample",
        "claims": [
            {
                "name": "speed",
                "value": 10.0,
                "unit": "1/s",
                "target": ">= 5",
                "holds": True,
                "n": 2,
                "against": "nothing",
            },
            {
                "name": "delay_ms",
                "value": 9.0,
                "unit": "ms",
                "target": "<= 8",
                "holds": False,
                "n": 2,
                "against": "",
            },
        ],
    }


def test_a_part_that_fails_is_named_and_the_others_are_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--json") == 1
    captured = capsys.readouterr()
    assert [claim["name"] for claim in json.loads(captured.out)["claims"]] == ["speed", "delay_ms"]
    assert "part bad was not measured: BenchError: wrong answers" in captured.err


def test_results_say_what_was_measured_and_how(folder: Path) -> None:
    assert run(folder, "--quick") == 1
    (found,) = (folder / "results").iterdir()
    commit = results.commit_of(results.ROOT)
    assert found.name.startswith("sample-")
    assert found.name.endswith(f"-{commit.id[:10]}-quick")
    meta = json.loads((found / "meta.json").read_text())
    assert meta["schema"] == results.SCHEMA
    assert (meta["commit"], meta["quick"], meta["seeds"]) == (commit.id, True, [7])
    assert isinstance(meta["dirty"], bool)
    assert meta["config"] == {"good": {"quick": True}}
    assert set(meta["part_seconds"]) == {"good", "bad"}
    assert meta["hardware"]["cores"] >= 1
    assert meta["versions"]["python"].startswith("3.")
    assert meta["compiled"] == bedplate.COMPILED
    assert meta["command"].startswith("python -m bench")
    summary = json.loads((found / "summary.json").read_text())
    assert [claim["name"] for claim in summary["claims"]] == ["speed", "delay_ms"]
    assert summary["figures"] == [{"name": "beside", "text": "12 (11 to 13)"}]
    assert summary["failures"] == {"bad": "BenchError: wrong answers"}
    assert json.loads((found / "rounds.json").read_text()) == {"good": [1, 2]}


def test_scratch_is_removed_unless_it_is_kept(folder: Path) -> None:
    run(folder, "--part", "good")
    assert list((folder / "cache").iterdir()) == []
    run(folder, "--part", "good", "--keep")
    (kept,) = (folder / "cache").iterdir()
    assert (kept / "log").exists()


def test_unknown_names_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--part", "nope") == command.USER_ERROR
    assert "there is: bad, good" in capsys.readouterr().err


def test_list_shows_every_claim(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == [
        "sample:",
        "other",
        "speed",
        "delay_ms",
    ]


def test_all_runs_every_bench_with_a_document_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "all", "--part", "good", "--json", "--cache", str(folder / "cache")]
    assert command.main(arguments) == 0
    assert [json.loads(line)["bench"] for line in capsys.readouterr().out.splitlines()] == [
        "sample"
    ]
