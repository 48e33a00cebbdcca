"""Calibration of real cards with the tiny model, and of llama.cpp's own server as an endpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bedplate.cli.calibrate as command
from bedplate.config.engines import OpenaiEngine
from bedplate.engines.llamacpp.engine import LlamaCppEngine
from bedplate.engines.openai import OpenAIEngine
from bedplate.perf.profile import Batching, LinearCost
from bedplate.perf.profile_file import read
from bedplate.pool import KvPool
from bedplate.runtime.calibration import Rules, Settings, calibrate
from tests.fakes.card_engine import settings_for
from tests.integration.test_openai_engine_llamacpp import served

pytest.importorskip("xllamacpp")

CONFIG = """
[[engine]]
kind = "llamacpp"
name = "small"
model = "tiny"
path = "{path}"
kv_tokens = 4096
"""
SHORT = Settings(cards=2, seconds=3.0, seed=1, command="test")


async def test_cards_are_measured_and_left_as_they_were(tiny_model: Path, tmp_path: Path) -> None:
    pool = KvPool.open(
        tmp_path / "pool", name="tiny", size_bytes_max=1 << 30, fallback=tmp_path / "disk"
    )
    settings = settings_for(tiny_model, tmp_path / "data", kv_tokens=4096)
    engine = LlamaCppEngine(settings, pool)
    shares: list[float] = []
    rules = Rules(Batching(token_budget=128, order="slot"), 4, stalls=True, shared_cache=True)
    result = await calibrate(engine, pool, rules, SHORT, progress=shares.append)
    assert pool.used_bytes == 0
    assert not list((tmp_path / "data" / "cards").glob("*.json"))
    pool.close()
    profile = result.profile
    assert (profile.kv, profile.can_cut, profile.slots) == ("full", True, 4)
    assert profile.batching == rules.batching
    assert profile.store.stalls
    assert profile.load.base_ns + profile.load.byte_ns > 0
    assert profile.begin_ns >= 0.0
    step = profile.step
    assert isinstance(step, LinearCost)
    assert 0 < step.fixed_ns(0, 1) < 1e9
    assert 0 < step.fixed_ns(128, 0) < 10e9
    errors = result.errors.model_dump()
    assert all(errors[kind]["points"] > 1 for kind in ("prefill", "decode", "store", "load"))
    assert result.calibration.rounds >= 1
    assert 0 < min(shares) <= max(shares) <= 1.0


async def test_an_endpoint_is_measured_by_its_stream(tiny_model: Path) -> None:
    async with served(tiny_model) as (case, _):
        assert isinstance(case.engine, OpenAIEngine)
        section = case.engine._settings
        assert isinstance(section, OpenaiEngine)
        section = section.model_copy(
            update={"slots": 2, "running_max": 2, "kv_tokens": 2048, "context_tokens": 1024}
        )
        engine = OpenAIEngine(section, probe_interval_s=0.1)
        rules = Rules(None, 2, stalls=False, shared_cache=False)
        settings = replace(SHORT, cards=1, seconds=2.0)
        result = await calibrate(engine, None, rules, settings, progress=lambda share: None)
    assert result.profile.kv == "hints"
    assert result.errors.store is None
    assert result.errors.prefill is not None
    assert result.profile.batching.token_budget >= 16
    assert any("was measured" in note for note in result.calibration.notes)


def test_the_command_writes_a_profile_and_prints_it(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUICK_SECONDS", 2.0)
    out = tmp_path / "card.toml"
    config = tmp_path / "bedplate.toml"
    config.write_text(CONFIG.format(path=tiny_model))
    arguments = ["--config", str(config), "--quick", "--cards", "1", "--out", str(out), "--json"]
    result = CliRunner().invoke(command.app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    found = read(out)
    assert found.calibration is not None
    assert found.calibration.cards == 1
    assert found.errors is not None
    assert printed["profile"]["name"] == found.profile.name == "small"
    assert printed["profile"]["model"] == "tiny"
    assert printed["profile"]["step"]["prompt_ns"] == getattr(found.profile.step, "prompt_ns", None)
    assert set(printed["error"]) == set(found.errors.model_dump(exclude_none=True))
