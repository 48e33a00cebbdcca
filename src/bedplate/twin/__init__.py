"""The twin: the same core in virtual time, driven from an event heap.

Reading order: `workload/form` (what is asked), `outcome` (what came of it), then the world that
leads from one to the other: heap, world, card, pool, faults.
"""
