"""The modules of the oracle; ``penstock.testing.model`` is its public interface.

Everything is a full scan over plain dicts and lists, on purpose: this code should be
obviously right, however slow, so that engines can be compared with it.

- ``state``: what is stored, and copying it.
- ``publishing``: appending, deduplicating, replacing by key, routing.
- ``transitions``: every transition of a delivery, and the effects of time.
- ``claiming``: claiming and settling.
- ``partitions``: partition ownership in an ordered queue.
- ``bulk``: replay, purge, sweep.
- ``hearing``: notifications of the listener.
- ``reading``: stats, peek and the other read-only verbs.
"""
