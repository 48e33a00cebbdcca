"""The whole service in front of the fake engine: credentials, core, journal, metering, all on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from bedplate.gateway.keys import KeyStore
from bench.harness.processes import Process, free_port
from bench.harness.run import BenchError, Json
from bench.load.workload import MODEL
from bench.subjects.base import Site, Target

TENANTS = ("wealth", "fraud", "compliance", "service")
COLLECT_SECONDS = 30.0
CONFIG = """\
[service]
host = "127.0.0.1"
port = {port}
data_dir = "{data_dir}"

[[engine]]
kind = "openai"
name = "fake"
model = "{model}"
url = "{url}"
server = "vllm"
slots = 256
running_max = 256
kv_tokens = 100000000
context_tokens = 32768

[log]
level = "warning"
"""
"""Room enough that nothing queues: measured is what the gateway does, not what it holds back."""


class Bedplate:
    """`bedplate serve` with one endpoint and four tenants, each with a key."""

    name = "bedplate"

    def __init__(self) -> None:
        self.data_dir = Path()
        self._rss_path = Path()

    @contextmanager
    def running(self, site: Site) -> Iterator[Target]:
        """Serve from a fresh data folder below the site's."""
        folder = site.folder
        self.data_dir = folder / "data"
        self._rss_path = folder / "rss.json"
        self.data_dir.mkdir(mode=0o700)
        keys = self._keys()
        port = free_port()
        config = folder / "bedplate.toml"
        config.write_text(
            CONFIG.format(port=port, data_dir=self.data_dir, model=MODEL, url=site.engine_url)
        )
        command = [sys.executable, "-m", "bench.subjects.serve"]
        command += [str(self._rss_path), "--config", str(config)]
        with Process(command, core=site.core, log=folder / "serve.log") as process:
            process.await_ready(f"http://127.0.0.1:{port}/readyz")
            yield Target(self.name, port, keys, process)

    def collected_rss(self, process: Process) -> int:
        """Have the process collect its garbage; return its resident bytes after that.

        Raises:
            BenchError: it does not answer.
        """
        import signal

        self._rss_path.unlink(missing_ok=True)
        process.signal(signal.SIGUSR1)
        deadline = time.monotonic() + COLLECT_SECONDS
        while time.monotonic() < deadline:
            if self._rss_path.exists():
                answer: dict[str, int] = orjson.loads(self._rss_path.read_bytes())
                return answer["rss_bytes"]
            time.sleep(0.05)
        raise BenchError(f"the gateway does not collect: {process.tail()}")

    def _keys(self) -> list[str]:
        with KeyStore(self.data_dir / "keys.db") as keys:
            now_ns = time.time_ns()
            return [keys.add(tenant, now_ns=now_ns).secret for tenant in TENANTS]


def config_json() -> Json:
    """Return the configuration, for a run's meta data."""
    return CONFIG
