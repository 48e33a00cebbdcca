from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli.bill import app
from bedplate.cli.output import amount
from bedplate.errors import InvalidRequest
from bedplate.journal import Journal
from tests.unit.metering.builders import Log, settled


def log() -> Log:
    made = Log(step_ns=3_600 * 10**9)
    made.prices()
    made.card_up()
    for number, (tenant, lane) in enumerate((("fraud", 0), ("wealth", 2), ("fraud", 1))):
        turn = f"t-{number}"
        made.arrived(turn, tenant=tenant, lane=lane, session=f"s-{tenant}")
        made.ended(700, 500, 32, turn)
        made.usage(settled(turn, tenant=tenant, lane=lane, session=f"s-{tenant}"))
    made.report(2_100, 1_500, 96)
    made.report(2_100, 1_500, 96)
    return made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BEDPLATE_CONFIG", raising=False)
    monkeypatch.setenv("BEDPLATE_DATA_DIR", str(tmp_path / "data"))
    return store(tmp_path / "data" / "journal", log())


def store(folder: Path, made: Log) -> Path:
    with Journal.open(folder, origin="cell-1") as journal:
        journal.append(made.records)
    return folder


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def invoke_json(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_a_bill_by_tenant_with_its_total() -> None:
    """200 × 2 + 500 × 0.2 + 32 × 8 = 756 micro a turn."""
    result = invoke()
    assert result.exit_code == 0
    rows = {row[0]: row for row in lines(result.stdout)}
    assert rows["fraud"][1:6] == ["2", "0", "400", "1000", "64"]
    assert rows["fraud"][-2:] == ["0.001512", "CNY"]
    assert rows["wealth"][-2:] == ["0.000756", "CNY"]
    assert rows["total"][-2:] == ["0.002268", "CNY"]


def test_a_bill_as_json() -> None:
    found = invoke_json("--by", "tenant", "--by", "lane", "--tenant", "fraud")
    assert found["by"] == ["tenant", "lane"]
    assert [(line["tenant"], line["lane"]) for line in found["lines"]] == [
        ("fraud", "interactive"),
        ("fraud", "shared"),
    ]
    (total,) = found["totals"]
    assert total["cost_micro"]["total"] == 1_512
    assert sum(line["cost_micro"]["total"] for line in found["lines"]) == 1_512
    assert (total["turns"], total["out_tokens"], total["currency"]) == (2, 64, "CNY")
    assert found["check"] is None


def test_a_bill_by_session_tells_the_names_that_clients_gave(tmp_path: Path) -> None:
    """The journal knows a session by its id; who asks for the bill knows the name."""
    made = log()
    made.add("recognised", {"name": "case-99"}, tenant="fraud", session="s-fraud")
    made.add("recognised", {"name": ""}, tenant="wealth", session="s-wealth")
    store(tmp_path / "named" / "journal", made)
    found = invoke_json("--by", "session", "--data-dir", str(tmp_path / "named"))
    told = [(line["session"], line["session_name"]) for line in found["lines"]]
    assert told == [("s-fraud", "case-99"), ("s-wealth", "")]
    text = invoke("--by", "session", "--data-dir", str(tmp_path / "named")).stdout
    assert [line[:3] for line in lines(text)][::2][:2] == [
        ["session", "name", "turns"],
        ["s-fraud", "case-99", "2"],
    ]
    assert "name" not in invoke("--by", "session").stdout


def test_a_period_and_a_zone() -> None:
    """Rows stand at 02:13, 05:13 and 08:13 UTC of 2023-11-15, that is from 10:13 in Shanghai."""
    assert (
        invoke_json("--from", "2023-11-15T05:00", "--to", "2023-11-15T08:00")["totals"][0]["turns"]
        == 1
    )
    assert (
        invoke_json("--from", "2023-11-15T13:00", "--zone", "Asia/Shanghai")["totals"][0]["turns"]
        == 2
    )
    assert invoke_json("--from", "2023-11-15T13:00+08:00")["totals"][0]["turns"] == 2
    assert [line["day"] for line in invoke_json("--by", "day")["lines"]] == ["2023-11-15"]
    result = invoke("--to", "2023-11-15")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No usage in this period." in result.stderr
    assert "No usage of tenant 'nope' in" in invoke("--tenant", "nope").stderr


@pytest.mark.parametrize(
    "arguments", [["--from", "yesterday"], ["--zone", "Mars/Olympus"], ["--zone", "../x"]]
)
def test_times_that_cannot_be_read_are_refused(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert isinstance(result.exception, InvalidRequest)


def test_an_unknown_grouping_is_refused() -> None:
    assert invoke("--by", "team").exit_code == 2


def test_a_check_that_agrees() -> None:
    result = invoke("--check")
    assert result.exit_code == 0
    assert "checked 3 turns: 2196 tokens metered" in result.stdout
    assert result.stdout.rstrip().endswith("unexplained tokens: 0")
    check = invoke_json("--check")["check"]
    assert (check["unexplained_tokens"], check["issues"]) == (0, [])
    assert check["cards"][0]["counted"] == {"prompt": 2_100, "cached": 1_500, "out": 96}


def test_a_check_that_does_not_agree_says_which_and_fails(tmp_path: Path) -> None:
    made = log()
    made.usage(settled("t-1", tenant="wealth", lane=2, session="s-wealth"))
    made.report(2_150, 1_500, 96)
    made.report(2_150, 1_500, 96)
    other = store(tmp_path / "other", made)
    result = invoke("--check", "--data-dir", str(other))
    assert result.exit_code == 1
    assert "double row of turn t-1" in result.stdout
    told = "card-0 counted 50 prompt tokens more than are billed; unexplained: 50"
    assert told in result.stdout
    assert result.stdout.rstrip().endswith("unexplained tokens: 782")
    as_json = invoke("--check", "--json", "--data-dir", str(other))
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["check"]["unexplained_tokens"] == 782


def test_a_check_while_a_turn_runs_names_it(tmp_path: Path) -> None:
    made = log()
    made.arrived("t-run", prompt_tokens=900)
    made.started("t-run")
    made.report(2_110, 1_500, 97)
    result = invoke("--check", "--data-dir", str(store(tmp_path / "other", made)))
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    told = "card-0 counted 10 prompt tokens, 1 output token more than are billed"
    assert f"{told}: turn t-run still runs" in lines
    assert "1 turn still runs" in lines


def test_amounts_keep_all_six_digits() -> None:
    assert [amount(n) for n in (0, 1, 999_999, 1_000_000, 12_345_678_900)] == [
        "0.000000",
        "0.000001",
        "0.999999",
        "1.000000",
        "12345.678900",
    ]
