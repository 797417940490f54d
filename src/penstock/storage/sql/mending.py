"""Mending: backfills partitions for deliveries of a queue that became ordered (O1, C4, C5).

The ordering of a queue can change only while nothing waits in it. But a running publish may still
use the old catalog and add deliveries without a partition, which claims of an ordered queue would
never find. So a queue that becomes ordered is scanned twice: once immediately, and once when no
publish is open that may have begun before the change. Those publishes append above the end that
was settled then, so only that part is scanned.

A queue that is no longer ordered ignores partitions, so nothing has to be done.

Such a queue is caught up, so its row has no cursor. Until it is mended, ``joining`` identifies
the publishes that may not know of the change, as it does for queues that are behind (see
``route``), and ``closing`` is the first segment to scan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.errors import StoreCorrupt, UnknownQueue
from penstock.model.message import Message
from penstock.model.states import Transition
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row
from penstock.storage.sql.phases import LIVE, Phase
from penstock.storage.sql.runs import Run, segment_of
from penstock.storage.sql.work import Work

__all__ = ["UNKNOWN", "Routed", "begin", "give_partitions", "is_stray", "lock", "mend"]

#: Instead of a segment: the publishes that may not know of the change are not determined yet.
UNKNOWN: Final = -1
#: Segments that are mended in one transaction.
_MAX_SEGMENTS: Final = 100


class Routed(NamedTuple):
    """The routing state of a queue; see the columns of the same names."""

    cursor: int | None
    joining: int | None
    closing: int | None

    @property
    def mends(self) -> bool:
        """Whether the queue is caught up but needs mending."""
        return self.cursor is None and self.joining is not None


async def lock(work: Work, queue: Queue) -> Routed:
    """Lock the queue against other routers and replays; returns its routing state."""
    rows = await work.session.fetch("lock_queue", queue=queue.number)
    if not rows:
        raise UnknownQueue(f"There is no queue {queue.name!r}.", field="queue")
    cursor, joining, closing, _ = rows[0]
    return Routed(cursor, joining, closing)


async def begin(work: Work, queue: Queue, routed: Routed, settled: int, *, ordered: bool) -> None:
    """Record that this transaction changes the ordering of the queue, which must be locked.

    The caller must read ``settled`` before it locks the queue.
    """
    if routed.cursor is None:
        # Strays of an earlier change are above what is settled by now, too.
        now = Routed(None, UNKNOWN, settled + 1) if ordered else Routed(None, None, None)
    elif routed.joining is None or not ordered:
        return  # Publishes add nothing to the queue, or nothing that would be wrong.
    else:
        # The router finds the deliveries of publishes that do not know; it must wait for them.
        now = Routed(routed.cursor, UNKNOWN, None)
    await work.session.run("move_cursor", queue=queue.number, **now._asdict())


async def mend(core: Core, tenant: str, name: str) -> None:
    """Assign partitions to the existing deliveries that have none."""
    while await _mend_some(core, tenant, name):
        pass


async def _mend_some(core: Core, tenant: str, name: str) -> bool:
    """Mend some segments; returns whether to continue."""
    version = (await core.catalog.tenant(tenant)).version
    before, after = await core.stable(), await core.stable()

    async def act(work: Work) -> bool:
        queue = work.tenant.find_own(name)
        routed = await lock(work, queue)
        if not routed.mends:
            return False
        if work.tenant.version != version:
            # The ordering may have changed since ``stable`` was read.
            return True
        # Read after the change: a publish that does not know of it began at or below this.
        began = before.given if routed.joining == UNKNOWN else routed.joining
        assert began is not None
        ended = after.oldest is None or after.oldest > began
        if not ended and routed.joining != UNKNOWN:
            return False
        rows = await work.session.fetch(
            "stray_segments", queue=queue.number, first=routed.closing, most=_MAX_SEGMENTS
        )
        if rows:
            # Another transaction may have moved one before it was locked, so search again.
            await give_partitions(core, work, queue, [segment for (segment,) in rows])
            return True
        now = Routed(None, None, None) if ended else routed._replace(joining=began)
        await work.session.run("move_cursor", queue=queue.number, **now._asdict())
        return False

    return await core.transact(tenant, act)


def is_stray(row: Row) -> bool:
    """Whether a run of an ordered queue is live but has no partition."""
    return row[1] in LIVE and row[7] is None


async def give_partitions(core: Core, work: Work, queue: Queue, segments: Iterable[int]) -> None:
    """Assign partitions to the queue's deliveries in these segments that have none."""
    rows = await work.session.fetch(
        "lock_segment_runs",
        queues=[queue.number],
        segments=sorted(segments),
        phases=[int(phase) for phase in LIVE],
    )
    strays = work.hold_all(row for row in rows if is_stray(row))
    messages = await core.segments.messages(
        work.session,
        work.tenant.number,
        [run.life.entry or message for run in strays for message in run.ids()],
    )
    for run in strays:
        for partition, members in sorted(_partitions(run, messages).items()):
            life = replace(run.life, partition=partition)
            if run.phase is Phase.IN_FLIGHT:
                # A claim with an older catalog handed it out: no consumer owned the partition (O1).
                moves.give_back(work, queue, run, members, Transition.RELEASE, life=life)
            else:
                work.move(run, members, run.phase, life)


def _partitions(run: Run, messages: dict[int, Message]) -> dict[str, list[int]]:
    """The members of a run by partition."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in run.ids():
        known = messages.get(run.life.entry or message)
        if known is None:
            raise StoreCorrupt(f"The entry of message {message} is missing from the log.")
        found[known.partition_key or ""].append(segment_of(message)[1])
    return found
