"""Files that scenarios name, written for a test."""

from __future__ import annotations

from pathlib import Path

from bedplate.perf.profile import Batching, CardProfile, LinearCost, MoveCost
from bedplate.perf.profile_file import dump

SCENARIO = """\
name = "small"

[[cards]]
name = "box"
count = 2
profile = "card.toml"

[pool]
size_bytes = "1GiB"
bytes_per_second = "10GB"

[workload]
file = "load.jsonl"
"""

LOAD = """\
{"bedplate_workload":1,"name":"load","source":"by hand"}
{"key":"a","tenant":"t","lane":"interactive","kind":"","start_ns":0,"spawn":null,\
"turns":[[0,"",-1,300,20,0],[1000000000,"look",-1,100,20,0]]}
{"key":"b","tenant":"u","lane":"batch","kind":"","start_ns":500000000,"spawn":null,\
"turns":[[0,"",-1,200,30,0]]}
{"key":"c","tenant":"u","lane":"batch","kind":"","start_ns":4000000000,"spawn":null,\
"turns":[[0,"",-1,200,30,0]]}
"""


def card_profile(model: str = "m") -> CardProfile:
    """A card with round figures: 10 ms a step and 1 ms a prompt token more."""
    return CardProfile(
        name="card",
        model=model,
        evidence="measured",
        kv="full",
        can_cut=True,
        slots=4,
        running_max=2,
        kv_tokens=4_096,
        context_tokens=4_096,
        kv_bytes_per_token=1_000,
        batching=Batching(token_budget=128),
        step=LinearCost(10e6, 0.0, 1e6, 0.0, 0.0, 0.0),
        store=MoveCost(1e6, 0.1, stalls=False),
        load=MoveCost(1e6, 0.1, stalls=False),
    )


def write_scenario(folder: Path, text: str = SCENARIO) -> Path:
    """Write a scenario with the card and the load that it names; return its path."""
    dump(card_profile(), folder / "card.toml")
    (folder / "load.jsonl").write_text(LOAD, encoding="utf-8")
    path = folder / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return path
