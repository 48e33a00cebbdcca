"""What every bench shares: claims, the registry, runs and their results, processes, statistics."""
