"""Bedplate: the base AI agents run on (where to start: ARCHITECTURE.md)."""
