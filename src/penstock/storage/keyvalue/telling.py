"""Telling: how the rooms reach the engine's listener, at most once a verb and queue.

A *turn* is what runs between two awaits, counted by the beginnings of verbs. Whoever was told
in this turn has had no chance to claim since, so telling it again would say nothing new: a
publish of a thousand messages is told once, at the price of a comparison a message. The
next verb, or the next slice of a bulk verb that another verb came between, tells again.
"""

from __future__ import annotations

import logging

from penstock.storage.listener import Listener

__all__ = ["Teller"]

_log = logging.getLogger("penstock.storage")


class Teller:
    """The listener, and the number of the verb that is running.

    A listener is called in the middle of verbs and commits. If it raises, that is logged and the
    caller goes on: an observer's bug must not fail a verb, or leave a caller without an answer.
    """

    __slots__ = ("listener", "turn")

    def __init__(self) -> None:
        self.listener = Listener()
        self.turn = 1

    def ready(self, tenant: str, queue: str) -> None:
        try:
            self.listener.ready(tenant, queue)
        except Exception:  # noqa: BLE001  (whatever it is, it is not ours)
            _log.exception("The listener failed on 'ready' of queue %r.", queue)

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        try:
            self.listener.lapsed(tenant, queue, count)
        except Exception:  # noqa: BLE001  (whatever it is, it is not ours)
            _log.exception("The listener failed on 'lapsed' of queue %r.", queue)

    def committed(self, records: int, seconds: float) -> None:
        try:
            self.listener.committed(records, seconds)
        except Exception:  # noqa: BLE001  (whatever it is, it is not ours)
            _log.exception("The listener failed on 'committed'.")
