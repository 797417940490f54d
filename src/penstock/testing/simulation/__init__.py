"""Deterministic simulation: concurrent clients, faults and restarts, ordered by a seed.

- ``program``: what each client does and what goes wrong, made from the seed.
- ``clients``: the clients, and what they were told.
- ``judges``: what has to hold at the end.
- ``shrink``, ``report``: a failing program made short; many seeds counted.
- ``loop``: an event loop with virtual time, ordered by the seed.
- ``keyvalue``: the key-value engine on that loop, on a disk that fails.
- ``mirror``: the oracle beside it, compared turn by turn.
- ``sql``, ``sql_loop``, ``sql_gated``, ``sql_observer``: servers on one real database, whose every
  statement waits for its turn.
- ``engines``: which of them there are.

A failing seed repeats bit for bit: ``penstock simulate --first-seed SEED --seeds 1``.
"""
