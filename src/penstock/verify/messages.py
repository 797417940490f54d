"""Checks every message: its state in each queue (S3), its payload (P3) and its history.

The deep part of a run. For every message of the log, the reply of ``message`` is compared with
what was seen in the queues, and its history with the delivery. If a history does not fit, it is
read again before and after the message: if both are equal, nothing happened in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Final

from penstock.model.delivery import Event, MessageDeliveries, Snapshot
from penstock.verify.browse import home_of
from penstock.verify.histories import history_defects, is_whole
from penstock.verify.inspection import RECHECKS, Inspection
from penstock.verify.log import is_intact
from penstock.verify.routing import Accounts
from penstock.verify.states import Standings, standing_of
from penstock.verify.store import Missing

__all__ = ["check_messages"]

#: Messages that are requested concurrently: enough to hide the round trips of a network.
_AT_ONCE: Final = 16
#: The laws that a history is checked for.
_HISTORY_LAWS: Final = ("C1", "C2", "C3", "S2")


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
    found = await work.look(work.store.message(message_id))
    if isinstance(found, Missing):
        work.damaged(found, "the message", message_id=message_id)
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
    events = await work.look(work.store.history(message_id))
    if isinstance(events, Missing):
        work.damaged(events, "the history", message_id=message_id)
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
    wrong: list[str] = []
    for _ in range(RECHECKS):
        standing = await standing_of(work, home, message_id)
        if isinstance(standing, Missing):
            continue
        if standing.shown is None or not is_whole(standing.events):
            return
        defects = history_defects(standing.shown, standing.events)
        details = [defect.detail for defect in defects if defect.law == law]
        if not details:
            return
        wrong.append(details[0])
    if len(wrong) > 1:
        work.ledger.violation(law, wrong[-1], queue=home, message_id=message_id)
    else:
        work.ledger.unresolved(law)


def _events_of(home: str, events: tuple[Event, ...]) -> list[Event]:
    return [event for event in events if home_of(event.queue) == home]
