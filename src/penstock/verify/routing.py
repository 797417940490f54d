"""R1: a queue holds what its filter takes.

The filter of a queue whose filter never changed must be TRUE for every delivery in it, in any
state, and for its dead letters. After a change of the filter, deliveries routed before it stay,
and cannot be distinguished.

That nothing is missing cannot be checked: a purge leaves no trace. Missing deliveries are
counted, and shown with the check as a note.
"""

from __future__ import annotations

from penstock.filters import Filter, parse
from penstock.model.delivery import MessageDeliveries, Snapshot
from penstock.model.queue import QueueInfo
from penstock.verify.browse import home_of
from penstock.verify.inspection import Inspection, Missing

__all__ = ["Accounts", "Routing"]


class Routing:
    """The check of one queue."""

    def __init__(self, work: Inspection, info: QueueInfo) -> None:
        self._work = work
        self._info = info
        self._filter = filter_of(info)
        if self._filter is None:
            reason = f"the filter of {info.name!r} has changed: deliveries routed before it stay"
            work.ledger.skip("R1", reason)

    async def check(self, shown: Snapshot) -> None:
        """Check that the delivery matches the filter."""
        if self._filter is None:
            return
        self._work.ledger.examined("R1")
        if self._filter.matches(shown.message):
            return
        # The filter may have been changed while the queue was browsed.
        info = await self._work.look(self._work.store.queue(self._info.name))
        if isinstance(info, Missing) or not _is_same(info, self._info):
            return
        detail = f"the filter {info.policy.filter!r} is not TRUE for it"
        self._work.ledger.violation("R1", detail, queue=shown.queue, message_id=shown.message.id)


class Accounts:
    """Counts messages that match a filter and are no longer in its queue."""

    def __init__(self, work: Inspection) -> None:
        self._ledger = work.ledger
        self._filters = {
            info.name: (info, wanted)
            for info in work.queues.values()
            if (wanted := filter_of(info)) is not None
        }
        self._taken = 0
        self._absent = 0

    def see(self, found: MessageDeliveries) -> None:
        """Count one message."""
        homes = {home_of(item.queue) for item in found.deliveries}
        message = found.message
        for name, (info, wanted) in self._filters.items():
            routed = info.cursor is None or message.offset < info.cursor
            if routed and message.published_at > info.created_at and wanted.matches(message):
                self._taken += 1
                self._absent += name not in homes

    def close(self) -> None:
        """Record the figure as a note."""
        self._ledger.note(
            "R1",
            f"of {self._taken} deliveries that filters ask for, {self._absent} are no longer "
            "there: purged, or removed by retention",
        )


def filter_of(info: QueueInfo) -> Filter | None:
    """The filter that routed everything in the queue, if there is one."""
    return parse(info.policy.filter) if info.filter_version == 1 else None


def _is_same(info: QueueInfo, before: QueueInfo) -> bool:
    return (info.filter_version, info.created_at, info.policy.filter) == (
        before.filter_version,
        before.created_at,
        before.policy.filter,
    )
