"""Agent sessions on real cards: the base, plain servers behind routers, and the simplest thing."""
