"""Consuming: claim forever, keep the leases alive, settle by context manager.

::

    verbs.claim ─▶ buffer ─▶ Lease ─▶ the program ─▶ ack, nack, reject, release
                      └── Holdings extend what is unsettled ──┘
                      └── Membership beats for ordered queues ┘

It depends only on ``penstock.api``, so it is the same over a store in this process and over
HTTP. ``consuming.py`` has the verb, ``consumption.py`` the iterator that it returns, ``lease.py``
the lease that a program holds.
"""

from __future__ import annotations

from penstock.consume.consuming import Consuming
from penstock.consume.consumption import Consumption
from penstock.consume.lease import Lease

__all__ = ["Consuming", "Consumption", "Lease"]
