"""What the models of `perf/` are fitted to and held against: one table a claim, one command each."""
