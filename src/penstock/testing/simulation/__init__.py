"""Deterministic simulation: concurrent clients, faults and restarts, ordered by a seed.

- ``program``: what each client does and which faults occur, generated from the seed.
- ``clients``: the clients, and the replies they got.
- ``judges``: what must hold at the end.
- ``shrink``, ``report``: shortening of failing programs; statistics over many seeds.
- ``loop``: an event loop with virtual time, ordered by the seed.
- ``keyvalue``: the key-value engine on that loop, on a disk that fails.
- ``mirror``: the oracle next to it, compared turn by turn.
- ``sql``, ``sql_loop``, ``sql_gated``, ``sql_observer``: servers on one real database, where every
  statement waits for its turn.
- ``engines``: the engine families that can be simulated.

A failing seed repeats bit for bit: ``penstock simulate --first-seed SEED --seeds 1``.
"""
