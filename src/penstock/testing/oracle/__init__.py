"""The rooms of the oracle; ``penstock.testing.model`` is its door.

Everything is a full scan over plain dicts and lists. That is the point: what is written
here should be obviously right, however slow, so that engines can be held against it.

- ``state``: what is stored, and copying it.
- ``publishing``: appending, deduplicating, replacing by key, routing.
- ``transitions``: every change of state that a delivery can make, and time.
- ``claiming``: handing out, settling.
- ``partitions``: who owns what in an ordered queue.
- ``bulk``: replay, purge, sweep.
- ``hearing``: what the listener is told.
- ``reading``: stats, peek and the other verbs that change nothing.
"""
