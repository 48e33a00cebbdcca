"""The twin: the same core in virtual time, driven from an event heap.

Reading order: `workload/form` (what is asked), `outcome` (what came of it), `site` and `run` (the
way in), then the world that leads from one to the other: `world` (drives the core), `clients`,
`card` with `stepper`, `batch` and `steps` (a card's time in closed form), `moving` and `transfer`
(KV over links), `faults` and `inject`. `scenario` reads what to run from a file, `report` adds an
outcome up, `against` holds a run against a journal.
"""
