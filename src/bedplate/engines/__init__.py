"""Engines: adapters between runtime and the programs that run models (design: docs/concepts)."""
