"""Endpoints over TLS: whose certificate is taken, and what is said of one that is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bedplate.config.engines import OpenaiEngine
from bedplate.core.events import CardUp, Event
from bedplate.core.ids import CardId, ModelId
from bedplate.engines.openai import OpenAIEngine
from bedplate.errors import ConfigError, EngineLost
from tests.conformance.engines.cases import Case, ask, hear, until
from tests.fakes.certificates import Authority
from tests.fakes.openai_engine import Behaviour, FakeEngine

CARD = CardId("endpoint")


@asynccontextmanager
async def over_tls(
    authority: Authority, *hosts: str, tls_ca: Path | None, to: str = "localhost"
) -> AsyncIterator[tuple[FakeEngine, Case]]:
    """Serve with a certificate for `hosts`, and ask by the name `to`."""
    fake = FakeEngine(Behaviour(texts=("one ", "two")))
    url = await fake.start(tls=authority.serving(*hosts))
    url = url.replace("127.0.0.1", to)
    events: list[Event] = []
    engine = OpenAIEngine(
        OpenaiEngine(name="endpoint", model="fake", url=url, tls_ca=tls_ca), probe_interval_s=0.05
    )
    await engine.start(events.append)
    try:
        yield fake, Case(engine, events)
    finally:
        await engine.stop()
        await fake.stop()


@pytest.mark.parametrize(("host", "to"), [("localhost", "localhost"), ("127.0.0.1", "127.0.0.1")])
async def test_an_endpoint_of_the_configured_authority_serves(
    tmp_path: Path, host: str, to: str
) -> None:
    authority = Authority(tmp_path)
    async with over_tls(authority, host, tls_ca=authority.path, to=to) as (fake, case):
        assert case.engine.problems == {}
        heard = await ask(case)
        assert heard.text == "one two"
        assert (await ask(case)).error is None
        assert fake.connections_made <= 2, "kept: one for probes, one for turns"


@pytest.mark.parametrize(
    ("host", "to"),
    [("elsewhere.example", "localhost"), ("localhost", "127.0.0.1"), ("127.0.0.2", "127.0.0.1")],
)
async def test_a_certificate_for_another_host_is_refused(
    tmp_path: Path, host: str, to: str
) -> None:
    authority = Authority(tmp_path)
    async with over_tls(authority, host, tls_ca=authority.path, to=to) as (fake, case):
        await refused(fake, case, f"certificate is not valid for '{to}'")


@pytest.mark.parametrize("trusted", ["the system's", "another's"])
async def test_a_certificate_of_an_authority_that_is_not_trusted_is_refused(
    tmp_path: Path, trusted: str
) -> None:
    tls_ca = None if trusted == "the system's" else Authority(tmp_path, "other").path
    async with over_tls(Authority(tmp_path), "localhost", tls_ca=tls_ca) as (fake, case):
        await refused(fake, case, "unable to get local issuer certificate")


async def test_the_configured_authority_counts_in_place_of_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    async with over_tls(authority, "localhost", tls_ca=None) as (_, case):
        assert (await ask(case)).error is None
    async with over_tls(authority, "localhost", tls_ca=other.path) as (fake, case):
        await refused(fake, case, "unable to get local issuer certificate")


async def test_a_server_without_tls_is_refused(tmp_path: Path) -> None:
    fake = FakeEngine()
    url = (await fake.start()).replace("http:", "https:")
    settings = OpenaiEngine(name="endpoint", model="fake", url=url, tls_ca=Authority(tmp_path).path)
    events: list[Event] = []
    engine = OpenAIEngine(settings, probe_interval_s=0.05)
    await engine.start(events.append)
    await refused(fake, Case(engine, events), "takes no connection")
    await engine.stop()
    await fake.stop()


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_file_that_holds_no_authority_is_a_configuration_error(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    engine = OpenAIEngine(
        OpenaiEngine(name="endpoint", model="fake", url="https://localhost:1/v1", tls_ca=path)
    )
    with pytest.raises(ConfigError, match=r"engine endpoint: tls_ca .*ca\.pem cannot be used"):
        await engine.start(lambda event: None)
    await engine.stop()


async def refused(fake: FakeEngine, case: Case, why: str) -> None:
    """Check that nothing was said to the endpoint, neither by a probe nor by a turn."""
    await until(lambda: why in case.engine.problems.get(CARD, ""))
    assert case.events == []
    case.events.append(UP)
    heard = await hear(case.engine, await case.turn(case.request()))
    assert isinstance(heard.error, EngineLost)
    assert not fake.asked
    assert case.engine.problems.keys() == {CARD}


UP = CardUp(
    card=CARD,
    model=ModelId("fake"),
    partition="",
    kv="hints",
    can_cut=True,
    slots=1,
    running_max=1,
    kv_tokens=1,
    context_tokens=1,
    kv_bytes_per_token=0,
)
"""So that a turn can be prepared for a card that never came up."""
