"""Stores with every kind of record, and the comparison of a store with its copy."""

from __future__ import annotations

from typing import Any

from penstock.model.delivery import Ack, Nack, Receipt, ReplaySource
from penstock.model.message import NewMessage, Offset, Outgoing
from penstock.model.queue import Ordering, QueuePolicy, RetryPosition, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.testing.comparing import Plain, Side, difference
from tests.upgrade.write_store import LEASE_MS, fill

__all__ = ["OTHER", "TENANT", "behaviour", "fill_store", "opened", "sides"]

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


async def behaviour(engine: Engine, clock: FakeClock, held: dict[str, str]) -> dict[str, Plain]:
    """What a store does next, without ids and receipts, which differ between engines."""
    shown: dict[str, Plain] = {}
    for queue, receipt in sorted(held.items()):
        reply = await engine.settle(TENANT, queue, [Ack(Receipt(receipt), b"late")])
        again = await engine.settle(TENANT, queue, [Ack(Receipt(receipt), b"late")])
        shown[f"settle {queue}"] = [
            (str(outcome.verdict), outcome.state) for outcome in (*reply.outcomes, *again.outcomes)
        ]
    shown["known id"] = [
        one.duplicate
        for one in (await engine.publish(TENANT, "orders", [NewMessage(b"x", id="id-1")])).messages
    ]
    orders = [NewMessage(b"payload %d" % nth) for nth in range(10)]
    shown["known batch"] = (
        await engine.publish(TENANT, "orders", orders, batch_id="first")
    ).repeated
    thing = NewMessage(b"x", id="i1", partition_key="p")
    shown["known id of a partition"] = [
        one.duplicate for one in (await engine.publish(OTHER, "things", [thing])).messages
    ]
    replacing = NewMessage(b"newest", {"amount": 8}, key="k")
    shown["key"] = [
        one.replaced for one in (await engine.publish(TENANT, "orders", [replacing])).messages
    ]
    await engine.route(TENANT, "behind", 1_000)
    clock.advance(800_000)
    await engine.sweep()
    for tenant in (TENANT, OTHER):
        for info in await engine.list_queues(tenant):
            if info.policy.ordering is Ordering.PARTITION:
                await engine.join(tenant, info.name, "w5")
            for name in (info.name, f"{info.name}.dlq"):
                claimed = await engine.claim(tenant, name, "w5", 50, LEASE_MS)
                shown[f"{tenant} {name}"] = [
                    (one.payload, one.message.topic, one.attempts, one.error) for one in claimed
                ]
    return shown
