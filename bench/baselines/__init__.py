"""Policies of others, as rules of the core: for comparison in the twin, never in a service.

Each is one `bedplate.core.rules.Rules`, so that books, promises, retries and the site are the same
for all, and only choices differ. None of them knows lanes: `bench.schedule_twin.play` runs them
with all sessions in one. Fixed partitions are not a rule but several sites (`partitions`).
"""
