"""The groups that a claim without locks hands out: where they come from, and what its write checks.

See ``front`` for the memory of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.model.states import State
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import FirstGroups, Row
from penstock.storage.sql.deliveries import message_id, phases_of
from penstock.storage.sql.floors import floors_of
from penstock.storage.sql.front import LAST, Front, Position, Side
from penstock.storage.sql.granting import Stretch
from penstock.storage.sql.work import Work

__all__ = ["assume_first", "bound", "find_front"]

#: Groups that a claim reads at least, for the claims after it: reading sixteen takes a few
#: microseconds longer than two, and the read is a third of a claim.
_READ_AHEAD: Final = 16


async def find_front(
    core: Core, work: Work, side: Side, phases: Sequence[int], most: int, wanted: int
) -> Front:
    """The first groups of a queue without locks: from this server's memory, or from the database.

    Other servers may publish. If there are any, the memory has to suffice for the claim.
    """
    queue, dead = side
    needed = wanted if core.database.has_company and work.front is None else 1
    front = work.front or core.fronts.find(side)
    if front is not None and front.serves(most, needed):
        return front
    most = max(most, _READ_AHEAD)
    floors = () if dead else floors_of(core, queue)
    rows = await work.session.first_groups(queue, phases, floors, most)
    work.front = core.fronts.read(side, rows, bound(rows, phases, most))
    return work.front


def assume_first(core: Core, work: Work, side: Side, found: Sequence[Stretch]) -> None:
    """Have the write check that no other group precedes the last of the deliveries.

    Without deliveries: that the queue has no other group at all. What the claim has read itself
    needs no check.
    """
    queue, dead = side
    front = None if work.front is not None else core.fronts.find(side)
    if front is None:
        work.first = None
        return
    position = LAST
    if found:
        group, members = found[-1]
        last = group.record.position
        position = group.rank, message_id(group.segment, members[-1]) if last is None else last
    phases = [int(phase) for phase in phases_of(State.AVAILABLE, dead=dead)]
    floors = () if dead else floors_of(core, queue)
    work.first = FirstGroups(queue, phases, floors, *position, front.count_through(position))


def bound(rows: Sequence[Row], phases: Sequence[int], most: int) -> Position | None:
    """The position up to which the groups are complete; None if all were read.

    The row key of a waiting group is its position.
    """
    ends: list[Position] = []
    for phase in phases:
        of_phase = [row for row in rows if row[1] == phase]
        if len(of_phase) >= most:
            ends.append((of_phase[-1][2], of_phase[-1][3]))
    return min(ends, default=None)
