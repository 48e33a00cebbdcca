"""The service's log: one line an event on stderr, for people or as JSON for machines.

How many lines there may be is `log_bound`'s; how long one is, and that none can pass for two, is
decided here: what a client or an endpoint sent may be quoted in one.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

import orjson

from bedplate.cli.log_bound import BoundedHandler
from bedplate.cli.output import counted
from bedplate.config.tree import LogConfig

MESSAGE_CHARS_MAX = 16_384
_VISIBLE = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
} | {0x0A: "\n    ", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Control characters, which could move a terminal's cursor, as what they are; lines of a trace are
set in, so that nothing quoted begins a line as if it were an event of its own."""


class TextFormatter(logging.Formatter):
    """Time, level, logger and message in a line, with a trace's lines set in below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return _cut(super().format(record)).translate(_VISIBLE)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the error's trace if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        if record.exc_info:
            entry["error"] = _cut(self.formatException(record.exc_info))
        return orjson.dumps(entry).decode()


def set_up_logs(config: LogConfig, file: Path | None = None) -> None:
    """Send the log to stderr, or to a file, bounded; libraries speak from warnings on."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        handler = logging.FileHandler(file, encoding="utf-8")
    if config.format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [BoundedHandler(handler)]
    root.setLevel(logging.WARNING)
    logging.getLogger("bedplate").setLevel(config.level.upper())


def _cut(text: str) -> str:
    if len(text) <= MESSAGE_CHARS_MAX:
        return text
    return f"{text[:MESSAGE_CHARS_MAX]}... ({len(text)} characters)"


def told_in(file: Path) -> str:
    """Say how many errors and lines a log for people holds; "" where nothing was written."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    errors = sum(line.split(maxsplit=3)[2:3] == ["ERROR"] for line in lines)
    return (
        f"{counted(errors, 'error')} in the {counted(len(lines), 'line')} of {file}"
        if lines
        else ""
    )
