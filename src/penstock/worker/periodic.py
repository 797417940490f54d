"""Periodic tasks: every worker publishes the slots, and the store keeps one of each.

A slot is a moment of a schedule. Its message has an id that is derived from the task and the
slot, so it is stored once, no matter how many workers publish it (P4). A slot is
published up to ``LEAD_MS`` ahead and is due at the slot: clocks of workers that differ by less
do not matter, and a worker that dies meanwhile does not lose it.

Catch-up: if no worker was running at a slot, the next one to start publishes the latest missed
slot, provided that it is not older than ``catch_up``. Earlier missed slots are skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from penstock.api import QueueApi
from penstock.errors import BadInput, PenstockError
from penstock.model.clock import Clock
from penstock.model.cron import parse_cron
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import check_whole, shown
from penstock.model.message import NewMessage

__all__ = [
    "LEAD_MS",
    "MAX_CATCH_UP_MS",
    "SLOT_HEADER",
    "Every",
    "Periodic",
    "Schedule",
    "Slots",
    "publish_due",
    "publish_forever",
    "to_interval_ms",
    "to_schedule",
]

#: The header that has the slot, in epoch milliseconds.
SLOT_HEADER: Final = "slot"
#: A slot is published this long before it is due.
LEAD_MS: Final = 60_000
MIN_EVERY_MS: Final = 1_000
MAX_EVERY_MS: Final = 366 * 24 * 3600 * 1000
MAX_CATCH_UP_MS: Final = 7 * 24 * 3600 * 1000
#: Ids are remembered for longer than a slot can be published, by how far clocks may differ.
_SKEW_MS: Final = 3600 * 1000
#: After a publish that failed.
_RETRY_MS: Final = 5_000
#: The longest sleep. One until a slot next week would end late by the time for which the machine
#: was suspended, or by which its clock was set forward; the slot might be too old by then.
_MOST_SLEEP_MS: Final = 60_000

_log = logging.getLogger("penstock.worker")


class Schedule(Protocol):
    """The slots of a periodic task."""

    def after(self, at_ms: int) -> int:
        """The first slot after a moment, in epoch milliseconds."""
        ...

    def latest(self, since_ms: int, now_ms: int) -> int | None:
        """The last slot after one moment and not after another; None if there is none."""
        ...


class Every(Struct, frozen=True):
    """Slots at multiples of an interval since 1970, so that all workers agree on them."""

    interval_ms: int

    def after(self, at_ms: int) -> int:
        """The first slot after a moment."""
        return (at_ms // self.interval_ms + 1) * self.interval_ms

    def latest(self, since_ms: int, now_ms: int) -> int | None:
        """The last slot after one moment and not after another; None if there is none."""
        slot = now_ms // self.interval_ms * self.interval_ms
        return slot if slot > since_ms else None


class Slots(Struct, frozen=True):
    """What to publish now, and when to look again."""

    due: tuple[int, ...]
    look_at: int


class Periodic(Struct, frozen=True, kw_only=True):
    """A task, its schedule and its catch-up rule."""

    task: str
    queue: str
    message: NewMessage
    schedule: Schedule
    catch_up_ms: int
    ttl_ms: int | None

    def slots(self, now: int, last: int | None) -> Slots:
        """The slots to publish, given the time and the last slot that was published here."""
        since = now - self.catch_up_ms - 1
        if last is not None:
            since = max(since, last)
        missed = self.schedule.latest(since, now)
        due = () if missed is None else (missed,)
        upcoming = self.schedule.after(now if last is None else max(now, last))
        if upcoming - now <= LEAD_MS and (last is None or last <= now):
            return Slots((*due, upcoming), upcoming)
        look_at = upcoming - LEAD_MS if last is None or last <= now else last
        return Slots(due, look_at)

    def at(self, slot: int) -> NewMessage:
        """The message of a slot."""
        headers = {**self.message.headers, SLOT_HEADER: slot}
        expires_at = None if self.ttl_ms is None else slot + self.ttl_ms
        return replace(self.message, headers=headers, deliver_at=slot, expires_at=expires_at)


def to_schedule(cron: str | None, every: Duration | None, timezone: str) -> Schedule:
    """The schedule of the arguments; ``BadInput`` unless there is exactly one valid one."""
    if (cron is None) == (every is None):
        raise BadInput("A periodic task needs either cron or every.", field="cron")
    try:
        zone = ZoneInfo(timezone)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise BadInput(
            f"There is no time zone {shown(timezone)}; use an IANA name such as Europe/Berlin.",
            field="timezone",
        ) from error
    if cron is not None:
        return parse_cron(cron, zone)
    if timezone != "UTC":
        raise BadInput("An interval has no time zone; use cron.", field="timezone")
    assert every is not None
    return Every(to_interval_ms("every", every, MIN_EVERY_MS, MAX_EVERY_MS))


def to_interval_ms(field: str, value: Duration, least: int, most: int) -> int:
    """A duration in milliseconds, within bounds."""
    ms = to_ms(value)
    check_whole(field, ms, least, most)
    return ms


async def publish_due(
    q: QueueApi, periodic: Periodic, now: int, last: int | None
) -> tuple[int | None, int]:
    """Publish the slots that are due; returns the last one, and when to look again."""
    slots = periodic.slots(now, last)
    for slot in slots.due:
        reply = await q.publish_batch(
            periodic.queue,
            [periodic.at(slot)],
            batch_id=f"periodic:{periodic.task}:{slot}",
            batch_ms=periodic.catch_up_ms + LEAD_MS + _SKEW_MS,
        )
        if not reply.repeated:
            _log.info("periodic task %r: published the slot %d", periodic.task, slot)
        last = slot
    return last, slots.look_at


async def publish_forever(q: QueueApi, periodics: Sequence[Periodic], clock: Clock) -> None:
    """Publish the slots of all periodic tasks until cancelled.

    Raises errors that no retry fixes, such as a credential that may not publish.
    """
    last: dict[str, int | None] = {}
    look_at: dict[str, int] = {}
    while True:
        now = clock.now()
        for periodic in periodics:
            if look_at.get(periodic.task, now) > now:
                continue
            try:
                last[periodic.task], look_at[periodic.task] = await publish_due(
                    q, periodic, now, last.get(periodic.task)
                )
            except PenstockError as error:
                if not error.retryable and error.status < 500:
                    raise
                _log.warning("periodic task %r was not published: %s", periodic.task, error)
                look_at[periodic.task] = now + _RETRY_MS
        await _sleep_until(clock, min(*look_at.values(), now + _MOST_SLEEP_MS))


async def _sleep_until(clock: Clock, at_ms: int) -> None:
    rang = asyncio.Event()
    alarm = clock.call_at(at_ms, rang.set)
    try:
        await rang.wait()
    finally:
        alarm.cancel()
