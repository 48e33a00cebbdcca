"""The live driver: one asyncio loop owns the core, its journal and its engines.

Theory of operation. Everything that happens becomes an event. `CoreLoop.post` gives it a time and a
sequence number, puts its record into the group being built, calls `Base.handle`, puts the notes
that the step caused (usage, digest) into the same group, and carries the actions out. Actions are
started, never awaited; an event that is posted meanwhile waits its turn, so `handle` is never
entered twice. When nothing is left to handle the group goes to the `Committer`, whose one thread
makes groups durable in order: the next batch starts as soon as the last commit returns, no timer in
between.

What stays inside (dispatches, KV moves) starts at once. What leaves the process waits for the
commit of the record that explains it: the first item of a turn for its TurnArrived, a refusal or
failure for the event that caused it, the end of a turn for its TurnEnded.

    clock      time that never falls             turns      a turn as its client sees it
    committer  groups of records, made durable   executor   runs turns at engines
    loop       events in, actions out            moves      KV between cards and pool
    timers     the one timer of the core         recovery   from a journal back to a running core
    stats      counters for /metrics             service    all of it as one object
    build      a service from a configuration    outcome    errors and ends, in the core's words
    reports    which reports are news            reading    all counters of a service, at once
"""
