"""S3: a delivery is in exactly one state, never in two, never in none.

Two views must agree: ``peek``, which was called for every state of the queue, and ``message``,
which shows one moment. A suspect was seen at two places, at another than ``message`` says, or at
none. It may only have moved, so it is checked again: ``message`` and ``history``, then ``peek``
at the places in question, then ``message`` and ``history``. If the first and last replies are
equal, it did not move in between, and ``peek`` must show it at the place that ``message`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from penstock.model.delivery import Event, Snapshot
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
from penstock.verify.inspection import PAGE, RECHECKS, Inspection
from penstock.verify.store import Gone, Missing

__all__ = ["Standing", "Standings", "check_seen_twice", "confirm_places", "standing_of"]

#: Suspects that are checked as one batch: in a larger one they would move meanwhile.
_TOGETHER: Final = 256


class Standing(Struct, frozen=True):
    """A message's state in one queue at one moment, and its history."""

    message: Message
    shown: Snapshot | None
    """None if it is not in the queue."""
    events: tuple[Event, ...]


async def standing_of(work: Inspection, home: str, message_id: int) -> Standing | Missing:
    """The replies of ``message`` and ``history``; ``Missing`` too if it moved between them."""
    events = await work.look(work.store.history(message_id))
    found = await work.look(work.store.message(message_id))
    again = await work.look(work.store.history(message_id))
    for answer in (events, found, again):
        if isinstance(answer, Missing):
            work.damaged(answer, "the message", message_id=message_id)
    if isinstance(events, Missing) or isinstance(found, Missing) or again != events:
        return Missing()
    shown = [item for item in found.deliveries if home_of(item.queue) == home]
    mine = tuple(event for event in events if home_of(event.queue) == home)
    return Standing(found.message, shown[0] if shown else None, mine)


async def check_seen_twice(work: Inspection, scans: Scans) -> None:
    """Check every message again that was seen at two places of one queue."""
    work.ledger.examined("S3", scans.count)
    async for message_id, count in tally_ids(scans.by_place.values()):
        if count == 1 or not work.may_confirm("S3", scans.home):
            continue
        found = await work.look(work.store.message(message_id))
        if isinstance(found, Missing):
            work.damaged(found, "the message", message_id=message_id)
        else:
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
            found = await find_many(work.store, scans.of(place), messages, PAGE)
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


async def confirm_places(
    work: Inspection,
    scans: Scans,
    message: Message,
    places: Iterable[Place],
    judge: Callable[[Place | None, list[Place]], str | None] | None = None,
    law: str = "S3",
) -> None:
    """Report a violation if the views disagree repeatedly while nothing moves."""
    wrong: list[str] = []
    for _ in range(RECHECKS):
        before = await standing_of(work, scans.home, message.id)
        if isinstance(before, Missing):
            continue
        said = None if before.shown is None else place_of(before.shown)
        asked = dict.fromkeys([*places, *([said] if said is not None else [])])
        there = await _where(work, scans, message, asked)
        after = await standing_of(work, scans.home, message.id)
        if there is None or after != before:
            continue
        detail = (judge or _disagreement)(said, there)
        if detail is None:
            return
        wrong.append(detail)
    if len(wrong) > 1:
        work.ledger.violation(law, wrong[-1], queue=scans.home, message_id=message.id)
    else:
        work.ledger.unresolved(law)


async def _where(
    work: Inspection, scans: Scans, message: Message, places: Iterable[Place]
) -> list[Place] | None:
    """The places where ``peek`` shows the message now; None if one cannot be read."""
    there: list[Place] = []
    for place in places:
        found = await find(work.store, scans.of(place), message, PAGE)
        if not isinstance(found, Missing):
            there.append(place)
        elif not isinstance(found, Gone):
            work.damaged(found, f"what is {place}", queue=place.queue)
            return None
    return there


def _disagreement(said: Place | None, there: list[Place]) -> str | None:
    if len(there) > 1:
        return "it is " + " and ".join(str(place) for place in there)
    if said is None:
        return f"it is {there[0]}, and message() does not list it" if there else None
    if not there:
        return f"message() says that it is {said}, and peek does not show it"
    return None if there == [said] else f"message() says that it is {said}, peek {there[0]}"
