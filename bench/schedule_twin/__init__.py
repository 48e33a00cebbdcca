"""Scheduling in the twin: real traces, two sites, baselines and bounds in one run."""
