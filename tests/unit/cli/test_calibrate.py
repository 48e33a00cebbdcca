"""What `bedplate calibrate` would measure; that it measures is in the integration tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli.calibrate import _config, _Endpoint, _only, app
from bedplate.config import Config
from bedplate.config.engines import LlamacppEngine, OpenaiEngine
from bedplate.errors import ConfigError, InvalidRequest

GENERIC = _Endpoint("generic", None)
TWO = """
[[engine]]
kind = "llamacpp"
name = "small"
model = "a"
path = "a.gguf"
cards = 3

[[engine]]
kind = "openai"
name = "far"
model = "b"
urls = ["http://one/v1", "http://two/v1", "http://three/v1"]
"""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BEDPLATE_CONFIG", raising=False)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def two(tmp_path: Path) -> Config:
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    return _config(path, None, None, GENERIC, folder=tmp_path)


def test_the_default_is_the_first_engine_of_the_configuration(tmp_path: Path) -> None:
    config = _only(_config(None, None, None, GENERIC, folder=tmp_path), None, None, tmp_path)
    (engine,) = config.engines
    assert engine == LlamacppEngine()
    assert config.service.data_dir == tmp_path / "data"
    assert config.pool.path is None


def test_a_model_file_runs_on_embedded_cards(tmp_path: Path) -> None:
    config = _config(None, str(tmp_path / "my-model.gguf"), None, GENERIC, folder=tmp_path)
    (engine,) = config.engines
    assert isinstance(engine, LlamacppEngine)
    assert (engine.model, engine.path) == ("my-model", str(tmp_path / "my-model.gguf"))


def test_an_endpoint_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "secret")
    endpoint = _Endpoint("vllm", "FAR_KEY")
    config = _config(None, "org/model", "http://far:8000/v1", endpoint, folder=tmp_path)
    (engine,) = _only(config, None, None, tmp_path).engines
    assert isinstance(engine, OpenaiEngine)
    assert (engine.model, engine.url, engine.server) == ("org/model", "http://far:8000/v1", "vllm")
    assert engine.api_key is not None
    assert "secret" not in (tmp_path / "calibrate.toml").read_text()


def test_embedded_cards_together_and_one_endpoint_for_all(tmp_path: Path) -> None:
    config = two(tmp_path)
    assert _only(config, None, None, tmp_path).engines[0].card_names == (
        "small-0",
        "small-1",
        "small-2",
    )
    assert _only(config, "small", 1, tmp_path).engines[0].card_names == ("small-0",)
    assert _only(config, "far", None, tmp_path).engines[0].card_names == ("far-0",)
    assert _only(config, "far", 2, tmp_path).engines[0].card_names == ("far-0", "far-1")


def test_an_engine_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no engine 'fra'; known: small, far"):
        _only(two(tmp_path), "fra", None, tmp_path)
    with pytest.raises(InvalidRequest, match="has 3 cards, not 4"):
        _only(two(tmp_path), "far", 4, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "http://far/v1"], "--url needs --model"),
        (["--model", "x.gguf", "--config", "two.toml"], "not both"),
        (["--model", "x.gguf", "--engine", "other"], "no engine 'other'"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], said: str) -> None:
    result = invoke(*arguments)
    assert isinstance(result.exception, InvalidRequest)
    assert said in result.exception.message


def test_a_server_that_is_not_known_is_refused_by_its_key() -> None:
    result = invoke("--url", "http://far/v1", "--model", "m", "--server", "vlm")
    assert isinstance(result.exception, ConfigError)
    assert "server" in result.exception.message


def test_a_model_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = invoke("--model", str(tmp_path / "none.gguf"), "--quick")
    assert isinstance(result.exception, ConfigError)
    assert "none.gguf" in result.exception.message
