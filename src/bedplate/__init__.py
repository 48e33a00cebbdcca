"""Bedplate: the base AI agents run on (where to start: ARCHITECTURE.md)."""

from bedplate import compiled as _compiled

COMPILED = _compiled.use()
"""Whether the hot modules run in compiled form (ADR 0014)."""
