"""The listener: how an engine notifies the process that it runs in.

Notifications are hints and measurements. An engine works the same with or without a listener, and
verbs do not wait for one.
"""

from __future__ import annotations

__all__ = ["Listener"]


class Listener:
    """Receives an engine's notifications; this base class ignores them.

    The engine calls these methods on the event loop that its verbs run in, between two awaits.
    They must return immediately and must not raise.
    """

    def ready(self, tenant: str, queue: str) -> None:
        """A claim of this queue may return more than the last one, or ``next_due`` is earlier.

        Causes are a publish, nack, release, replay, route, assign, resume, a changed policy, a
        freed partition, another process, a claim or sweep that lets time take effect, and a claim
        that stopped before the end of a backlog without attempts left. Spurious calls are
        allowed, missing ones are not. The passing of time alone does not call it: see ``next_due``.
        """

    def ended(self, tenant: str, queue: str) -> None:
        """Deliveries of this queue, or of its dead letters, ended or may have: poll for results.

        They became done, failed or expired, or were cancelled or purged, by this process or by
        another. ``queue`` is never a dead-letter queue. Spurious calls are allowed, missing ones
        are not. The call may come before the commit.
        """

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        """A claim, a join or a sweep took back ``count`` deliveries whose leases had lapsed."""

    def counted(self, tenant: str, queue: str) -> None:
        """The counts or the policy of this queue changed, or it is gone; for those who watch.

        ``queue`` is never a dead-letter queue. Spurious calls are allowed. Changes that another
        process made may be missing. The call may come before the commit.
        """

    def committed(self, records: int, seconds: float) -> None:
        """A commit of ``records`` records became as durable as requested within ``seconds``."""

    def repeated(self, reason: str) -> None:
        """A transaction was retried. ``reason`` is one of these:

        - ``conflict``: with another transaction, a deadlock for example
        - ``connection``: the connection was lost
        - ``catalog``: another process had changed the catalog
        """
