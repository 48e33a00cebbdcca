"""Which idle KV goes first: eviction orders replayed on drawn loads, against the optimum."""
