"""Consuming: claim for ever, keep the leases alive, settle by context manager.

::

    verbs.claim ─▶ buffer ─▶ Lease ─▶ the program ─▶ ack, nack, reject, release
                      └── Holdings extend what is unsettled ──┘
                      └── Membership beats for ordered queues ┘

It stands on ``penstock.verbs`` alone, so it is the same over a store in this process and over
HTTP. ``consuming.py`` is the verb, ``consumption.py`` what it gives, ``lease.py`` what a program
holds.
"""

from __future__ import annotations

from penstock.consume.consuming import Consuming
from penstock.consume.consumption import Consumption
from penstock.consume.lease import Lease

__all__ = ["Consuming", "Consumption", "Lease"]
