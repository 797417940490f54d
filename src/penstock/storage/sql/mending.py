"""Mending: partitions for what came to a queue while it became ordered (O1, C4, C5).

The ordering of a queue changes only while nothing waits in it. But a publish that is under way
may not know of the change, and its deliveries come without a partition; from an ordered queue
nobody would ever be handed those. So a queue that becomes ordered is looked through: once at
first, and once more when no publish is open any more that may have begun before the change. What
they appended is above what was settled then, so no more than that is looked at.

A queue that is no longer ordered does not care for partitions, and nothing has to be done.

The queue is caught up all the time, so its row has no cursor. While it is to be mended
``joining`` says, as it does for queues that are behind (see ``route``), which publishes may not
know, and ``closing`` is the first segment to look at.
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

#: In place of a segment: it is not known yet which publishes may not know of the change.
UNKNOWN: Final = -1
#: Segments that are mended at once.
_MAX_SEGMENTS: Final = 100


class Routed(NamedTuple):
    """How far a queue is routed; see the columns of the same names."""

    cursor: int | None
    joining: int | None
    closing: int | None

    @property
    def mends(self) -> bool:
        """Whether the queue is caught up, and to be mended."""
        return self.cursor is None and self.joining is not None


async def lock(work: Work, queue: Queue) -> Routed:
    """Be the only one who adds to the queue what is not there; how far it is routed."""
    rows = await work.session.fetch("lock_queue", queue=queue.number)
    if not rows:
        raise UnknownQueue(f"There is no queue {queue.name!r}.", field="queue")
    cursor, joining, closing, _ = rows[0]
    return Routed(cursor, joining, closing)


async def begin(work: Work, queue: Queue, routed: Routed, settled: int, *, ordered: bool) -> None:
    """The ordering of the queue, which is locked, changes with this transaction.

    ``settled`` was read before.
    """
    if routed.cursor is None:
        # What is left to mend from an earlier change is above what is settled by now, too.
        now = Routed(None, UNKNOWN, settled + 1) if ordered else Routed(None, None, None)
    elif routed.joining is None or not ordered:
        return  # Publishes put nothing here, or nothing that would be wrong.
    else:
        # The router meets whatever they put here; it has to wait for those that do not know.
        now = Routed(routed.cursor, UNKNOWN, None)
    await work.session.run("move_cursor", queue=queue.number, **now._asdict())


async def mend(core: Core, tenant: str, name: str) -> None:
    """Give partitions to what has none, as far as that is there yet."""
    while await _mend_some(core, tenant, name):
        pass


async def _mend_some(core: Core, tenant: str, name: str) -> bool:
    """Mend some segments; whether to look again."""
    version = (await core.catalog.tenant(tenant)).version
    before, after = await core.stable(), await core.stable()

    async def act(work: Work) -> bool:
        queue = work.tenant.find_own(name)
        routed = await lock(work, queue)
        if not routed.mends:
            return False
        if work.tenant.version != version:
            # The ordering may have changed since the log was asked.
            return True
        # Read after the change: whoever does not know of it began at or below it.
        began = before.given if routed.joining == UNKNOWN else routed.joining
        assert began is not None
        ended = after.oldest is None or after.oldest > began
        if not ended and routed.joining != UNKNOWN:
            return False
        rows = await work.session.fetch(
            "stray_segments", queue=queue.number, first=routed.closing, most=_MAX_SEGMENTS
        )
        if rows:
            # One may have been moved, by somebody who had it locked: they are looked for again.
            await give_partitions(core, work, queue, [segment for (segment,) in rows])
            return True
        now = Routed(None, None, None) if ended else routed._replace(joining=began)
        await work.session.run("move_cursor", queue=queue.number, **now._asdict())
        return False

    return await core.transact(tenant, act)


def is_stray(row: Row) -> bool:
    """Whether a run, of an ordered queue, has something to deliver and no partition."""
    return row[1] in LIVE and row[7] is None


async def give_partitions(core: Core, work: Work, queue: Queue, segments: Iterable[int]) -> None:
    """Bring what the queue has of these segments, and is in no partition, to where it belongs."""
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
                # Handed out by a claim that did not know: nobody owned the partition (O1).
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
