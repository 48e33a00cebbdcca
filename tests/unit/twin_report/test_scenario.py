from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from bedplate.config import load
from bedplate.errors import ConfigError, InvalidRequest
from bedplate.perf.links import link, links
from bedplate.twin.faults import (
    NEVER,
    CardLost,
    CardSlow,
    GatewayRestarted,
    LinkLost,
    LinkSlow,
    PartitionLost,
    ToolSlow,
)
from bedplate.twin.run import PoolSpec, simulate
from bedplate.twin.scenario import Scenario, built_in_scenarios, load_scenario
from bedplate.twin.scenario_faults import TailConfig
from bedplate.twin.transfer import TailSpec
from tests.unit.twin_report.files import SCENARIO, write_scenario

SECOND = 10**9


def read(folder: Path, *more: str, text: str = SCENARIO) -> Scenario:
    return load_scenario(str(write_scenario(folder, text + "\n".join(("", *more)))))


def fails(folder: Path, *more: str, text: str = SCENARIO) -> str:
    with pytest.raises((ConfigError, InvalidRequest)) as caught:
        read(folder, *more, text=text)
    return caught.value.message


def test_what_a_file_says(tmp_path: Path) -> None:
    found = read(tmp_path, "[run]", "seed = 9", "slo_factor = 2.5", "samples = 40")
    assert found.site.name == "small"
    assert [card.id for card in found.site.cards] == ["box-0", "box-1"]
    assert found.site.cards[0].profile.name == "card"
    assert found.site.cards[0].profile is found.site.cards[1].profile
    pool = found.site.pool
    assert (pool.size_bytes, pool.bytes_per_s, pool.base_ns) == (1 << 30, 10e9, 0.0)
    assert found.site.policy.pool_bytes_max == 1 << 30
    assert [session.key for session in found.workload.sessions] == ["a", "b", "c"]
    assert (found.seed, found.slo_factor, found.samples) == (9, 2.5, 40)
    assert found.faults == ()


def test_it_runs(tmp_path: Path) -> None:
    found = read(tmp_path)
    outcome = simulate(found.site, found.workload, seed=found.seed)
    assert [row.status for row in outcome.turns] == ["tool_calls", "stop", "stop", "stop"]


def test_the_policy_is_that_of_a_service_with_the_same_sections(tmp_path: Path) -> None:
    sections = """
[{0}lanes.batch]
queue_max = 7
lease_seconds = 1.5

[{0}defaults]
running_max = 3

[[{0}tenant]]
id = "fraud"
tokens_per_minute = 5_000
"""
    service = tmp_path / "service.toml"
    service.write_text(sections.format(""), encoding="utf-8")
    expected = load(service, environment={}).policy()._replace(pool_bytes_max=1 << 30)
    found = read(tmp_path, sections.format("policy."))
    assert found.site.policy == expected
    assert found.site.policy.lanes[2].queue_max == 7
    taken = read(tmp_path, "[policy]", 'config = "service.toml"')
    assert taken.site.policy == expected


def test_a_trace_and_a_seed_from_outside_win(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, SCENARIO + 'format = "bedplate"\nsessions_max = 1\n')
    other = tmp_path / "azure.csv"
    other.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
        encoding="utf-8",
    )
    found = load_scenario(str(path), trace=other, seed=4)
    assert found.seed == 4
    assert [session.kind for session in found.workload.sessions] == ["azure"]


@pytest.mark.parametrize(("mean_s", "max_s"), [(0.5, 60.0), (10.0, 60.0), (40.0, 50.0)])
def test_the_waits_of_a_tail_have_the_mean_that_is_said(mean_s: float, max_s: float) -> None:
    tail = TailConfig(share=1.0, mean_seconds=mean_s, max_seconds=max_s).spec()
    rng = random.Random(3)
    waits = [tail.draw_ns(rng) for _ in range(100_000)]
    assert math.fsum(waits) / len(waits) == pytest.approx(mean_s * SECOND, rel=0.03)
    assert max(waits) <= max_s * SECOND


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rate_factor = 1e-300", "rate's factor is 1e-300: session b begins"),
        ("rate_factor = 1e-15", "at most 1e+09 s"),
        ("starts_per_second = 1e-300\nrepeat_sessions = 3", "rate of starts is 1e-300"),
        ("until_seconds = 1e-300", "until_seconds leaves no session; the first begins after 0 s"),
    ],
)
def test_what_no_workload_can_be_made_into_is_said_with_its_place(
    tmp_path: Path, change: str, said: str
) -> None:
    message = fails(tmp_path, change)
    assert ".toml: workload: " in message
    assert said in message


def test_what_is_done_to_the_workload(tmp_path: Path) -> None:
    changed = read(tmp_path, "until_seconds = 2.0", "rate_factor = 2.0", "token_factor = 0.5")
    a, b = changed.workload.sessions
    assert (a.start_ns, b.start_ns) == (0, SECOND // 4)
    assert [turn.new_tokens for turn in a.turns] == [150, 50]
    assert a.turns[1].gap_ns == SECOND
    cut = read(tmp_path, "context_tokens_max = 256")
    assert cut.workload.sessions[0].turns[0].new_tokens == 236
    many = read(tmp_path, "repeat_sessions = 7", "starts_per_second = 2.0")
    starts = [session.start_ns for session in many.workload.sessions]
    assert len(starts) == 7
    assert starts == sorted(set(starts))
    dealt = read(
        tmp_path, "[[workload.place]]", 'tenant = "x"', "[[workload.place]]", 'lane = "shared"'
    )
    places = [(session.tenant, session.lane) for session in dealt.workload.sessions]
    assert places == [("x", 0), ("u", 1), ("x", 2)]


def test_a_mix_of_personas(tmp_path: Path) -> None:
    text = SCENARIO.replace(
        'file = "load.jsonl"',
        "[workload.mix]\nshares = { customer_service = 1 }\nsessions_per_hour = 3600\nhours = 0.1",
    )
    found = read(tmp_path, text=text)
    assert {session.kind for session in found.workload.sessions} == {"customer_service"}
    assert 250 < len(found.workload.sessions) < 480  # Poisson with a mean of 360
    again = read(tmp_path, text=text)
    assert again.workload == found.workload


def test_every_kind_of_fault(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "[[fault]]\nkind = 'card_lost'\nat_seconds = 1\ncard = 'box-1'\nsilent_seconds = 0.5",
        "[[fault]]\nkind = 'partition_lost'\nat_seconds = 2\nuntil_seconds = 3\npartition = ''",
        "[[fault]]\nkind = 'card_slow'\nat_seconds = 1\ncard = 'box-0'\nfactor = 3.0",
        "[[fault]]\nkind = 'link_lost'\nat_seconds = 1\nuntil_seconds = 2",
        "[[fault]]\nkind = 'link_slow'\nat_seconds = 1\nfactor = 2.0",
        "tail = { share = 0.1, mean_seconds = 0.2, max_seconds = 5 }",
        "[[fault]]\nkind = 'tool_slow'\nat_seconds = 1\ntool = 'look'\nfactor = 4.0",
        "[[fault]]\nkind = 'gateway_restarted'\nat_seconds = 1\ndown_seconds = 2",
    )
    tail = TailSpec(0.1, 0.2 * 5 / 4.8 * SECOND, 5.0 * SECOND)
    assert found.faults == (
        CardLost(at_ns=SECOND, card="box-1", silent_ns=SECOND // 2),
        PartitionLost(at_ns=2 * SECOND, partition="", back_ns=3 * SECOND),
        CardSlow(at_ns=SECOND, card="box-0", factor=3.0, until_ns=NEVER),
        LinkLost(at_ns=SECOND, partition="", until_ns=2 * SECOND),
        LinkSlow(at_ns=SECOND, partition="", factor=2.0, tail=tail),
        ToolSlow(at_ns=SECOND, factor=4.0, tool="look"),
        GatewayRestarted(at_ns=SECOND, back_ns=3 * SECOND),
    )


def test_a_link_of_the_catalogue_gives_the_pool_its_bandwidth(tmp_path: Path) -> None:
    text = SCENARIO.replace('bytes_per_second = "10GB"', 'link = "NVLink4"')
    one = read(tmp_path, text=text.replace('link = "NVLink4"', 'link = "NVLink4"\nlinks = 1'))
    each = read(tmp_path, text=text)
    assert one.site.pool.bytes_per_s > 1e10
    assert one.site.pool.base_ns > 0
    assert each.site.pool.bytes_per_s == pytest.approx(2 * one.site.pool.bytes_per_s)


def test_a_link_to_a_pool_is_one_of_those_that_the_catalogue_names(tmp_path: Path) -> None:
    def pool(name: str) -> PoolSpec:
        text = SCENARIO.replace('bytes_per_second = "10GB"', f'link = "{name}"\nlinks = 1')
        return read(tmp_path, text=text).site.pool

    known = [name for name, row in links().items() if None not in (row.start_ns, row.gb_per_s)]
    assert "host_memory" in known
    for name in known:
        assert (pool(name).base_ns, pool(name).bytes_per_s) == (
            link(name).alpha_ns,
            link(name).bytes_per_s,
        )
    text = SCENARIO.replace('bytes_per_second = "10GB"', 'link = "ethernet_10G"')
    message = fails(tmp_path, text=text)
    assert 'no link "ethernet_10G", did you mean "ethernet_10g"?' in message
    assert "rdma_roce_100g" in message


def test_without_a_size_there_is_no_pool(tmp_path: Path) -> None:
    text = SCENARIO.replace('[pool]\nsize_bytes = "1GiB"\nbytes_per_second = "10GB"\n', "")
    found = read(tmp_path, text=text)
    assert (found.site.pool.size_bytes, found.site.policy.pool_bytes_max) == (0, 0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("count = 2", "cuont = 2", 'unknown key "cards[0].cuont"; the nearest is "cards.count"'),
        ("[workload]", "[worklaod]", 'unknown key "worklaod"; the nearest is "workload"'),
        ("[pool]", "[policy.lanes.batch]\nlease = 1\n[pool]", '"policy.lanes.batch.lease_seconds"'),
        ("count = 2", "count = 0", "cards[0].count"),
        ("count = 2", 'count = "2"', "cards[0].count"),
        ("name = \"box\"", "name = \"b x\"", "cards[0].name"),
        ("10GB", "10 parrots", "pool.bytes_per_second"),
        ('bytes_per_second = "10GB"', "", "bytes_per_second or link"),
        ('size_bytes = "1GiB"', "", "pool: size_bytes is missing"),
        ('profile = "card.toml"', "", "cards[0]: give profile, or model and card"),
        ('profile = "card.toml"', 'profile = "card.toml"\ntp = 2', "give profile, or tp"),
        ('profile = "card.toml"', 'profile = "none.toml"', "cannot be read"),
        ('profile = "card.toml"', 'profile = "nobody"', "no built-in profile"),
        ('profile = "card.toml"', 'profile = "load.jsonl"', "is not TOML"),
        ('file = "load.jsonl"', "", "give file or mix"),
        ('file = "load.jsonl"', 'file = "none.jsonl"', "cannot be read"),
        ('file = "load.jsonl"', 'file = "card.toml"', "no known workload format"),
        ("[workload]", "[workload]\nrepeat_sessions = 3", "starts_per_second"),
        ("[workload]", "[workload.mix]\nshares = { customer_service = 1 }\n"
         "sessions_per_hour = 1\n[workload]", "not both"),
        ('bytes_per_second = "10GB"', 'link = "x"', 'pool.link: there is no link "x". Links to a'),
        (
            'file = "load.jsonl"',
            "[workload.mix]\nshares = { nobody = 1 }\nsessions_per_hour = 1",
            "workload.mix: no persona 'nobody'",
        ),
        ("[pool]", "[[policy.tenant]]\nid = 'x'\n[[policy.tenant]]\nid = 'x'\n[pool]",
         'tenant.id "x" is used twice'),
        ("[pool]", "[policy]\nconfig = 'none.toml'\n[pool]", "cannot be read"),
        ("[pool]", "[policy]\nconfig = 'x.toml'\nblock_tokens = 16\n[pool]", "not both"),
        ("[pool]", "[[cards]]\nname = 'box'\nprofile = 'card.toml'\n[pool]", "is there twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_by_name(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SCENARIO
    message = fails(tmp_path, text=SCENARIO.replace(old, new, 1))
    assert said in message, message


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "kind = 'card_lost'\nat_seconds = 1\ncard = 'box-7'",
            'fault[0].card "box-7" is no card of the scenario; there are box-0 to box-1',
        ),
        (
            "kind = 'link_lost'\nat_seconds = 1\npartition = 'z'",
            'fault[0].partition "z" has no cards; the partitions are ""',
        ),
        ("kind = 'card_lots'\nat_seconds = 1", 'fault[0].kind: must be "card_lost", '),
        ("kind = 'card_lost'\nat_seconds = 1\ncrad = 'box-0'", 'the nearest is "fault.card"'),
        ("kind = 'tool_slow'\nat_seconds = 5\nuntil_seconds = 5\nfactor = 2.0", "is not after"),
        ("kind = 'tool_slow'\nat_seconds = 5\nfactor = 0", "fault[0].factor"),
        ("at_seconds = 5", "fault[0].kind: must be"),
        ("kind = 'link_slow'\nat_seconds = 5", "fault[0]: it changes nothing without factor or"),
        (
            "kind = 'link_slow'\nat_seconds = 5\ntail = { share = 1, mean_seconds = 60 }",
            "mean_seconds 60 is not below max_seconds 60",
        ),
    ],
)
def test_a_fault_that_cannot_be_is_said_by_name(tmp_path: Path, fault: str, said: str) -> None:
    message = fails(tmp_path, f"[[fault]]\n{fault}")
    assert said in message, message


def test_no_cards(tmp_path: Path) -> None:
    message = fails(tmp_path, text="name = 'none'\n[workload]\nfile = 'load.jsonl'\n")
    assert "cards: is missing" in message
    assert "cards: there are none" in fails(tmp_path, text="cards = []\n")


def test_a_card_that_is_wrong_is_not_said_to_be_missing_too(tmp_path: Path) -> None:
    message = fails(tmp_path, text=SCENARIO.replace("count = 2", "count = 0"))
    assert len(message.splitlines()) == 1


def test_an_empty_workload(tmp_path: Path) -> None:
    write_scenario(tmp_path)
    (tmp_path / "empty.jsonl").write_text(
        '{"bedplate_workload":1,"name":"load","source":"by hand"}\n', encoding="utf-8"
    )
    message = fails(tmp_path, text=SCENARIO.replace("load.jsonl", "empty.jsonl"))
    assert "holds no session" in message
    none = SCENARIO.replace(
        'file = "load.jsonl"',
        "[workload.mix]\nshares = { customer_service = 1 }\nsessions_per_hour = 1e-6",
    )
    assert "no sessions" in fails(tmp_path, text=none)


def test_broken_toml_and_missing_files(tmp_path: Path) -> None:
    assert "is not TOML" in fails(tmp_path, text="[[cards]\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_scenario(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match='nearest is "embedded"'):
        load_scenario("embeded")


@pytest.mark.parametrize("name", built_in_scenarios())
def test_built_in_scenarios_can_be_read(name: str) -> None:
    found = load_scenario(name)
    found.site.check()
    assert found.workload.sessions


def test_there_are_built_in_scenarios() -> None:
    assert set(built_in_scenarios()) >= {"embedded", "box-of-8", "supernode-384"}
