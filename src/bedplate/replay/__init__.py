"""Recompute decisions from a journal.

A core is a pure function of its events, so folding a journal's events through a fresh core gives
the same decisions, the same digest and the same usage rows as the live run. Recovery uses this to
get a running core back, `bedplate replay` to prove that the journal explains what was done.
"""

from bedplate.replay.fold import Fold, skipped_seqs
from bedplate.replay.report import ReplayReport, replay
from bedplate.replay.version import bedplate_version, core_version

__all__ = ["Fold", "ReplayReport", "bedplate_version", "core_version", "replay", "skipped_seqs"]
