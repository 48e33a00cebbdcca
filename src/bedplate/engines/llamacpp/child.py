"""The card process: one llama.cpp server on a loopback port, alive while its gateway is.

Started as `python -m bedplate.engines.llamacpp.child PARAMS.json`. It writes its state file when
the model is loaded, so that its gateway, or the next one after a crash, can find it. It watches a
heartbeat file that the gateway touches; when that stands still for `orphan_seconds` it exits. It
needs nothing else from its parent and keeps no file open that the parent owns.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

LOG_BYTES_MAX = 4 << 20
"""A log file is rotated beyond this size; one older file is kept."""
WATCH_SECONDS = 0.5
GROWTH_BYTES = 1 << 30
SLOT_GROWTH_BYTES = 64 << 20


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, or 0 when it does not exist.

    Pid and start time together name a process: a pid alone may have been given away again. A
    process that has exited but was not yet collected by its parent counts as gone.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = stat[stat.rindex(")") + 2 :].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def write_private(path: Path, value: dict[str, Any]) -> None:
    """Write JSON to a file that only this user can read, whole or not at all."""
    temporary = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)
    temporary.replace(path)


def _capture_output(log: Path) -> None:
    """Send this process's output to the log file, the previous file moved aside when it is long."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _serve(params: dict[str, Any]) -> Any:
    """Load the model and start the server; return it with its port open."""
    import xllamacpp

    common = xllamacpp.CommonParams()
    common.model.path = params["model_path"]
    common.n_ctx = params["kv_tokens"]
    common.n_parallel = params["slots"]
    common.kv_unified = True
    common.swa_full = True
    common.cache_ram_mib = 0
    common.ctx_shift = False
    common.fit_params = False
    common.n_batch = common.n_ubatch = params["batch_tokens"]
    common.cpuparams.n_threads = common.cpuparams_batch.n_threads = params["threads"]
    if params["kv_type"] == "q8_0":
        common.cache_type_k = common.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
        common.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    common.embedding = params["embedding"]
    if params["embedding"]:
        common.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    if params["slot_folder"]:
        common.slot_save_path = params["slot_folder"].rstrip("/") + "/"
    common.hostnames = ["127.0.0.1"]
    common.port = 0
    common.api_keys = [params["secret"]]
    # One a stream, one a slot call that waits for it, and some for what must never wait.
    common.n_threads_http = 2 * params["slots"] + 8
    common.endpoint_slots = common.endpoint_metrics = True
    common.use_jinja = False
    common.ui = False
    common.verbosity = params["verbosity"]
    return xllamacpp.Server(common)


def bound_memory(kv_bytes: int, slots: int) -> None:
    """Let this process grow by a stated margin over what it holds now, with its model loaded.

    What a client's request makes it allocate beyond that ends this card and not the machine. The
    margin: its KV once more (a slot is copied while it is saved), 1 GiB, 64 MiB a slot.
    """
    status = Path("/proc/self/status").read_text()
    held = int(status.partition("VmData:")[2].split()[0]) << 10
    limit = held + kv_bytes + GROWTH_BYTES + slots * SLOT_GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _stop(_signal: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _watch(heartbeat: Path, log: Path, orphan_seconds: float) -> None:
    """Return when the heartbeat has stood still for `orphan_seconds` of monotonic time."""
    seen = -1
    since = time.monotonic()
    while True:
        try:
            beat = heartbeat.stat().st_mtime_ns
        except FileNotFoundError:
            beat = 0
        now = time.monotonic()
        if beat != seen:
            seen, since = beat, now
        elif now - since > orphan_seconds:
            return
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            _capture_output(log)
        time.sleep(WATCH_SECONDS)


def main(arguments: list[str]) -> None:
    """Run the card until it is told to stop or left alone."""
    params = json.loads(Path(arguments[0]).read_text())
    log = Path(params["log"])
    _capture_output(log)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server = _serve(params)
    except RuntimeError as error:
        raise SystemExit(f"the server does not start: {error}") from error
    bound_memory(params["kv_bytes"], params["slots"])
    write_private(
        Path(params["state"]),
        {
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "address": server.listening_address,
            "secret": params["secret"],
            "params_digest": params["params_digest"],
        },
    )
    _watch(Path(params["heartbeat"]), log, params["orphan_seconds"])
    sys.stderr.write("no heartbeat: exit\n")
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
