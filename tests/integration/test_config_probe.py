"""`config check --probe` finds endpoints that could not serve, as the service does at its start."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from bedplate.cli.config import app
from bedplate.errors import ConfigError
from tests.fakes.openai_engine import FakeEngine, ThreadedEngine
from tests.integration.served import endpoint


def test_each_endpoint_that_cannot_serve_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bedplate.toml"
    with ThreadedEngine(FakeEngine()) as url:
        good = endpoint(url)
        file.write_text(good, encoding="utf-8")
        words = ["check", str(file), "--data-dir", str(tmp_path), "--probe"]
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.stdout[:6]) == (0, "valid:")
        other = endpoint(url, name="b", served="m").replace('"fake"\nurl', '"none"\nurl')
        gone = endpoint("http://127.0.0.1:9", name="c", served="n")
        file.write_text(good + other + gone, encoding="utf-8")
        assert CliRunner().invoke(app, words[:-1]).exit_code == 0, "nobody is asked without it"
        done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ConfigError)
    lines = done.exception.message.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{file}: engine[1]: b does not serve none but ")
    assert lines[1].startswith(f"{file}: engine[2]: c takes no connection")
