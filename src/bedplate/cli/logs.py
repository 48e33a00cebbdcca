"""The service's log: one line an event on stderr, for people or as JSON for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

import orjson

from bedplate.config.tree import LogConfig


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the error's trace if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return orjson.dumps(entry).decode()


def set_up_logs(config: LogConfig, file: Path | None = None) -> None:
    """Send the log to stderr, or to a file; libraries speak from warnings on."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        handler = logging.FileHandler(file, encoding="utf-8")
    if config.format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("bedplate").setLevel(config.level.upper())
