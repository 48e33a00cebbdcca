"""Workloads: what agents ask, read from traces and journals or generated, in one form."""
