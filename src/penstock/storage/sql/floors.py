"""Floors: by rank, the place below which a queue has no fresh run, and never will have one again.

What was claimed leaves dead rows behind at the very head of a queue. While any transaction is open
that began before (a report, a backup), the database cannot remove them, and whoever looks for the
first run of the queue has to walk past them all. Floors let a claim begin behind them.

They are safe to remember, whatever other servers do. New fresh runs come from publishes only. One
that is open now began at a segment that ``Stable.oldest`` is not above, and one that begins later
appends above ``Stable.given``; both are read before the runs are. What a claim leaves of a run is
behind that run, in the same rank, and a claim that is undone leaves it where it was seen.

Where a database has no use for them (``Database.has_floors``) there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.storage.sql.core import Core
from penstock.storage.sql.phases import Phase
from penstock.storage.sql.runs import message_id

__all__ = ["NO_FLOORS", "floors_of", "raise_floors"]

#: Every rank is looked at from its beginning.
NO_FLOORS: Final = (0,) * 10
#: How long floors are good enough, in milliseconds.
_KEEP_MS: Final = 250


def floors_of(core: Core, queue: int) -> Sequence[int]:
    """The floors of a queue, by rank; empty: none are known."""
    return core.floors.get(queue, ((), 0))[0]


async def raise_floors(core: Core, queue: int) -> None:
    """Bring the floors of a queue up to date, if they were not for a while."""
    if not core.database.has_floors:
        return
    now = core.clock.now()
    known = core.floors.get(queue)
    if known is None:
        # At first it is not worth it: most queues are not busy.
        core.floors[queue] = ((), now)
        return
    floors, read_at = known
    if 0 <= now - read_at < _KEEP_MS:
        return
    floors = floors or NO_FLOORS
    stable = await core.stable()
    begins = stable.given if stable.oldest is None else min(stable.given, stable.oldest)
    rows = await core.plainly(
        lambda session: session.fetch(
            "first_places", queue=queue, phase=int(Phase.FRESH), floors=floors
        )
    )
    appended = message_id(begins + 1, 0)
    first = {int(rank): min(int(place), appended) for rank, place in rows}
    core.floors[queue] = (
        tuple(max(floor, first.get(rank, appended)) for rank, floor in enumerate(floors)),
        now,
    )
