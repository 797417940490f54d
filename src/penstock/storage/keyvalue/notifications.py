"""Notifications: calls the engine's listener at most once per verb and queue.

A *turn* is the code between two awaits; verbs count it when they begin. A waiter that was notified
in this turn has had no chance to claim yet, so another notification would be redundant: a publish
of a thousand messages notifies once, at the cost of one comparison per message. The next verb, or
the next slice of a bulk verb that another verb interrupted, notifies again.
"""

from __future__ import annotations

import logging

from penstock.storage.listener import Listener

__all__ = ["Notifier"]

_log = logging.getLogger("penstock.storage")


class Notifier:
    """The listener, and the number of the running verb.

    A listener is called in the middle of verbs and commits. If it raises, the error is logged and
    the caller continues: an observer's bug must not fail a verb or leave a call without a reply.
    """

    __slots__ = ("listener", "turn")

    def __init__(self) -> None:
        self.listener = Listener()
        self.turn = 1

    def ready(self, tenant: str, queue: str) -> None:
        try:
            self.listener.ready(tenant, queue)
        except Exception:  # noqa: BLE001  (any bug of the listener's)
            _log.exception("The listener failed on 'ready' of queue %r.", queue)

    def ended(self, tenant: str, queue: str) -> None:
        try:
            self.listener.ended(tenant, queue)
        except Exception:  # noqa: BLE001  (any bug of the listener's)
            _log.exception("The listener failed on 'ended' of queue %r.", queue)

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        try:
            self.listener.lapsed(tenant, queue, count)
        except Exception:  # noqa: BLE001  (any bug of the listener's)
            _log.exception("The listener failed on 'lapsed' of queue %r.", queue)

    def counted(self, tenant: str, queue: str) -> None:
        try:
            self.listener.counted(tenant, queue)
        except Exception:  # noqa: BLE001  (any bug of the listener's)
            _log.exception("The listener failed on 'counted' of queue %r.", queue)

    def committed(self, records: int, seconds: float) -> None:
        try:
            self.listener.committed(records, seconds)
        except Exception:  # noqa: BLE001  (any bug of the listener's)
            _log.exception("The listener failed on 'committed'.")
