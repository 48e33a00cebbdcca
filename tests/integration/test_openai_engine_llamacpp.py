"""The openai engine in front of a real server: llama.cpp's own, with a tiny random model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bedplate.config.engines import OpenaiEngine
from bedplate.core.events import CardReport, Event
from bedplate.engines.openai import OpenAIEngine
from bedplate.errors import ContextTooLong, InvalidRequest
from tests.conformance.engines.cases import Case, hear, until

pytest.importorskip("xllamacpp")

SERVER = """
import sys, xllamacpp
common = xllamacpp.CommonParams()
common.model.path = sys.argv[1]
common.hostnames, common.port = ["127.0.0.1"], 0
common.n_ctx, common.n_parallel = 2048, 2
common.cpuparams.n_threads = common.cpuparams_batch.n_threads = 1
common.endpoint_metrics = True
common.ui = common.fit_params = False
common.cache_ram_mib = 0
server = xllamacpp.Server(common)
print("LISTENING", server.listening_address, flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def served(model: Path) -> AsyncIterator[tuple[Case, list[Event]]]:
    """Start the server and the adapter in front of it."""
    with subprocess.Popen(  # noqa: ASYNC220 - starting takes no time; its output is read aside
        [sys.executable, "-c", SERVER, str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            url = await asyncio.to_thread(_url, server)
            events: list[Event] = []
            settings = OpenaiEngine(
                name="real",
                model="tiny",
                upstream_model=str(model),
                url=f"{url}/v1",
                server="llamacpp",
            )
            engine = OpenAIEngine(settings, probe_interval_s=0.1)
            await engine.start(events.append)
            yield Case(engine, events), events
            await engine.stop()
        finally:
            server.kill()


def _url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("LISTENING"):
            return line.split()[1]
    raise AssertionError("the server ended before it listened")


async def test_a_session_runs_reuses_its_prefix_and_is_counted_exactly(tiny_model: Path) -> None:
    system = {"role": "system", "content": "The adviser reviews a transfer. " * 20}
    async with served(tiny_model) as (case, events):
        messages = [system, {"role": "user", "content": "What is due?"}]
        ends = []
        for _ in range(3):
            heard = await hear(
                case.engine, await case.turn(case.request(*messages), limit_tokens=12)
            )
            assert heard.error is None
            assert heard.text == heard.finished.message["content"]
            assert heard.finished.exact
            ends.append(heard.finished)
            messages += [heard.finished.message, {"role": "user", "content": "And now?"}]
        await case.engine.stop()
        report = events[-1]
    assert ends[0].cached_tokens == 0
    assert all(end.cached_tokens > 100 for end in ends[1:])
    assert isinstance(report, CardReport)
    assert report.prompt_tokens_total == sum(end.prompt_tokens for end in ends)
    assert report.cached_tokens_total == sum(end.cached_tokens for end in ends)
    assert report.out_tokens_total == sum(end.out_tokens for end in ends)


async def test_a_closed_turn_frees_the_servers_slot(tiny_model: Path) -> None:
    async with served(tiny_model) as (case, events):
        for _ in range(4):  # more than its slots
            turn = await case.turn(case.request(), limit_tokens=1_500)
            iterator = case.engine.run(turn)
            await anext(iterator)
            await iterator.aclose()  # type: ignore[attr-defined]
        await until(lambda: isinstance(events[-1], CardReport) and events[-1].running == 0)
        heard = await hear(case.engine, await case.turn(case.request(), limit_tokens=4))
    assert heard.error is None


async def test_its_refusals_reach_the_client_in_its_words(tiny_model: Path) -> None:
    async with served(tiny_model) as (case, _):
        long = {"role": "user", "content": "claim " * 9_000}
        heard = await hear(case.engine, await case.turn(case.request(long)))
        assert isinstance(heard.error, ContextTooLong)
        grammar = {"type": "json_schema", "json_schema": {"schema": {"type": "no such type"}}}
        heard = await hear(case.engine, await case.turn(case.request(response_format=grammar)))
        assert isinstance(heard.error, InvalidRequest)
