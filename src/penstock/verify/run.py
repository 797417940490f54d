"""A run of verify: the log, then each queue, then each message, then the log again.

Memory: 20 bytes per log entry, 8 bytes per delivery, and one page. Nothing is written, and
nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import StoreCorrupt
from penstock.model.clock import Clock, SystemClock
from penstock.model.queue import QueueInfo, RetryPosition
from penstock.verify.browse import Scan, Scans, Turn, browse, failed_place, home_of, peek
from penstock.verify.counts import Owners, Picture, Tally, check_counts, take_picture
from penstock.verify.dead_letters import check_granted, check_lists, check_payloads
from penstock.verify.deliveries import check_reference, defects_of, out_of_order
from penstock.verify.inspection import (
    Damaged,
    Gone,
    Inspection,
    Missing,
    Progress,
    Store,
)
from penstock.verify.log import read_again, read_first
from penstock.verify.report import Report
from penstock.verify.routing import Routing
from penstock.verify.states import check_messages, check_seen_twice

__all__ = ["verify"]

_CLOCK = SystemClock()


async def verify(
    store: Store,
    *,
    queues: Sequence[str] | None = None,
    deep: bool = True,
    progress: Progress | None = None,
    clock: Clock = _CLOCK,
) -> Report:
    """Check every law that can be checked by reading; without ``queues``, in all queues.

    A ``deep`` run also reads payloads and histories, with one or two calls per message. The
    store may be in use meanwhile. ``progress`` is called with what is read, how much of it is
    done, and the total. Raises ``UnknownQueue`` before anything is read.
    """
    started_at = clock.now()
    work = Inspection(store, deep=deep, progress=progress)
    work.queues = await _selected(work, queues)
    before = await _pulse(work)
    await read_first(work)
    for info in work.queues.values():
        await _check_queue(work, info)
    if deep:
        await check_messages(work)
    await read_again(work)
    after = await _pulse(work)
    return Report(
        checks=work.ledger.checks(deep=deep),
        started_at=started_at,
        finished_at=clock.now(),
        deep=deep,
        quiescent=before is not None and before == after,
        queues=len(work.queues),
        log_entries=len(work.index),
        deliveries=sum(scans.count for scans in work.scans.values()),
    )


async def _selected(work: Inspection, names: Sequence[str] | None) -> dict[str, QueueInfo]:
    if names is not None:
        chosen: dict[str, QueueInfo] = {}
        for home in dict.fromkeys(home_of(name) for name in names):
            try:
                chosen[home] = await work.store.queue(home)
            except StoreCorrupt as error:
                work.damaged(Damaged(error.detail), "the queue", queue=home)
        return chosen
    infos = await work.read(work.store.queues(), "the list of queues")
    if isinstance(infos, Missing):
        return {}
    return {info.name: info for info in infos}


# -- one queue -----------------------------------------------------------------------------


class _Browsing:
    """The state while one queue is browsed."""

    def __init__(self, work: Inspection, picture: Picture) -> None:
        self.work = work
        back = picture.info.policy.retry_position is RetryPosition.BACK
        self.scans = Scans(picture.info.name, moves_back=back)
        self.tally = Tally(picture.info)
        self.routing = Routing(work, picture.info)
        self.owners = Owners(work, picture)
        self._expected = picture.deliveries

    async def browse(self, scan: Scan) -> None:
        """Scan one place, and check each delivery on its own."""
        place = scan.place
        async for turn in browse(self.work, place):
            if isinstance(turn.page, Missing):
                self.work.damaged(turn.page, f"what is {place}", queue=place.queue)
                return
            scan.begin_page(turn.before, turn.cursor)
            if not scan.moves_back:
                await self._check_order(scan, turn)
            for item in turn.page.items:
                scan.add(item.message)
            for item in turn.page.items:
                for defect in defects_of(place, item):
                    self.work.ledger.violation(
                        defect.law, defect.detail, queue=place.queue, message_id=item.message.id
                    )
                await check_reference(self.work, scan, item)
                await self.routing.check(item)
                await self.owners.check(scan, item)
                if scan is self.scans.failed:
                    await check_granted(self.work, item)
                else:
                    self.tally.see(place, item)
            done = self.scans.count
            self.work.tell(f"queue {self.scans.home}", done, max(done, self._expected))
            for law in ("X1", "C1", "C2", "C3", "C4"):
                self.work.ledger.examined(law, len(turn.page.items))
        scan.complete = True

    async def _check_order(self, scan: Scan, turn: Turn) -> None:
        """C4 within a page is one moment; between two pages, the cursor has to be read again."""
        assert not isinstance(turn.page, Missing)
        place = scan.place
        detail = f"{place}, it comes after a delivery that it precedes in claim order"
        for item in out_of_order(-1, turn.page.items):
            self.work.ledger.violation("C4", detail, queue=place.queue, message_id=item.message.id)
        if not list(out_of_order(turn.before, turn.page.items[:1])):
            return

        async def check() -> str | None:
            page = await peek(self.work, place, turn.cursor)
            if isinstance(page, Missing) or not list(out_of_order(turn.before, page.items[:1])):
                return None
            return detail

        message_id = turn.page.items[0].message.id
        await self.work.confirm("C4", check, queue=place.queue, message_id=message_id)


async def _check_queue(work: Inspection, info: QueueInfo) -> None:
    before = await take_picture(work, info.name)
    if isinstance(before, Missing):
        return
    browsing = _Browsing(work, before)
    scans = browsing.scans
    for place, scan in scans.by_place.items():
        await browsing.browse(scan)
        if place == failed_place(info.name):
            await browsing.browse(scans.failed)
    after = await work.look(work.store.stats(info.name))
    if isinstance(after, Gone):
        return  # Deleted while it was browsed.
    if not isinstance(after, Missing):
        browsing.owners.note(after)
    work.scans[info.name] = scans
    if scans.complete:
        await check_counts(work, before, browsing.tally)
    else:
        for law in ("S3", "Q2"):
            work.ledger.skip(law, f"{info.name!r} could not be read completely")
    await check_seen_twice(work, scans)
    await check_lists(work, scans)
    if work.deep:
        await check_payloads(work, info.name)


# -- whether anything moved ----------------------------------------------------------------


async def _pulse(work: Inspection) -> object:
    """The ends and counters of all verified queues, to compare; None if one cannot be read."""
    end = await work.look(work.store.log_end())
    pictures = [await take_picture(work, name) for name in work.queues]
    known = [picture for picture in pictures if not isinstance(picture, Missing)]
    if isinstance(end, Missing) or len(known) != len(pictures):
        return None
    return end, [(item.info, item.moving, item.queue.partitions) for item in known]
