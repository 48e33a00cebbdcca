"""Stand-ins for programs that the suite cannot run everywhere; each is the real protocol."""
