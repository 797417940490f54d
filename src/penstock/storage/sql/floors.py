"""Floors: where a search for the first groups of a queue starts.

A floor is, per rank, the row position below which a queue has no fresh group and will get none.

Claims leave dead rows at the head of a queue. While an older transaction is open (a report, a
backup), the database cannot remove them, and every search for the first group of the queue has to
scan them all. With floors a claim starts its search behind them.

They stay valid when other servers write. Fresh groups come from publishes only. An open publish
began at a segment at or above ``Stable.oldest``, and a later one appends above ``Stable.given``;
both are read before the groups. A claim leaves the rest of a group behind that group, in the same
rank, and a rolled back claim leaves the group where it was.

Databases that do not profit from floors (``Database.has_floors``) have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.storage.sql.core import Core
from penstock.storage.sql.deliveries import Phase, message_id

__all__ = ["NO_FLOORS", "floors_of", "raise_floors"]

#: Search every rank from its beginning.
NO_FLOORS: Final = (0,) * 10
#: How long floors are used before they are read again, in milliseconds.
_KEEP_MS: Final = 250


def floors_of(core: Core, queue: int) -> Sequence[int]:
    """The floors of a queue, by rank; empty if none are known."""
    return core.floors.get(queue, ((), 0))[0]


async def raise_floors(core: Core, queue: int) -> None:
    """Refresh the floors of a queue, if they are not recent."""
    if not core.database.has_floors:
        return
    now = core.clock.now()
    known = core.floors.get(queue)
    if known is None:
        # Skip the first claim: most queues are not busy.
        core.floors[queue] = ((), now)
        return
    floors, read_at = known
    if 0 <= now - read_at < _KEEP_MS:
        return
    floors = floors or NO_FLOORS
    stable = await core.stable()
    begins = stable.given if stable.oldest is None else min(stable.given, stable.oldest)
    rows = await core.fetch("first_row_keys", queue=queue, phase=int(Phase.FRESH), floors=floors)
    appended = message_id(begins + 1, 0)
    first = {int(rank): min(int(row_key), appended) for rank, row_key in rows}
    core.floors[queue] = (
        tuple(max(floor, first.get(rank, appended)) for rank, floor in enumerate(floors)),
        now,
    )
