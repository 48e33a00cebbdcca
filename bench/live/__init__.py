"""The real base under a workload: embedded cards served, sessions played over HTTP, causally."""
