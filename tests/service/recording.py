"""Producers and consumers of a server that is killed, and the history of what they saw.

Producers go by the client's own retries: they do not notice a kill, and every publish is in the
log once. Consumers have none, because a history has to tell a claim whose answer was lost from
one that came back empty: what fails is recorded as a call without an end, and tried again as
another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from penstock.client import Client
from penstock.errors import ServiceError, StoreError
from penstock.model.clock import SystemClock
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Receipt,
    Reject,
    Release,
    Settlement,
    SettleReply,
)
from penstock.model.message import NewMessage, Outgoing
from penstock.testing.history import (
    Claim,
    Claimed,
    Granted,
    HistoryEvent,
    Publish,
    Published,
    Recorder,
    Refused,
    Settle,
    Settled,
    digest,
)

TOPIC, QUEUE = "orders", "jobs"
#: Longer than a reply takes to be read on a busy machine, so that replies are recorded in the
#: order of their grants, and shorter than two lives of a server, so that leases lapse.
LEASES_MS: Final = (1_500, 2_500)
PAGE: Final = 500
#: How a call ends whose server was killed, or was not there yet.
_NO_ANSWER: Final = (ServiceError, StoreError)
_VERBS: Final = {Ack: "ack", Nack: "nack", Reject: "reject", Release: "release", Extend: "extend"}


class History:
    """Where everybody records, and the gate that consumers pass before every call."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._run = 0
        self._under_way = 0
        self._idle = asyncio.Event()
        self._gate = asyncio.Event()
        self.clock = SystemClock()
        self.recorder = Recorder(descriptor, 0)

    def next_run(self) -> None:
        """A server starts: what was lost before is lost for good."""
        assert not self._under_way
        self._run += 1
        self.recorder = Recorder(self._descriptor, self._run)
        self._gate.set()

    async def end_run(self) -> None:
        """The server is dead: wait until every consumer has noticed."""
        self._gate.clear()
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()

    async def passed(self) -> None:
        """Wait for a server to be there, or on its way."""
        await self._gate.wait()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """A call of a consumer, from before its first event until after its last."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._idle.set()

    def record(self, event: HistoryEvent) -> None:
        self.recorder.record(event)


def batch(name: str) -> list[NewMessage]:
    """The batch of that name; those that begin with ``id`` have idempotency ids."""
    random = Random(name)
    return [
        NewMessage(
            f"{name}/{number}/".encode() + random.randbytes(random.choice((0, 20, 300, 3000))),
            id=f"{name}/{number}" if name.startswith("id") else None,
            priority=random.choice((4, 4, 4, 9)),
        )
        for number in range(random.randint(1, 6))
    ]


class Producer:
    """Publishes until told to finish."""

    def __init__(self, client: Client, history: History, name: str, seed: int) -> None:
        self._client = client
        self._history = history
        self._name = name
        self._random = Random(f"{seed}/{name}")

    async def run(self, finished: asyncio.Event) -> None:
        number = 0
        while not finished.is_set():
            number += 1
            kind = self._random.choice(("id", "plain", "single"))
            name = f"{kind}.{self._name}.{number}"
            await self._publish(name, single=kind == "single")
            if kind == "id" and self._random.random() < 0.2:
                await self._publish(name, single=False)
            await asyncio.sleep(self._random.uniform(0, 0.04))

    async def _publish(self, name: str, *, single: bool) -> None:
        messages = batch(name)
        durability = self._random.choice(("fsync", "fsync", "os"))
        if single:
            # Several of these share a request, with those of the other producers' clients not.
            await asyncio.gather(*(self._one(message, durability) for message in messages))
            return
        call = begin_publish(self._history, messages)
        reply = await self._client.publish_batch(TOPIC, messages, durability=durability)
        ids = tuple(item.id for item in reply.messages)
        self._history.record(Published(call=call, messages=ids))

    async def _one(self, message: NewMessage, durability: str) -> None:
        call = begin_publish(self._history, [message])
        done = await self._client.publish(
            TOPIC, message.payload, priority=message.priority, durability=durability
        )
        self._history.record(Published(call=call, messages=(done.id,)))


class Consumer:
    """Claims, and does with what comes all that can be done with it."""

    def __init__(self, client: Client, history: History, name: str, seed: int) -> None:
        self._client = client
        self._history = history
        self._name = name
        self._random = Random(f"{seed}/{name}")
        self._old: list[Receipt] = []

    async def run(self) -> None:
        number = 0
        while True:
            await self._history.passed()
            deliveries = await self.claim(
                self._random.randint(1, 12), self._random.choice((0, 300))
            )
            receipts = [item.receipt for item in deliveries]
            if self._old and self._random.random() < 0.2:
                receipts.append(self._old.pop(self._random.randrange(len(self._old))))
            items = [item for one in receipts if (item := self._verb(one)) is not None]
            number += 1
            publish = f"plain.{self._name}.{number}" if self._random.random() < 0.1 else None
            if items and not await self.settle(items, publish):
                # The answer was lost: an ack may be repeated, by the same or another server.
                await self._history.passed()
                await self.settle(items, None)
            self._old += receipts[: self._random.randint(0, 2)]
            del self._old[:-20]
            if not deliveries:
                await asyncio.sleep(0.02)

    async def drain(self) -> None:
        """Ack everything that is left."""
        async with asyncio.timeout(60):
            while (await self._client.stats(QUEUE)).depth:
                deliveries = await self.claim(PAGE, 1_000)
                if deliveries:
                    await self.settle([Ack(item.receipt) for item in deliveries], None)

    async def claim(self, limit: int, wait_ms: int) -> list[Delivery]:
        """What was granted; nothing if there was no answer."""
        history = self._history
        with history.under_way():
            call = history.recorder.call()
            history.record(Claim(call=call, queue=QUEUE))
            try:
                deliveries = await self._client.claim(
                    QUEUE,
                    limit=limit,
                    consumer=self._name,
                    lease_ms=self._random.choice(LEASES_MS),
                    wait_ms=wait_ms,
                )
            except _NO_ANSWER as error:
                if _was_sent(error):
                    return []
                deliveries = []
            for item in deliveries:
                history.record(self._granted(call, item))
            history.record(Claimed(call=call))
        return deliveries

    def _granted(self, call: int, item: Delivery) -> Granted:
        return Granted(
            call=call,
            queue=item.queue,
            message=item.message.id,
            payload=digest(item.payload),
            receipt=item.receipt,
            attempts=item.attempts,
            claimed_at=item.claimed_at,
            deadline=item.lease_deadline,
            consumer=self._name,
        )

    async def settle(self, items: list[Settlement], publish: str | None) -> bool:
        """Settle in one call, with a batch of that name; whether there was an answer."""
        history = self._history
        with history.under_way():
            calls = [self._begin_settle(item) for item in items]
            messages = [] if publish is None else batch(publish)
            publishing = begin_publish(history, messages) if messages else 0
            outgoing = [Outgoing(TOPIC, messages)] if messages else []
            try:
                reply = await self._client.settle(QUEUE, items, publish=outgoing)
            except _NO_ANSWER:
                return False
            self._end_settle(calls, reply)
            if messages and reply.published:
                ids = tuple(item.id for item in reply.published)
                history.record(Published(call=publishing, messages=ids))
            elif messages:
                history.record(Refused(call=publishing))
        return True

    def _begin_settle(self, item: Settlement) -> int:
        call = self._history.recorder.call()
        self._history.record(
            Settle(
                call=call,
                receipt=item.receipt,
                verb=_VERBS[type(item)],
                at=self._history.clock.now(),
                lease_ms=item.lease_ms if isinstance(item, Extend) else 0,
            )
        )
        return call

    def _end_settle(self, calls: list[int], reply: SettleReply) -> None:
        now = self._history.clock.now()
        for call, outcome in zip(calls, reply.outcomes, strict=True):
            # One that was aborted took no effect, and says nothing about the claim.
            aborted = outcome.verdict == "aborted"
            self._history.record(
                Settled(
                    call=call,
                    verdict=outcome.verdict,
                    state=None if aborted else outcome.state,
                    until=None if aborted else outcome.until,
                    at=2**53 if aborted else now,
                )
            )

    def _verb(self, receipt: Receipt) -> Settlement | None:
        """None leaves the claim to lapse."""
        return self._random.choice(
            (
                *(Ack(receipt) for _ in range(12)),
                Ack(receipt, b"result"),
                Nack(receipt, "try again"),
                Nack(receipt, delay_ms=self._random.choice((0, 100))),
                Reject(receipt, "never"),
                Release(receipt),
                Extend(receipt, self._random.choice(LEASES_MS)),
                None,
            )
        )


def _was_sent(error: Exception) -> bool:
    """Whether the server may have acted upon it."""
    return "nothing was sent" not in str(error)


def begin_publish(history: History, messages: list[NewMessage]) -> int:
    call = history.recorder.call()
    payloads = tuple(digest(message.payload) for message in messages)
    history.record(
        Publish(call=call, payloads=payloads, ids=tuple(message.id for message in messages))
    )
    return call
