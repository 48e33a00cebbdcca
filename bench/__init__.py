"""Benchmarks: every figure that is claimed, printed again by one command. See README.md."""
