"""Checks of this repository by itself; each runs as `python -m tools.NAME` and as a test."""
