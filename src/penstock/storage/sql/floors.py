"""Floors: the place below which a queue has no fresh run, and never will have one again.

What was claimed leaves dead rows behind at the very head of a queue. While any transaction is open
that began before (a report, a backup), the database cannot remove them, and whoever looks for the
first run of the queue has to walk past them all. A floor lets a claim begin behind them.

It is safe to remember, whatever other servers do. New fresh runs come from publishes only. One
that is open now began at a segment that ``Stable.oldest`` is not above, and one that begins later
appends above ``Stable.given``; both are read before the runs are. What a claim leaves of a run is
behind that run, and a claim that is undone leaves it where it was seen.
"""

from __future__ import annotations

from typing import Final

from penstock.storage.sql.core import Core
from penstock.storage.sql.phases import Phase
from penstock.storage.sql.runs import message_id

__all__ = ["raise_floor"]

#: How long a floor is good enough, in milliseconds.
_KEEP_MS: Final = 250


async def raise_floor(core: Core, queue: int) -> None:
    """Bring the floor of a queue up to date, if it was not for a while."""
    now = core.clock.now()
    floor, read_at = core.floors.get(queue, (0, now))
    if 0 <= now - read_at < _KEEP_MS and queue in core.floors:
        return
    # At first it is not worth it: most queues are not busy.
    if queue in core.floors:
        stable = await core.stable()
        begins = stable.given if stable.oldest is None else min(stable.given, stable.oldest)
        rows = await core.plainly(
            lambda session: session.fetch(
                "first_places", queue=queue, phase=int(Phase.FRESH), floor=floor
            )
        )
        floor = max(floor, min([message_id(begins + 1, 0), *(row[0] for row in rows)]))
    core.floors[queue] = (floor, now)
