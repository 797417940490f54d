"""Consuming: claim forever, keep the leases alive, settle by context manager.

::

    claim ─▶ buffer ─▶ Lease ─▶ the program ─▶ ack, nack, reject, release ─▶ settle_and_claim ┐
               ▲ └── Holdings extend what is unsettled ──┘                                     │
               │ └── Membership beats for ordered queues ┘                                     │
               └─────────────────────────── the next deliveries ───────────────────────────────┘

It depends only on ``penstock.api``, so it is the same over a store in this process and over
HTTP. ``consuming.py`` has the verbs, ``consumption.py`` the iterators that they return,
``lease.py`` and ``lease_batch.py`` what a program holds, ``prefetch.py`` the calls.
"""

from __future__ import annotations

from penstock.consume.consuming import Consuming
from penstock.consume.consumption import BatchConsumption, Consumption
from penstock.consume.lease import Lease
from penstock.consume.lease_batch import LeaseBatch

__all__ = ["BatchConsumption", "Consuming", "Consumption", "Lease", "LeaseBatch"]
