"""A store that lies: what a broker answers, changed by whatever a test hangs in.

And a store to lie about: one with deliveries in every state and place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock import Broker, NewMessage, PenstockError, State
from penstock.errors import StoreCorrupt
from penstock.model.delivery import (
    Event,
    LogEntry,
    LogPage,
    MessageDeliveries,
    Page,
    QueueStats,
    Snapshot,
)
from penstock.model.message import Offset
from penstock.model.queue import QueueInfo
from penstock.testing.clock import FakeClock


def corrupt() -> PenstockError:
    return StoreCorrupt("The checksum is wrong.")


class Liar:
    """The verbs that verify uses; each answer goes through a hook."""

    def __init__(self, store: Broker) -> None:
        self._store = store
        self.on_queue: Callable[[QueueInfo], QueueInfo] = lambda info: info
        self.on_stats: Callable[[str, QueueStats], QueueStats] = lambda _, stats: stats
        #: The deliveries of a page: queue, state, and what is there.
        self.on_page: Callable[[str, State, list[Snapshot]], list[Snapshot]] = lambda _q, _s, i: i
        self.on_log: Callable[[list[LogEntry]], list[LogEntry]] = lambda entries: entries
        self.on_log_page: Callable[[LogPage], LogPage] = lambda page: page
        self.on_message: Callable[[MessageDeliveries], MessageDeliveries] = lambda found: found
        self.on_history: Callable[[int, tuple[Event, ...]], tuple[Event, ...]] = lambda _, e: e

    async def queues(self) -> tuple[QueueInfo, ...]:
        return tuple([self.on_queue(info) for info in await self._store.queues()])

    async def queue(self, name: str) -> QueueInfo:
        return self.on_queue(await self._store.queue(name))

    async def stats(self, queue: str) -> QueueStats:
        return self.on_stats(queue, await self._store.stats(queue))

    async def peek(
        self,
        queue: str,
        state: State,
        *,
        limit: int,
        cursor: str | None = None,
        payloads: bool = False,
    ) -> Page:
        page = await self._store.peek(queue, state, limit=limit, cursor=cursor, payloads=payloads)
        return Page(tuple(self.on_page(queue, state, list(page.items))), page.cursor)

    async def read_log(self, start: int, *, limit: int, payloads: bool = False) -> LogPage:
        page = await self._store.read_log(start, limit=limit, payloads=payloads)
        return self.on_log_page(LogPage(tuple(self.on_log(list(page.entries))), page.next_offset))

    async def log_end(self) -> Offset:
        return await self._store.log_end()

    async def message(self, message_id: int) -> MessageDeliveries:
        return self.on_message(await self._store.message(message_id))

    async def history(self, message_id: int) -> tuple[Event, ...]:
        return self.on_history(message_id, await self._store.history(message_id))


#: Payload to where the message ends up; each is an offset apart.
LIVES: Final = ("done", "failed", "in flight", "released", "retried", "expired", "delayed")


class Stock(Struct, frozen=True):
    """A sound store, and the ids of what is in it."""

    store: Broker
    ids: dict[str, int]

    def __getitem__(self, name: str) -> int:
        return self.ids[name]


async def stock_up(q: Broker, clock: FakeClock) -> Stock:
    """Deliveries of ``jobs`` in every place, an ordered queue, and one that is behind."""
    await q.create_queue("jobs", "topic = 'jobs'", max_attempts=3)
    await q.create_queue("lanes", "topic = 'lanes'", ordering="partition")
    ids: dict[str, int] = {}
    for name in ("done", "failed", "in flight", "released", "retried"):
        ids[name] = (await q.publish("jobs", name.encode(), headers={"name": name})).id
    ids["expired"] = (await q.publish("jobs", b"expired", ttl_ms=5_000)).id
    ids["delayed"] = (await q.publish("jobs", b"delayed", delay_ms=3_600_000)).id
    clock.advance(10)
    await _settle_some(q, clock)
    clock.advance(10_000)
    await q.sweep()
    for name in ("first", "second", "third"):
        ids[name] = (await q.publish("jobs", name.encode(), ttl_ms=3_600_000)).id
    ids["keyed"] = (await q.publish("jobs", b"old", key="k")).id
    ids["replaced"] = (await q.publish("jobs", b"new", key="k")).offset
    for partition in ("a", "b"):
        batch = [NewMessage(b"%d" % n, partition_key=partition) for n in range(2)]
        reply = await q.publish_batch("lanes", batch)
        ids |= {f"{partition}{n}": item.id for n, item in enumerate(reply.messages)}
    await q.claim("lanes", consumer="anna", limit=1)
    await q.publish("behind", b"first", headers={"late": True})
    await q.create_queue("behind.queue", "late = TRUE", start="earliest")
    ids["unrouted"] = (await q.publish("behind", b"second", headers={"late": True})).id
    return Stock(q, ids)


async def _settle_some(q: Broker, clock: FakeClock) -> None:
    done, failed, held, released, retried = await q.claim(
        "jobs", limit=5, lease_ms=3_600_000, consumer="anna"
    )
    assert [d.payload for d in (done, failed, held, released, retried)] == [
        name.encode() for name in LIVES[:5]
    ]
    clock.advance(10)
    await q.ack(done)
    await q.reject(failed, "no good")
    await q.release(released)
    await q.nack(retried, "again", delay_ms=0)
