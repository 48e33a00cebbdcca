"""An OpenAI-compatible engine without a model: a real HTTP server that does what a test tells it.

It answers `/v1/chat/completions` (streamed and not), `/v1/models`, `/v1/embeddings`, `/tokenize`,
`/health` and `/metrics` (vLLM's names), and keeps a log of what it was sent and of who hung up.

In a test, in the same event loop or on a thread of its own:

    engine = FakeEngine(Behaviour(chunks=3))
    url = await engine.start()            # or: with ThreadedEngine(engine) as url:
    engine.script(Behaviour(die_after=2)) # for the next chat request only
    ...
    engine.log[-1].body["messages"]; engine.log[-1].aborted_s
    await engine.stop()

As a process, for the benches; the first line of output names its address as JSON:

    python -m tests.fakes.openai_engine --port 0 --chunks 32 --chunk-delay 0.01

A process is programmed over HTTP: `POST /fake/default` and `POST /fake/next` take a Behaviour as
JSON, `GET /fake/log` returns the log, `POST /fake/reset` empties it.

An answer without delays is rendered once and leaves in one write, so one process gives several
thousand answers of 32 chunks a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import ssl
import threading
from collections import Counter, deque
from typing import Any

from tests.fakes.openai_answers import (
    ID_MARK,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    Behaviour,
    ToolCall,
    chunk,
    events,
)
from tests.fakes.openai_connection import Connection, Seen

__all__ = ["Behaviour", "FakeEngine", "Seen", "ThreadedEngine", "ToolCall"]

LOG_MAX = 2_000


class FakeEngine:
    """The engine: its behaviours, its log, its counters, and the server around them."""

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        model: str = "fake",
        api_key: str | None = None,
        metrics: bool = True,
        log_max: int = LOG_MAX,
    ) -> None:
        self.default = behaviour if behaviour is not None else Behaviour()
        self.model = model
        self.api_key = api_key
        self.metrics = metrics
        self.log: deque[Seen] = deque(maxlen=log_max)
        self.requests = 0
        self.asked: Counter[str] = Counter()
        """Requests of any kind, by path."""
        self.connections_made = 0
        self.aborts = 0
        self.running = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.out_tokens = 0
        self.healthy = True
        self.url = ""
        self._next: deque[Behaviour] = deque()
        self._rendered: dict[tuple[Behaviour, int, int, bool], bytes] = {}
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    def script(self, *behaviours: Behaviour) -> None:
        """Answer the next chat requests like this, in order, before falling back to `default`."""
        self._next.extend(behaviours)

    def chats(self) -> list[Seen]:
        """Return the chat requests of the log."""
        return [seen for seen in self.log if seen.path.endswith("/chat/completions")]

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None
    ) -> str:
        """Listen; return the base address, with `/v1`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self, loop), host, port, backlog=1024, ssl=tls
        )
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'http' if tls is None else 'https'}://{host}:{port}/v1"
        return self.url

    async def stop(self) -> None:
        """Stop listening and reset every connection, as a killed process would."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.reset()
        await asyncio.sleep(0)

    def next_behaviour(self) -> Behaviour:
        return self._next.popleft() if self._next else self.default

    def connected(self, connection: Connection) -> None:
        self.connections_made += 1
        self._connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def rendered(self, behaviour: Behaviour, answer: Answer, serial: int) -> bytes:
        """Return the whole HTTP answer, from the cache but for its id."""
        key = (behaviour, answer.prompt_tokens, answer.limit, answer.usage)
        rendered = self._rendered.get(key)
        if rendered is None:
            if len(self._rendered) >= LOG_MAX:
                self._rendered.clear()
            rendered = self._rendered[key] = (
                STREAM_HEAD + b"".join(chunk(event) for event in events(answer)) + LAST_CHUNK
            )
        return rendered.replace(ID_MARK, b"chatcmpl-fake-%010d" % serial)

    def metrics_text(self) -> str:
        label = f'{{model_name="{self.model}"}}'
        return "".join(
            f"# TYPE vllm:{name} {kind}\nvllm:{name}{label} {float(value)}\n"
            for name, kind, value in (
                ("num_requests_running", "gauge", self.running),
                ("kv_cache_usage_perc", "gauge", 0.25),
                ("prompt_tokens_total", "counter", self.prompt_tokens),
                ("prompt_tokens_cached_total", "counter", self.cached_tokens),
                ("generation_tokens_total", "counter", self.out_tokens),
            )
        )


class ThreadedEngine:
    """A fake engine on a thread of its own, so that a blocked test still sees aborts in time."""

    def __init__(self, engine: FakeEngine | None = None) -> None:
        self.engine = engine if engine is not None else FakeEngine()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        url: str = self.call(self.engine.start())
        return url

    def __exit__(self, *exc: object) -> None:
        self.call(self.engine.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine of the engine on its thread; return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)


async def _serve(engine: FakeEngine, host: str, port: int) -> None:
    url = await engine.start(host, port)
    print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    await over.wait()
    await engine.stop()


def main() -> None:
    """Run as a process until it is told to stop."""
    parser = argparse.ArgumentParser(description="An OpenAI-compatible engine without a model.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="fake")
    parser.add_argument("--api-key", default=None)
    parser.add_argument("--log-max", type=int, default=LOG_MAX)
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--first-delay", type=float, default=0.0, help="seconds")
    parser.add_argument("--chunk-delay", type=float, default=0.0, help="seconds")
    parser.add_argument("--behaviour", default="{}", help="further fields of Behaviour, as JSON")
    given = parser.parse_args()
    behaviour = Behaviour.of(
        {
            "chunks": given.chunks,
            "first_delay_s": given.first_delay,
            "chunk_delay_s": given.chunk_delay,
            **json.loads(given.behaviour),
        }
    )
    engine = FakeEngine(behaviour, model=given.model, api_key=given.api_key, log_max=given.log_max)
    import uvloop

    uvloop.run(_serve(engine, given.host, given.port))


if __name__ == "__main__":
    main()
