"""The process that is killed: producers and consumers on one store in a folder, recorded.

Run as a program it is a nursery: it imports everything once, and for every line on its
standard input forks a child that opens the store and works until it is killed. The nursery
answers with the child's pid, and with its exit status once it is dead. Threads and the store
come after the fork, so that a child begins in milliseconds and nothing is shared.

The child writes its history to a pipe, one event a line; see penstock.testing.history.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from random import Random
from urllib.parse import quote

# Here and not in the child: importing an engine takes longer than most children live.
import penstock.storage.keyvalue.adapters.rocksdb
import penstock.storage.keyvalue.opening  # noqa: F401
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Outcome,
    Receipt,
    Reject,
    Release,
    Settlement,
)
from penstock.model.message import NewMessage
from penstock.model.queue import Backoff, QueuePolicy, Start
from penstock.storage.contract import Engine, EngineOptions, Outgoing
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.adapters.files import adapter
from penstock.testing.history import (
    Claim,
    Claimed,
    Granted,
    Publish,
    Published,
    Recorder,
    Refused,
    Settle,
    Settled,
    digest,
)

#: The size of a journal at which a store in files makes a checkpoint.
CHECKPOINT_BYTES = "PENSTOCK_TEST_CHECKPOINT_BYTES"
TENANT, TOPIC, QUEUE = "default", "orders", "jobs"
MAX_ATTEMPTS = 4
POLICY = QueuePolicy(
    max_attempts=MAX_ATTEMPTS,
    # Short, so that leases lapse inside a run and across two.
    min_lease_ms=10,
    backoff=Backoff(base_ms=5, max_ms=20),
    # Nothing leaves: the history is checked against everything that ever happened.
    done_retention_s=0,
    failed_retention_s=0,
    # Small buckets, so that a few messages are many records.
    bucket_size=1,
)
PRODUCERS, CONSUMERS = 3, 4
#: A consumer that found nothing waits so long before it asks again.
IDLE_S = 0.002
VERBS = {Ack: "ack", Nack: "nack", Reject: "reject", Release: "release", Extend: "extend"}


def store_url(path: str, scheme: str = "rocksdb") -> str:
    return f"{scheme}://{quote(path)}"


def batch(name: str) -> list[NewMessage]:
    """The batch of that name: the same messages whenever it is asked for.

    A name that begins with ``id`` has idempotency ids and may be published again.
    """
    random = Random(name)
    return [
        NewMessage(
            f"{name}/{number}/".encode() + random.randbytes(random.choice((0, 20, 300, 3000))),
            id=f"{name}/{number}" if name.startswith("id") else None,
            priority=random.choice((4, 4, 4, 9)),
        )
        for number in range(random.randint(1, 6))
    ]


class Client:
    """Publishes, claims and settles, and records all of it."""

    def __init__(self, engine: Engine, recorder: Recorder, options: EngineOptions) -> None:
        self._engine = engine
        self._recorder = recorder
        self._clock = options.clock

    async def publish(self, name: str, durability: str) -> None:
        messages = batch(name)
        call = self._begin_publish(messages)
        reply = await self._engine.publish(TENANT, TOPIC, messages, durability)
        ids = tuple(item.id for item in reply.messages)
        self._recorder.record(Published(call=call, messages=ids))

    async def claim(self, consumer: str, limit: int, lease_ms: int | None) -> list[Delivery]:
        call = self._recorder.call()
        self._recorder.record(Claim(call=call, queue=QUEUE))
        deliveries = await self._engine.claim(TENANT, QUEUE, consumer, limit, lease_ms)
        for item in deliveries:
            self._recorder.record(
                Granted(
                    call=call,
                    queue=item.queue,
                    message=item.message.id,
                    payload=digest(item.payload),
                    receipt=item.receipt,
                    attempts=item.attempts,
                    claimed_at=item.claimed_at,
                    deadline=item.lease_deadline,
                    consumer=consumer,
                )
            )
        self._recorder.record(Claimed(call=call))
        return deliveries

    async def settle(self, items: list[Settlement], publish: str | None = None) -> None:
        """Settle in one call, with a batch of that name if there is one."""
        calls = [self._begin_settle(item) for item in items]
        outgoing: list[Outgoing] = []
        publishing = 0
        if publish is not None:
            messages = batch(publish)
            publishing = self._begin_publish(messages)
            outgoing = [Outgoing(TOPIC, messages)]
        reply = await self._engine.settle(TENANT, QUEUE, items, outgoing)
        for call, outcome in zip(calls, reply.outcomes, strict=True):
            self._end_settle(call, outcome)
        if publish is not None and reply.published:
            ids = tuple(item.id for item in reply.published)
            self._recorder.record(Published(call=publishing, messages=ids))
        elif publish is not None:
            self._recorder.record(Refused(call=publishing))

    def _begin_publish(self, messages: list[NewMessage]) -> int:
        call = self._recorder.call()
        payloads = tuple(digest(message.payload) for message in messages)
        ids = tuple(message.id for message in messages)
        self._recorder.record(Publish(call=call, payloads=payloads, ids=ids))
        return call

    def _begin_settle(self, item: Settlement) -> int:
        call = self._recorder.call()
        lease_ms = (item.lease_ms or 0) if isinstance(item, Extend) else 0
        self._recorder.record(
            Settle(
                call=call,
                receipt=item.receipt,
                verb=VERBS[type(item)],
                at=self._clock.now(),
                lease_ms=lease_ms,
            )
        )
        return call

    def _end_settle(self, call: int, outcome: Outcome) -> None:
        # An outcome that is neither took no effect, and says nothing about the claim.
        if outcome.verdict == "aborted":
            self._recorder.record(
                Settled(call=call, verdict="aborted", state=None, until=None, at=2**53)
            )
            return
        self._recorder.record(
            Settled(
                call=call,
                verdict=outcome.verdict,
                state=outcome.state,
                until=outcome.until,
                at=self._clock.now(),
            )
        )


async def produce(client: Client, random: Random, name: str) -> None:
    """Publish for ever; some batches twice, some without waiting for the disk."""
    number = 0
    while True:
        number += 1
        kind = random.choice(("id", "plain"))
        batch_name = f"{kind}.{name}.{number}"
        await client.publish(batch_name, random.choice(("fsync", "fsync", "os")))
        if kind == "id" and random.random() < 0.2:
            await client.publish(batch_name, "fsync")


async def consume(client: Client, random: Random, name: str, old: list[Receipt]) -> None:
    """Claim for ever, and do with what comes all that can be done with it."""
    number = 0
    while True:
        deliveries = await client.claim(name, random.randint(1, 5), random.choice((20, 60, 200)))
        if not deliveries:
            await asyncio.sleep(IDLE_S)
        receipts = [item.receipt for item in deliveries]
        if old and random.random() < 0.3:
            receipts.append(old.pop(random.randrange(len(old))))
        items = [item for receipt in receipts if (item := _verb(random, receipt)) is not None]
        number += 1
        publish = f"plain.{name}.{number}" if items and random.random() < 0.1 else None
        if items:
            await client.settle(items, publish)
        for item in items:
            if isinstance(item, Extend):
                await client.settle([Ack(item.receipt)])
        # Whatever was settled, or left to lapse, is tried again some time.
        old += receipts[: random.randint(0, 2)]
        del old[:-20]


def _verb(random: Random, receipt: Receipt) -> Settlement | None:
    """None leaves the claim to lapse."""
    return random.choice(
        (
            *(Ack(receipt) for _ in range(8)),
            Ack(receipt, b"result"),
            Nack(receipt, "try again"),
            Nack(receipt, delay_ms=random.choice((0, 15))),
            Reject(receipt, "never"),
            Release(receipt),
            Release(receipt),
            Extend(receipt, random.choice((20, 100))),
            None,
            None,
        )
    )


async def work(
    url: str, events: int, run: int, seed: int, retry: list[str], old: list[str]
) -> None:
    options = EngineOptions()
    engine = await open_engine(url, options)
    if run == 1:
        await engine.put_queue(TENANT, QUEUE, POLICY, Start())
    client = Client(engine, Recorder(events, run), options)
    receipts = [Receipt(receipt) for receipt in old]
    async with asyncio.TaskGroup() as group:
        for name in retry:
            group.create_task(client.publish(name, "fsync"))
        for number in range(PRODUCERS):
            name = f"{run}.p{number}"
            group.create_task(produce(client, Random(f"{seed}/{name}"), name))
        for number in range(CONSUMERS):
            name = f"{run}.c{number}"
            group.create_task(consume(client, Random(f"{seed}/{name}"), name, receipts))


def nursery(url: str, events: int) -> None:
    """Fork a child for every line ``run seed batches receipts`` and tell how it ended."""
    for line in sys.stdin:
        run, seed, retry, old = line.rstrip("\n").split(" ")
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(work(url, events, int(run), int(seed), _words(retry), _words(old)))
            except BaseException:  # noqa: BLE001  (a child must not go on as a nursery)
                traceback.print_exc()
            os._exit(1)
        os.write(1, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _words(text: str) -> list[str]:
    return text.split(",") if text else []


if __name__ == "__main__":
    if bytes_ := os.environ.get(CHECKPOINT_BYTES):
        setattr(adapter, "CHECKPOINT_BYTES", int(bytes_))  # noqa: B010  (it is final)
    nursery(sys.argv[1], int(sys.argv[2]))
