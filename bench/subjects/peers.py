"""Peers, each in a virtual environment of its own below the cache, installed on first use.

LiteLLM's proxy is part of its main wheel; the extra `proxy` pins what it needs beside, and its own
family in versions that an index may not have. So the requirements are read from the wheel, and the
family's are taken as they come.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bench.harness.processes import Process, free_port
from bench.harness.run import BenchError
from bench.load.workload import MODEL
from bench.subjects.base import Site, Target

INSTALL_SECONDS = 900
LITELLM_VERSION = "1.110.2"
LITELLM_MISSING = ("litellm-proxy",)
"""Named by the extra, on no index, and not imported."""
VLLM_ROUTER_VERSION = "0.1.17"
SGLANG_ROUTER_VERSION = "0.3.2"
LITELLM_KEY = "sk-bench"
LITELLM_CONFIG = """\
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: {url}
      api_key: none
general_settings:
  master_key: {key}
"""


class VllmRouter:
    """vllm-router, in Rust, cache-aware over one worker."""

    name = f"vllm-router {VLLM_ROUTER_VERSION}"

    def __init__(self, cache: Path) -> None:
        """Install it, unless it is there.

        Raises:
            BenchError: it cannot be installed.
        """
        self._bin = peer_environment(cache, "vllm-router", VLLM_ROUTER_VERSION) / "bin"

    @contextmanager
    def running(self, site: Site) -> Iterator[Target]:
        """Start it."""
        port, metrics = free_port(), free_port()
        command = [str(self._bin / "vllm-router"), "--worker-urls", site.engine_url[:-3]]
        command += ["--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-port", str(metrics)]
        with Process(command, core=site.core, log=site.folder / "vllm-router.log") as process:
            process.await_ready(f"http://127.0.0.1:{port}/v1/models")
            yield Target(self.name, port, ["none"], process)


class LiteLLM:
    """LiteLLM's proxy with one worker and one master key, no database."""

    name = f"LiteLLM {LITELLM_VERSION}"

    def __init__(self, cache: Path) -> None:
        """Install it, unless it is there.

        Raises:
            BenchError: it cannot be installed.
        """
        self._bin = peer_environment(cache, "litellm", LITELLM_VERSION) / "bin"

    @contextmanager
    def running(self, site: Site) -> Iterator[Target]:
        """Start it."""
        port = free_port()
        config = site.folder / "litellm.yaml"
        config.write_text(LITELLM_CONFIG.format(model=MODEL, url=site.engine_url, key=LITELLM_KEY))
        command = [str(self._bin / "litellm"), "--config", str(config), "--num_workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        extra = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            "LITELLM_LOG": "ERROR",
            "PYTHONPATH": "",
        }
        log = site.folder / "litellm.log"
        with Process(command, core=site.core, log=log, extra=extra) as process:
            process.await_ready(f"http://127.0.0.1:{port}/health/liveliness")
            yield Target(self.name, port, [LITELLM_KEY], process)


def peer_environment(cache: Path, package: str, version: str) -> Path:
    """Return the virtual environment of a peer; made and filled if it is not there."""
    folder = cache / "peers" / f"{package}-{version}"
    done = folder / "installed"
    if done.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    _call([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    _call([*pip, f"{package}=={version}"])
    extras = _proxy_requirements(folder, package)
    if extras:
        _call([*pip, *extras])
    done.touch()
    return folder


def _proxy_requirements(folder: Path, package: str) -> list[str]:
    """Return what the extra `proxy` of an installed package asks for, but for what no index has."""
    found: list[str] = []
    for path in folder.glob(f"lib/*/site-packages/{package.replace('-', '_')}-*/METADATA"):
        for text in (
            Parser().parsestr(path.read_text(encoding="utf-8")).get_all("Requires-Dist", [])
        ):
            need = Requirement(text)
            marker = need.marker
            if marker is None or marker.evaluate({"extra": ""}):
                continue
            if marker.evaluate({"extra": "proxy"}) and need.name not in LITELLM_MISSING:
                need.marker = None
                if need.name.startswith(f"{package}-"):
                    need.specifier = SpecifierSet()
                found.append(str(need))
    return found


def _call(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        last = [line for line in error.stderr.splitlines() if line.startswith("ERROR")][-1:]
        raise BenchError(f"cannot be installed: {' '.join(last) or error.stderr[-300:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"cannot be installed: {error}") from error
