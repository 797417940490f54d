"""S3: a delivery is in exactly one state; and the deep part of a run, which checks every message.

Two views must agree: ``peek``, which was called for every state of the queue, and ``message``,
which shows one moment. A suspect was seen at two places, at another than ``message`` says, or at
none. It may only have moved, so it is checked again: ``message`` and ``history``, then ``peek``
at the places in question, then ``message`` and ``history``. If the first and last replies are
equal, it did not move in between, and ``peek`` must show it at the place that ``message`` names.

For every message of the log, a deep run compares the reply of ``message`` with what was seen in
the queues, its payload with the checksum (P3), and its history with the delivery. If a history does
not fit, it is read again before and after the message: if both are equal, nothing happened in
between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec import Struct

from penstock.model.delivery import Event, MessageDeliveries, Snapshot
from penstock.model.message import Message
from penstock.verify.browse import (
    Place,
    Scans,
    find,
    find_many,
    home_of,
    place_of,
    tally_ids,
)
from penstock.verify.histories import history_defects, is_whole
from penstock.verify.inspection import MOVED, Gone, Inspection, Missing
from penstock.verify.log import is_intact
from penstock.verify.routing import Accounts

__all__ = ["check_messages", "check_seen_twice", "confirm_places"]

#: Suspects that are checked as one batch: in a larger one they would move meanwhile.
_TOGETHER: Final = 256
#: Messages that are requested concurrently: enough to hide the round trips of a network.
_AT_ONCE: Final = 16
#: The laws that a history is checked for.
_HISTORY_LAWS: Final = ("C1", "C2", "C3", "S2")


class Standing(Struct, frozen=True):
    """A message's state in one queue at one moment, and its history."""

    shown: Snapshot | None
    """None if it is not in the queue."""
    events: tuple[Event, ...]


async def standing_of(work: Inspection, home: str, message_id: int) -> Standing | Missing:
    """The replies of ``message`` and ``history``; ``Missing`` too if it moved between them."""
    events = await work.history(message_id)
    found = await work.message(message_id)
    again = await work.history(message_id)
    if isinstance(events, Missing) or isinstance(found, Missing) or again != events:
        return Missing()
    shown = [item for item in found.deliveries if home_of(item.queue) == home]
    mine = tuple(event for event in events if home_of(event.queue) == home)
    return Standing(shown[0] if shown else None, mine)


async def check_seen_twice(work: Inspection, scans: Scans) -> None:
    """Check every message again that was seen at two places of one queue."""
    work.ledger.examined("S3", scans.count)
    async for message_id, count in tally_ids(scans.by_place.values()):
        if count == 1 or not work.may_confirm("S3", scans.home):
            continue
        found = await work.message(message_id)
        if not isinstance(found, Missing):
            places = scans.where(found.message)
            await confirm_places(work, scans, found.message, places)


class Standings:
    """Compares where ``message`` says that messages are with where they were seen.

    On a busy store nearly all suspects have only moved. They are collected, so that all on one
    page cost one more call; those still unexplained are confirmed one by one.
    """

    def __init__(self, work: Inspection) -> None:
        self._work = work
        self._suspects: dict[str, list[_Suspect]] = {}

    async def see(self, scans: Scans, message: Message, shown: Snapshot | None) -> None:
        """Compare one message in one queue."""
        seen = scans.where(message)
        said = [] if shown is None else [place_of(shown)]
        if seen == said:
            return
        suspects = self._suspects.setdefault(scans.home, [])
        suspects.append(_Suspect(message, tuple(dict.fromkeys([*seen, *said])), said))
        if len(suspects) >= _TOGETHER:
            await self._clear(scans)

    async def close(self) -> None:
        """Check the remaining suspects."""
        for home in list(self._suspects):
            await self._clear(self._work.scans[home])

    async def _clear(self, scans: Scans) -> None:
        work, suspects = self._work, self._suspects.pop(scans.home, [])
        there: dict[int, list[Place]] = {suspect.message.id: [] for suspect in suspects}
        for place in scans.by_place:
            messages = [item.message for item in suspects if place in item.places]
            found = await find_many(work, scans.of(place), messages)
            for message_id, answer in found.items():
                if not isinstance(answer, Missing):
                    there[message_id].append(place)
        for suspect in suspects:
            if there[suspect.message.id] == suspect.said:
                continue
            if work.may_confirm("S3", scans.home):
                await confirm_places(work, scans, suspect.message, suspect.places)


class _Suspect(Struct, frozen=True):
    message: Message
    places: tuple[Place, ...]
    """Where it was seen, and where ``message`` says it is."""
    said: list[Place]


def _disagreement(said: Place | None, there: list[Place]) -> str | None:
    if len(there) > 1:
        return "it is " + " and ".join(str(place) for place in there)
    if said is None:
        return f"it is {there[0]}, and message() does not list it" if there else None
    if not there:
        return f"message() says that it is {said}, and peek does not show it"
    return None if there == [said] else f"message() says that it is {said}, peek {there[0]}"


async def confirm_places(
    work: Inspection,
    scans: Scans,
    message: Message,
    places: Iterable[Place],
    judge: Callable[[Place | None, list[Place]], str | None] = _disagreement,
    law: str = "S3",
) -> None:
    """Report a violation if the views disagree repeatedly while nothing moves."""

    async def check() -> str | None:
        before = await standing_of(work, scans.home, message.id)
        if isinstance(before, Missing):
            return MOVED
        said = None if before.shown is None else place_of(before.shown)
        asked = dict.fromkeys([*places, *([said] if said is not None else [])])
        there = await _where(work, scans, message, asked)
        after = await standing_of(work, scans.home, message.id)
        return MOVED if there is None or after != before else judge(said, there)

    await work.confirm(law, check, queue=scans.home, message_id=message.id)


async def _where(
    work: Inspection, scans: Scans, message: Message, places: Iterable[Place]
) -> list[Place] | None:
    """The places where ``peek`` shows the message now; None if one cannot be read."""
    there: list[Place] = []
    for place in places:
        found = await find(work, scans.of(place), message)
        if not isinstance(found, Missing):
            there.append(place)
        elif not isinstance(found, Gone):
            work.damaged(found, f"what is {place}", queue=place.queue)
            return None
    return there


# -- every message ----------------------------------------------------------------------------


async def check_messages(work: Inspection) -> None:
    """Check every message that the log had when it was first read."""
    accounts, standings = Accounts(work), Standings(work)
    total = len(work.index)
    ids = _message_ids(work)
    done = 0
    while batch := list(islice(ids, _AT_ONCE)):
        checks = (_check(work, accounts, standings, message_id) for message_id in batch)
        # Let all of them finish before the first error is raised.
        for outcome in await asyncio.gather(*checks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        done += len(batch)
        work.tell("messages", done, total)
    await standings.close()
    work.tell("messages", total, total)
    accounts.close()


def _message_ids(work: Inspection) -> Iterator[int]:
    index = work.index
    return (index.ids[position] for position in range(len(index)) if index.is_first(position))


async def _check(
    work: Inspection, accounts: Accounts, standings: Standings, message_id: int
) -> None:
    found = await work.message(message_id)
    if isinstance(found, Missing):
        return
    work.ledger.examined("X1")
    if not is_intact(found.message, found.payload):
        detail = "its payload is not what was published"
        work.ledger.violation("P3", detail, message_id=message_id)
    accounts.see(found)
    by_home = _by_home(work, found)
    for home, scans in work.scans.items():
        if scans.complete:
            await standings.see(scans, found.message, by_home.get(home))
    if by_home:
        await _check_history(work, message_id, by_home)


def _by_home(work: Inspection, found: MessageDeliveries) -> dict[str, Snapshot]:
    """Its delivery per queue; ``message`` shows one moment, so two in a queue are two states."""
    by_home: dict[str, Snapshot] = {}
    for item in found.deliveries:
        home = home_of(item.queue)
        if home not in work.scans:
            continue
        first = by_home.setdefault(home, item)
        if first is not item:
            detail = f"message() says that it is {first.state.value} and {item.state.value}"
            work.ledger.violation("S3", detail, queue=home, message_id=found.message.id)
    return by_home


async def _check_history(work: Inspection, message_id: int, by_home: dict[str, Snapshot]) -> None:
    events = await work.history(message_id)
    if isinstance(events, Missing):
        return
    for home, shown in by_home.items():
        mine = _events_of(home, events)
        if not is_whole(mine):
            continue
        for law in _HISTORY_LAWS:
            work.ledger.examined(law)
        for law in dict.fromkeys(defect.law for defect in history_defects(shown, mine)):
            if work.may_confirm(law, home):
                await _confirm(work, law, home, message_id)


async def _confirm(work: Inspection, law: str, home: str, message_id: int) -> None:
    """Read the delivery and its history together until they do not move."""

    async def check() -> str | None:
        standing = await standing_of(work, home, message_id)
        if isinstance(standing, Missing):
            return MOVED
        if standing.shown is None or not is_whole(standing.events):
            return None
        defects = history_defects(standing.shown, standing.events)
        return next((defect.detail for defect in defects if defect.law == law), None)

    await work.confirm(law, check, queue=home, message_id=message_id)


def _events_of(home: str, events: tuple[Event, ...]) -> list[Event]:
    return [event for event in events if home_of(event.queue) == home]
