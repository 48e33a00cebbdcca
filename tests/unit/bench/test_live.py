"""The embedded base that benches start: its configuration is one that the service takes."""

from __future__ import annotations

from pathlib import Path

from bedplate.config.engines import LlamacppEngine
from bedplate.config.load import load
from bedplate.config.tree import Config
from bench.harness.run import Run
from bench.live import fidelity
from bench.live.base import MODEL, Embedded, model_file
from bench.schedule import variants
from bench.schedule.subjects import Bedplate
from tests.fakes.tiny_gguf import Shape


def read(base: Embedded, folder: Path) -> tuple[Config, LlamacppEngine]:
    path = folder / "bedplate.toml"
    path.write_text(base.config_text(folder, 4321))
    config = load(path, environment={})
    (engine,) = config.engines
    assert isinstance(engine, LlamacppEngine)
    return config, engine


def run_in(folder: Path) -> Run:
    """Return a run whose models are there already, though nobody could load them."""
    for name in ("random-4x512x4096.gguf", "words-8x512x4096.gguf"):
        path = folder / "live" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    return Run(False, True, folder, folder, (1,))


def test_a_base_says_what_it_is_and_the_service_reads_it(tmp_path: Path) -> None:
    base = Embedded(
        tmp_path / "m.gguf",
        {"slots": 3, "kv_tokens": 1_024, "heartbeat_seconds": 0.5},
        cards=1,
        pool_bytes="2GiB",
        pool=tmp_path / "shared",
        more='[[tenant]]\nid = "a"\nreserve_tokens = 512\n',
    )
    config, engine = read(base, tmp_path)
    assert (engine.model, engine.cards, engine.slots, engine.kv_tokens) == (MODEL, 1, 3, 1_024)
    assert engine.heartbeat_seconds == 0.5
    assert (config.service.port, config.pool.size_bytes) == (4321, 2 << 30)
    assert config.pool.path == tmp_path / "shared" / "pool"
    assert [tenant.id for tenant in config.tenants] == ["a"]


def test_the_bases_of_both_benches_are_read(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    config, engine = read(fidelity.base_of(run), tmp_path)
    assert (engine.slots, engine.running_max, engine.cards) == (16, 2, 2)
    assert config.pool.path == tmp_path / "pool"
    subject = variants.subject("bedplate:slots=6,prompt_streams=2", 4_096)
    assert isinstance(subject, Bedplate)
    config, engine = read(subject.embedded(run, tmp_path / "shared"), tmp_path)
    assert (engine.slots, engine.prompt_streams, engine.kv_tokens) == (6, 2, 4_096)
    assert (engine.batch_tokens, config.pool.path) == (64, tmp_path / "shared" / "pool")


def test_a_model_is_written_once_and_is_named_by_its_shape(tmp_path: Path) -> None:
    run = Run(False, True, tmp_path, tmp_path, (1,))
    path = model_file(run, Shape())
    assert path.name == "random-2x64x2048.gguf"
    made = path.stat()
    assert made.st_size > 0
    assert model_file(run, Shape()).stat().st_mtime_ns == made.st_mtime_ns
    assert model_file(run, Shape(whole_words=True)).name == "words-2x64x2048.gguf"
