"""Engines: adapters between the runtime and the programs that run models (design: docs/concepts)."""
