"""The eight workloads."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["BATCH", "RATE", "WORKLOADS", "Workload"]

BATCH: Final = 100
#: Messages per second where the load is paced.
RATE: Final = 500


class Workload(Struct, frozen=True):
    """What the clients of a run do. A client that there are none of does not take part."""

    name: str
    description: str
    producers: int = 0
    #: Messages per publish call.
    batch: int = 1
    consumers: int = 0
    #: Messages per receive call, acked together.
    limit: int = 1
    #: Messages that may wait before the producers pause; 0 for no limit.
    ahead: int = 0
    is_paced: bool = False

    @property
    def is_consumed(self) -> bool:
        """Whether a message counts when it is acked, and not when it is published."""
        return self.consumers > 0


_AHEAD: Final = 5_000

WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload("W1", "one producer, one message per call", producers=1),
        Workload("W2", "64 concurrent producers, one message per call", producers=64),
        Workload("W3", "one producer, 100 messages per call", producers=1, batch=BATCH),
        Workload(
            "W4",
            "a producer and a consumer process, 100 messages per call, acked together",
            producers=1,
            batch=BATCH,
            consumers=1,
            limit=BATCH,
            ahead=_AHEAD,
        ),
        Workload(
            "W5",
            "as W4, but 32 concurrent consumers with one message at a time",
            producers=1,
            batch=BATCH,
            consumers=32,
            ahead=_AHEAD,
        ),
        Workload(
            "W6",
            f"{RATE} messages per second from four producers, one waiting consumer",
            producers=4,
            consumers=1,
            limit=BATCH,
            is_paced=True,
        ),
        Workload(
            "W7",
            "receive and ack 100 messages per call with 300,000 waiting",
            consumers=1,
            limit=BATCH,
        ),
        Workload(
            "W8",
            "as W4; the server is killed with SIGKILL, started again, and drained",
            producers=1,
            batch=BATCH,
            consumers=1,
            limit=BATCH,
            ahead=_AHEAD,
        ),
    )
}
