"""Small benches that measure one part alone; each also runs by itself."""
