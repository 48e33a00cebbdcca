"""How long things take: hardware, models and links as data, and the models of time built on them.

Reading order: `profile` (what the twin needs to know of a card), then the catalogue of hardware,
models and links, then the step-time model. Times are floats in nanoseconds inside this package;
whoever turns one into an instant rounds it.
"""
