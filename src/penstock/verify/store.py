"""The eight reading verbs that verify needs of a store.

A broker and the HTTP client both have them. A missing record is a reply here, and so is damage
(X1): one unreadable record does not prevent the check of the others. Every other error
propagates: a store that does not answer cannot be verified.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from msgspec import Struct

from penstock.errors import NotFound, StoreCorrupt, StoreUnavailable
from penstock.model.delivery import Event, LogPage, MessageDeliveries, Page, QueueStats
from penstock.model.message import Offset
from penstock.model.queue import QueueInfo
from penstock.model.states import State

__all__ = ["Damaged", "Gone", "Missing", "Store", "look"]

T = TypeVar("T")


class Store(Protocol):
    """The verbs that verify uses, for one tenant."""

    async def queues(self) -> tuple[QueueInfo, ...]:
        """All queues by name."""
        ...

    async def queue(self, name: str, /) -> QueueInfo:
        """The queue's policy and state."""
        ...

    async def stats(self, queue: str, /) -> QueueStats:
        """The statistics of a queue."""
        ...

    async def peek(
        self,
        queue: str,
        state: State,
        /,
        *,
        limit: int,
        cursor: str | None = None,
        payloads: bool = False,
    ) -> Page:
        """Browse deliveries in one state, in claim order."""
        ...

    async def read_log(self, start: int, /, *, limit: int, payloads: bool = False) -> LogPage:
        """Committed log entries from an offset on."""
        ...

    async def log_end(self) -> Offset:
        """The offset after the last committed entry."""
        ...

    async def message(self, message_id: int, /) -> MessageDeliveries:
        """A message, its payload, and its state in every queue, at one moment."""
        ...

    async def history(self, message_id: int, /) -> tuple[Event, ...]:
        """Every transition of a message's deliveries that is still on record."""
        ...


class Missing(Struct, frozen=True):
    """There is no reply."""


class Gone(Missing, frozen=True):
    """The record does not exist, or was removed by retention, a purge or an operator."""


class Damaged(Missing, frozen=True):
    """The record cannot be read."""

    detail: str


async def look(store: Store, call: Awaitable[T]) -> T | Missing:
    """The reply of a verb, or why there is none."""
    try:
        return await call
    except NotFound:
        return Gone()
    except StoreCorrupt as error:
        return Damaged(error.detail)
    except StoreUnavailable as error:
        # A bad sector, if the store still answers; otherwise this raises.
        await store.log_end()
        return Damaged(error.detail)
