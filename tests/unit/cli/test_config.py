from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli.config import app
from bedplate.config import load

FILE = """
[service]
port = 9000
[[engine]]
kind = "llamacpp"
[[engine]]
kind = "openai"
name = "e"
model = "m"
url = "http://127.0.0.1:1/v1"
api_key_env = "TEST_ENGINE_KEY"
capabilities = { tools = true }
[pool]
size_bytes = "1GiB"
[[tenant]]
id = "a"
running_max = 2
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BEDPLATE_CONFIG", raising=False)
    monkeypatch.setenv("TEST_ENGINE_KEY", "sk-very-secret")
    path = tmp_path / "bedplate.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_check_says_what_is_valid(file: Path) -> None:
    result = invoke("check", file)
    assert result.exit_code == 0
    assert result.stdout.startswith("valid: 2 engines with 3 cards, models ")
    assert "1 tenant with limits of its own" in result.stdout
    assert result.stdout.endswith(f"\nRead: configuration {file}.\n")
    document = json.loads(invoke("check", file, "--json").stdout)
    assert document == {
        "valid": True,
        "file": str(file),
        "engines": 2,
        "cards": 3,
        "models": ["gemma-3-270m", "m"],
        "tenants": 1,
    }


def test_a_file_that_lies_there_unread_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a typing error in it goes unnoticed: nothing of it is in force."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BEDPLATE_CONFIG", raising=False)
    said = invoke("check", "--data-dir", tmp_path).stdout
    assert said.endswith("\nRead: no configuration file, so the defaults.\n")
    (tmp_path / "bedplate.toml").write_text("[srevice]\n", encoding="utf-8")
    said = invoke("check", "--data-dir", tmp_path).stdout
    assert said.endswith("; bedplate.toml is read with --config bedplate.toml.\n")
    assert json.loads(invoke("check", "--json", "--data-dir", tmp_path).stdout)["file"] is None
    monkeypatch.setenv("BEDPLATE_CONFIG", "bedplate.toml")
    assert "srevice" in str(invoke("check").exception)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[engine]]\nkind='llamacpp'\npath='a.gguf'", "engine[0].path: there is no file"),
        (
            "[[engine]]\nkind='llamacpp'\npath='package:no-such-model'",
            "engine[0].path: the package no-such-model is not installed",
        ),
        ("[service]\ntls_cert='c'\ntls_key='k'", "service.tls_cert: there is no file"),
        (
            "[[engine]]\nkind='openai'\nname='e'\nmodel='m'\nurl='https://h/v1'\ntls_ca='ca'",
            "engine[0].tls_ca: there is no file",
        ),
    ],
)
def test_check_finds_what_is_not_there(file: Path, text: str, expected: str) -> None:
    file.write_text(text, encoding="utf-8")
    result = invoke("check", file)
    assert result.exit_code != 0
    assert str(result.exception).startswith(f"{file}: {expected}")


def test_check_reads_the_first_bytes_of_a_model_file(file: Path) -> None:
    model = file.parent / "a.gguf"
    file.write_text("[[engine]]\nkind='llamacpp'\ncards=1\npath='a.gguf'", encoding="utf-8")
    for data in (b"", b"GGM", b"PK\3\4 more"):
        model.write_bytes(data)
        error = invoke("check", file).exception
        assert str(error) == f"{file}: engine[0].path: {model} is no GGUF file"
    model.write_bytes(b"GGUF\3\0\0\0")
    assert invoke("check", file).stdout.startswith("valid: 1 engine with 1 card, model gemma")


def test_show_prints_a_file_that_loads_to_the_same_tree(file: Path, tmp_path: Path) -> None:
    shown = invoke("show", file).stdout
    assert "very-secret" not in shown
    assert "# api_key = ********  (read from the environment)" in shown
    again = tmp_path / "elsewhere" / "shown.toml"
    again.parent.mkdir()
    again.write_text(shown, encoding="utf-8")
    assert load(again) == load(file)
    assert tomllib.loads(shown)["pool"]["size_bytes"] == 1 << 30


def test_show_json_masks_the_secret(file: Path) -> None:
    output = invoke("show", file, "--json").stdout
    assert "very-secret" not in output
    tree = json.loads(output)
    assert tree["engine"][1]["api_key"] == "********"
    assert "api_key" not in tree["engine"][0]
    assert tree["service"]["port"] == 9000


def test_the_file_goes_with_and_without_the_option(file: Path) -> None:
    for option in ("-c", "--config"):
        assert (
            invoke("check", option, file, "--json").stdout == invoke("check", file, "--json").stdout
        )
        assert invoke("show", option, file).stdout == invoke("show", file).stdout
    assert "not both" in str(invoke("check", file, "-c", file).exception)


def test_only_check_needs_the_secret(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_ENGINE_KEY")
    assert "TEST_ENGINE_KEY is not set" in str(invoke("check", file).exception)
    shown = invoke("show", file)
    assert shown.exit_code == 0
    assert "# api_key  (TEST_ENGINE_KEY is not set)" in shown.stdout
    assert json.loads(invoke("show", file, "--json").stdout)["engine"][1]["api_key"] is None


def test_show_takes_a_data_folder(file: Path, tmp_path: Path) -> None:
    tree = json.loads(invoke("show", file, "--data-dir", tmp_path / "d", "--json").stdout)
    assert tree["service"]["data_dir"] == str(tmp_path / "d")
