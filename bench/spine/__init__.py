"""The parts of bench `spine`; each can run alone."""
