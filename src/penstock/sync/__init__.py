"""The verbs for programs without an event loop: every call blocks until its answer.

::

    with penstock.sync.connect("http://localhost:8080") as q:  # or penstock.sync.open(url)
        q.publish("orders", {"order": 7}, headers={"amount": 250})
        for delivery in q.consume("billing"):
            with delivery:  # ack on exit, nack on exception, lease extended while it runs
                charge(delivery.payload)

It runs the async code in an event loop in a thread of its own; the blocking classes are
generated. Threads may share one object. Inside an event loop it refuses to block.
"""

from __future__ import annotations

from penstock.sync.blocking import SyncConsumption
from penstock.sync.lease import SyncLease
from penstock.sync.opening import connect, open  # noqa: A004
from penstock.sync.verbs import SyncVerbs

__all__ = ["SyncConsumption", "SyncLease", "SyncVerbs", "connect", "open"]
