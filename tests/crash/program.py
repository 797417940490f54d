"""Random programs for one engine, and everything there is to see of it after each verb.

The programs run on one client, verb after verb, so that the state after the n-th commit is
known exactly: a store that lost everything after that commit has to show the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from random import Random

from penstock.errors import Conflict
from penstock.filters import parse
from penstock.model.delivery import (
    Ack,
    Extend,
    Nack,
    Receipt,
    Reject,
    Release,
    ReplaySource,
    Settlement,
)
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import Backoff, Ordering, QueueInfo, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions, Outgoing
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter

TENANT = "default"
ALL = 1000


async def open_on(adapter: FaultyAdapter, clock: FakeClock) -> Engine:
    """An engine without any randomness of its own, which reads every payload from its adapter."""
    options = EngineOptions(clock=clock, jitter=lambda ceiling_ms: ceiling_ms // 2)
    return await KeyValueEngine.open(adapter, options, recent_payload_bytes=0)


async def everything(engine: Engine) -> Mapping[str, object]:
    """What the reading verbs show: the log, every delivery, every count, every history."""
    seen: dict[str, object] = {
        "queues": await engine.list_queues(TENANT),
        "topics": await engine.list_topics(TENANT),
        "documents": await engine.list_documents("keys"),
        "tenants": await engine.tenants(),
        "behind": await engine.behind(),
    }
    page = await engine.read_log(TENANT, Offset(0), ALL, payloads=True)
    seen["log"] = page.entries
    for message in sorted({entry.message.id for entry in page.entries}):
        seen[f"message {message}"] = await engine.message(TENANT, message)
        seen[f"history {message}"] = await engine.history(TENANT, message)
    for info in await engine.list_queues(TENANT):
        for name in (info.name, f"{info.name}.dlq"):
            seen[f"stats {name}"] = await engine.stats(TENANT, name)
            for state in State:
                found = await engine.peek(TENANT, name, state, None, ALL, payloads=True)
                seen[f"{state} {name}"] = found.items
    return seen


async def states(engine: Engine, queue: str) -> dict[int, list[State]]:
    """In which states each message of a queue is; exactly one is right (S3)."""
    found: dict[int, list[State]] = {}
    for state in State:
        for item in (await engine.peek(TENANT, queue, state, None, ALL)).items:
            found.setdefault(item.message.id, []).append(state)
    return found


class Program:
    """A random sequence of verbs."""

    def __init__(self, engine: Engine, clock: FakeClock, seed: int) -> None:
        self._engine = engine
        self._clock = clock
        self._random = Random(seed)
        self._number = 0
        #: Claims that were granted and not settled since; some have lapsed.
        self.held: dict[Receipt, str] = {}
        #: Receipts whose ack was acknowledged.
        self.acked: dict[Receipt, str] = {}

    async def begin(self) -> None:
        engine = self._engine
        small = QueuePolicy(max_attempts=3, bucket_size=1, backoff=Backoff(10, 1000))
        await engine.put_queue(TENANT, "jobs", small, Start())
        ordered = QueuePolicy(
            filter="partition_key IS NOT NULL", ordering=Ordering.PARTITION, max_attempts=2
        )
        await engine.put_queue(TENANT, "ordered", ordered, Start())
        await engine.put_topic(TENANT, "orders", TopicPolicy(dedup_window_ms=60_000))

    async def step(self) -> None:
        """One verb; it may be refused."""
        verbs = (
            *(self._publish for _ in range(4)),
            *(self._claim for _ in range(5)),
            *(self._settle for _ in range(5)),
            self._wait,
            self._sweep,
            self._bulk,
            self._change,
        )
        with contextlib.suppress(Conflict):
            await self._random.choice(verbs)()

    def messages(self) -> list[NewMessage]:
        random, now = self._random, self._clock.now()
        out = []
        for _ in range(random.randint(1, 4)):
            self._number += 1
            out.append(
                NewMessage(
                    random.randbytes(random.choice((0, 10, 500))) + b"%d" % self._number,
                    headers={"n": self._number, "even": self._number % 2 == 0},
                    id=random.choice((None, f"id{self._number % 9}")),
                    key=random.choice((None, None, f"key{self._number % 3}")),
                    partition_key=random.choice((None, "a", "b")),
                    priority=random.choice((4, 4, 9)),
                    deliver_at=random.choice((None, None, now + 500)),
                    expires_at=random.choice((None, None, None, now + 2000)),
                )
            )
        return out

    async def _publish(self) -> None:
        durability = self._random.choice(("fsync", "os"))
        await self._engine.publish(TENANT, "orders", self.messages(), durability)

    async def _claim(self) -> None:
        random = self._random
        queue = random.choice(("jobs", "jobs", "ordered", "jobs.dlq"))
        consumer = random.choice(("anna", "bert"))
        lease_ms = random.choice((100, 1000, 60_000))
        deliveries = await self._engine.claim(
            TENANT, queue, consumer, random.randint(1, 4), lease_ms
        )
        self.held.update((item.receipt, queue) for item in deliveries)

    async def _settle(self) -> None:
        random = self._random
        queue = random.choice(("jobs", "ordered", "jobs.dlq"))
        receipts = [receipt for receipt, place in self.held.items() if place == queue]
        items = [self._settlement(receipt) for receipt in receipts[: random.randint(1, 3)]]
        outgoing = [Outgoing("orders", self.messages())] if random.random() < 0.2 else []
        reply = await self._engine.settle(TENANT, queue, items, outgoing)
        for item, outcome in zip(items, reply.outcomes, strict=True):
            if not isinstance(item, Extend) and outcome.verdict != "aborted":
                del self.held[item.receipt]
            if isinstance(item, Ack) and outcome.ok:
                self.acked[item.receipt] = queue

    def _settlement(self, receipt: Receipt) -> Settlement:
        return self._random.choice(
            (
                Ack(receipt),
                Ack(receipt, b"result"),
                Nack(receipt, "again"),
                Nack(receipt, delay_ms=200),
                Reject(receipt, "no"),
                Release(receipt),
                Extend(receipt, 5000),
            )
        )

    async def _wait(self) -> None:
        self._clock.advance(self._random.choice((1, 100, 1000, 40_000)))

    async def _sweep(self) -> None:
        await self._engine.sweep()

    async def _bulk(self) -> None:
        random = self._random
        if random.random() < 0.5:
            source = random.choice((ReplaySource.FAILED, ReplaySource.LOG))
            await self._engine.replay(TENANT, "jobs", source, None, 3, replay_id="again")
            self.acked.clear()  # What was replayed no longer knows its old ack.
        else:
            state = random.choice((State.FAILED, State.AVAILABLE, State.EXPIRED))
            await self._engine.purge(TENANT, "jobs", state, None, 1)

    async def _change(self) -> None:
        random = self._random
        match random.randrange(6):
            case 0:
                await self._engine.leave(TENANT, "ordered", random.choice(("anna", "bert")))
            case 1:
                await self._engine.pause(TENANT, "ordered", random.random() < 0.3)
            case 2:
                policy = QueuePolicy(filter="even = TRUE")
                await self._engine.put_queue(TENANT, "late", policy, Start(Start.EARLIEST))
            case 3:
                await self._engine.put_document("keys", f"k{random.randrange(3)}", b"x")
            case 4:
                await self._engine.delete_document("keys", f"k{random.randrange(3)}")
            case _:
                for queue in await self._engine.list_queues(TENANT):
                    if queue.name == "late":
                        await self._catch_up(queue)

    async def _catch_up(self, queue: QueueInfo) -> None:
        """By the engine's router, or as one outside of it does."""
        if queue.cursor is None or self._random.random() < 0.5:
            await self._engine.route(TENANT, queue.name, 3)
            return
        page = await self._engine.read_log(TENANT, queue.cursor, 3)
        takes = parse(queue.policy.filter).matches
        messages = [entry.message for entry in page.entries]
        await self._engine.assign(
            TENANT,
            queue.name,
            filter=queue.policy.filter,
            start=queue.cursor,
            end=page.next_offset,
            offsets=[m.offset for m in messages if m.key is not None or takes(m)],
        )
