"""Stores with every kind of record, and the comparison of a store with its copy."""

from __future__ import annotations

from typing import Any

from penstock.model.delivery import Ack, Nack, ReplaySource
from penstock.model.message import NewMessage, Offset, Outgoing
from penstock.model.queue import Ordering, QueuePolicy, RetryPosition, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.testing.comparing import Plain, Side, difference
from tests.upgrade.write_store import LEASE_MS, fill

__all__ = ["OTHER", "TENANT", "fill_store", "opened", "sides"]

TENANT = "default"
OTHER = "other"


async def opened(url: str, clock: FakeClock, **options: Any) -> Engine:
    return await open_engine(url, EngineOptions(clock=clock, **options))


async def fill_store(engine: Engine, clock: FakeClock) -> dict[str, str]:
    """Leave every kind of record; returns receipts of deliveries in flight, by queue."""
    held = await fill(engine, clock)
    back = QueuePolicy(filter="topic = 'retries'", retry_position=RetryPosition.BACK)
    await engine.put_queue(TENANT, "back", back, Start())
    await engine.publish(TENANT, "retries", [NewMessage(b"r%d" % nth) for nth in range(4)])
    first, second = await engine.claim(TENANT, "back", "w1", 2, LEASE_MS)
    await engine.settle(TENANT, "back", [Nack(first.receipt, "later", 0)])
    await engine.publish(TENANT, "retries", [NewMessage(b"r4")])
    await engine.settle(TENANT, "back", [Nack(second.receipt, None, 700_000)])
    # Two tenants whose entries are between each other's.
    await engine.put_topic(OTHER, "things", TopicPolicy(dedup_scope="partition_key"))
    shared = QueuePolicy(filter="topic = 'things'", ordering=Ordering.PARTITION, bucket_size=0)
    await engine.put_queue(OTHER, "shared", shared, Start())
    for nth in range(3):
        new = NewMessage(b"t%d" % nth, id=f"i{nth}", partition_key="p", expires_at=10**13)
        await engine.publish(OTHER, "things", [new])
        await engine.publish(TENANT, "unrouted", [NewMessage(b"n%d" % nth, key="u")])
    await engine.join(OTHER, "shared", "w9")
    (thing,) = await engine.claim(OTHER, "shared", "w9", 1, LEASE_MS)
    await engine.settle(OTHER, "shared", [Ack(thing.receipt, b"fine")])
    (done, *_) = await engine.claim(TENANT, "unrouted", "w1", 2, LEASE_MS)
    follow_up = Outgoing("follow-up", (NewMessage(b"next"),))
    await engine.settle(TENANT, "unrouted", [Ack(done.receipt)], publish=[follow_up])
    await engine.replay(TENANT, "orders", ReplaySource.DONE, None, 1, replay_id="r2")
    return held


async def sides(source: Engine, copy: Engine) -> str | None:
    """The first difference between two stores, as readers see them; None if there is none."""
    ours, theirs = await _picture(source), await _picture(copy)
    return difference(ours, theirs)


async def _picture(engine: Engine) -> dict[str, Plain]:
    side = Side(engine)
    shown: dict[str, Plain] = {}
    for tenant in (TENANT, OTHER):
        page = await engine.read_log(tenant, Offset(0), 10_000)
        side.offsets(tenant).extend(entry.message.offset for entry in page.entries)
        shown[tenant] = await side.picture(tenant, scan=True)
        shown[f"{tenant} topics"] = dict(await engine.list_topics(tenant))
        shown[f"{tenant} results"] = {
            queue.name: [
                side.result(tenant, await engine.result(tenant, queue.name, shown_one.message.id))
                for state in (State.DONE, State.FAILED, State.EXPIRED)
                for shown_one in (await engine.peek(tenant, queue.name, state, None, 100)).items
            ]
            for queue in await engine.list_queues(tenant)
        }
    shown["documents"] = await side.documents(("notes",))
    return shown
