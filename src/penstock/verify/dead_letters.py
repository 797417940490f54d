"""D1: dead-lettering loses nothing.

- The failed deliveries of Q are those that can be claimed from ``Q.dlq``: both lists agree.
- Each was granted before it failed, or was replayed into the dead-letter queue.
- A deep run reads each payload from ``Q.dlq`` and compares it with what was published. The
  histories check that the error and the history are still there.
"""

from __future__ import annotations

from functools import partial

from penstock.model.delivery import Page, Snapshot
from penstock.model.limits import DLQ_SUFFIX
from penstock.model.states import State, Transition
from penstock.verify.browse import Place, Scans, browse, failed_place, peek, tally_ids
from penstock.verify.inspection import PAGE, PAYLOAD_BYTES, Inspection, Missing
from penstock.verify.log import is_intact
from penstock.verify.states import confirm_places

__all__ = ["check_granted", "check_lists", "check_payloads"]


async def check_lists(work: Inspection, scans: Scans) -> None:
    """Check that the dead-letter queue hands out exactly what failed in the queue."""
    claimable = scans.of(failed_place(scans.home))
    work.ledger.examined("D1", claimable.count)
    if not (claimable.complete and scans.failed.complete):
        return
    both = (scans.failed.place, claimable.place)
    async for message_id, count in tally_ids((claimable, scans.failed)):
        if count == len(both) or not work.may_confirm("D1", scans.home):
            continue
        found = await work.message(message_id)
        if not isinstance(found, Missing):
            judge = partial(_one_sided, both)
            await confirm_places(work, scans, found.message, both, judge, "D1")


async def check_granted(work: Inspection, shown: Snapshot) -> None:
    """Check that it was granted before it failed; only a replay resets the attempts."""
    message_id = shown.message.id
    if shown.attempts > 0 or not work.may_confirm("D1", shown.queue):
        return

    async def check() -> str | None:
        events = await work.history(message_id)
        if isinstance(events, Missing) or not events:
            return None
        replayed = any(event.transition is Transition.REPLAY for event in events)
        return None if replayed else "it failed without ever having been granted"

    await work.confirm("D1", check, queue=shown.queue, message_id=message_id)


async def check_payloads(work: Inspection, home: str) -> None:
    """Read every dead letter's payload from the dead-letter queue."""
    for state in (State.DELAYED, State.IN_FLIGHT, State.AVAILABLE):
        place = Place(home + DLQ_SUFFIX, state)
        async for turn in browse(work, place):
            if not isinstance(turn.page, Missing):
                await _check_page(work, place, turn.cursor, turn.page)


async def _check_page(work: Inspection, place: Place, cursor: str | None, known: Page) -> None:
    """Read a page again with payloads, in parts that bound their size."""
    largest = max((item.message.size for item in known.items), default=0)
    limit = max(1, min(PAGE, PAYLOAD_BYTES // max(1, largest)))
    left = len(known.items)
    while left > 0:
        page = await peek(work, place, cursor, limit=limit, payloads=True)
        if isinstance(page, Missing) and limit > 1:
            limit = 1
            continue
        if isinstance(page, Missing):
            damage = page
            page = await peek(work, place, cursor, limit=1)
            if isinstance(page, Missing):
                return
            for item in page.items:
                work.damaged(damage, "the payload", queue=place.queue, message_id=item.message.id)
        else:
            for item in page.items:
                if not is_intact(item.message, item.payload):
                    detail = "its payload in the dead-letter queue is not what was published"
                    work.ledger.violation(
                        "D1", detail, queue=place.queue, message_id=item.message.id
                    )
        if page.cursor is None:
            return
        left -= max(1, len(page.items))
        cursor = page.cursor


def _one_sided(both: tuple[Place, Place], said: Place | None, there: list[Place]) -> str | None:
    listed = [place for place in both if place in there]
    if said == both[1]:
        missing = [place for place in both if place not in there]
        return f"it failed, and peek does not show it {missing[0]}" if missing else None
    return f"it did not fail, and peek shows it {listed[0]}" if listed else None
