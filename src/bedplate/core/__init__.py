"""The core: one pure state machine that decides for one supernode.

Theory of operation
===================

A *session* is a tree of *branches*; a branch is a line of *turns* with a growing context. The KV
of a branch is in up to three places: in a slot of a card, as an entry in the pool, or nowhere, and
then it is computed again. Core keeps the books of all three and decides who runs where and what is
kept.

`Base.handle(now_ns, event)` is the only way in. It reads no clock, draws no random number, opens
nothing, and returns the actions that its driver must carry out; every action that can fail has its
failure event. So the live service, the replay of a journal and the simulation run this same code.

One step, always in this order:

 1. fold the event into the books                          turns, kv, cards, sessions
 2. deadlines: waits, runs, idle sessions, breakers        state.fire_deadlines
 3. closing sessions whose last work ended                 sessions
 4. admission of waiting sessions                          admission
 5. release of ready turns: placement, eviction, dispatch  release, placement, retention, dispatch
    and of places for those that found none                yielding
 6. write-through of slots that became idle, then 4 and 5 again for what it freed   writethrough
 7. water levels, then the timer                           water, state.arm_timer

A reading order: states (the records and their states), limits, events, actions; the books in card,
pool, lease, tenant, lane, prices, budget and retry; the choices that have alternatives in rules,
and what is chosen in admission, order, fairness, release, placement and retention; the way of a
turn in door, ready, dispatch, writethrough and settle; the handlers of events in turns, calls, kv,
cards and sessions, of failing cards in breaker; state, water and base last. `invariants` checks the
books as a whole, `snapshot` saves and restores them, `view` reads them.

Rules: standard library only, integers only, no set is iterated, every tie ends in a serial or an
index, and assertions are always on. A loop is bounded by a constant of `limits`, or by the turns,
slots and sessions that it moves.
"""

CORE_VERSION = 4
"""Raised whenever the same events may lead to other actions.

A journal is replayed only by its own.
"""
