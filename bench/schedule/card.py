"""A plain llama.cpp server as a process: `python -m bench.schedule.card PARAMS`, PARAMS in JSON.

Its `/health` answers 200 when the model is loaded; it serves until it is told to end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def serve(params: dict[str, Any]) -> Any:
    """Start the server; return it with its port open."""
    import xllamacpp

    common = xllamacpp.CommonParams()
    common.model.path = params["model"]
    common.n_ctx = params["kv_tokens"]
    common.n_parallel = params["slots"]
    common.kv_unified = True
    common.cache_ram_mib = params["cache_mib"]
    common.ctx_shift = False
    common.fit_params = False
    common.n_batch = common.n_ubatch = params["batch_tokens"]
    common.cpuparams.n_threads = common.cpuparams_batch.n_threads = 1
    if params["slot_folder"]:
        common.slot_save_path = params["slot_folder"].rstrip("/") + "/"
    common.hostnames = ["127.0.0.1"]
    common.port = params["port"]
    common.n_threads_http = 2 * params["slots"] + 8
    common.endpoint_slots = common.endpoint_metrics = True
    common.chat_template = "chatml"
    common.ui = False
    common.verbosity = 1
    return xllamacpp.Server(common)


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    server = serve(json.loads(arguments[0]))
    signal.sigwait({signal.SIGTERM})
    del server
    os._exit(0)  # at once: what still runs is nobody's any more


if __name__ == "__main__":
    main(sys.argv[1:])
