"""Whole-core fuzz in virtual time: a seeded world, and checkers that share no code with the core.

Reading order: `sequence` (token lists as named runs), `options` (what one seed draws), `cards` and
`clients` (the two sides that the core stands between), `world` (the event heap), `book` (what an
observer knows from events and actions alone), `checks_*` and `checkers` (what must hold),
`naive` (a tiny core that proves world and checkers), `test_fuzz`.

Run many seeds by hand: `python -m tests.sim --seeds 100000 --start 0`.
"""
