"""What the models of `perf/` are fitted to and held against: a table a claim, one command each."""
