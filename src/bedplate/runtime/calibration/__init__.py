"""Measure a running engine and fit the profile of its cards.

Theory of operation: everything is measured through the engine seam, as the service drives it, by
sessions that grow. One turn of such a session gives two samples: from its dispatch to its first
token (so many prompt tokens behind so many cached ones), and from its first token to its last.
Several turns at once give decoding in a batch; a prompt that comes while others decode gives mixed
steps; between turns the slot is stored, dropped and loaded.

A *round* measures every shape once; the median over rounds and cards is the shape's point. So a
disturbance that lasts some seconds spoils one round and not a result. `plan` sizes a round by the
speed that the warm-up saw, so that three of them fit into the time.

Reading order: `probe` (turns and moves, with their times), `samples` (what was seen, and the points
that it makes), `plan`, `measure` (one card's rounds), `run` (all of it).
"""

from bedplate.runtime.calibration.plan import QUICK_SECONDS, SECONDS
from bedplate.runtime.calibration.rules import Rules, rules_of
from bedplate.runtime.calibration.run import Calibrated, Settings, calibrate

__all__ = ["QUICK_SECONDS", "SECONDS", "Calibrated", "Rules", "Settings", "calibrate", "rules_of"]
