"""How good any schedule could be: bounds that no policy can beat, over plain arrays.

`steps` bounds what a turn costs its card, `sessions` session times and makespans, `goodput` how
many turns can end inside their limits, `retention` what must be computed again, `eviction` one
choice of victims, `hold` one tool gap. Each is checked against brute force on tiny instances.
"""
