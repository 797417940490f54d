"""Producers and consumers of a service that fails under them, and the history of what they saw.

They work with whatever has the verbs: a broker on a store, or clients of servers that they change
when one fails. A producer with ids of its own repeats what failed under the same ids, as an
application does, until it is answered, so every batch is in the log once; without, the client
does that, and the producer does not notice a failure.

Consumers repeat nothing by themselves, because a history has to tell a claim whose answer was
lost from one that came back empty. Errors that say that nothing was done (E1) are recorded as
that, and are held to it; where the outcome is unknown the call has no end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

from penstock.api import QueueApi
from penstock.errors import (
    BadReply,
    CommitFailed,
    PenstockError,
    ServiceError,
    StoreError,
    Unreachable,
)
from penstock.model.clock import Clock, SystemClock
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
from penstock.model.message import NewMessage, Outgoing, PublishReply
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
    Unanswered,
    digest,
)

TOPIC, QUEUE = "orders", "jobs"
#: Longer than a reply takes to be read on a busy machine, so that replies are recorded in the
#: order of their grants, and shorter than two lives of a server, so that leases lapse.
LEASES_MS: Final = (1_500, 2_500)
PAGE: Final = 500
#: What a call may end in while servers come and go.
FAILURES: Final = (ServiceError, StoreError)
_VERBS: Final = {Ack: "ack", Nack: "nack", Reject: "reject", Release: "release", Extend: "extend"}


def took_no_effect(error: PenstockError) -> bool:
    """Whether the error says that nothing was done (E1)."""
    match error:
        case Unreachable():
            return "nothing was sent" in error.detail
        case BadReply() | CommitFailed():
            return False
        case _:
            return True


class History:
    """Where everybody records, and the gate that consumers pass before every call."""

    def __init__(
        self,
        descriptor: int,
        *,
        clock: Clock | None = None,
        skew_ms: int = 0,
        expected: tuple[type[PenstockError], ...] = FAILURES,
    ) -> None:
        self._descriptor = descriptor
        self._clock = SystemClock() if clock is None else clock
        #: By how much a server's clock may differ from this one.
        self._skew_ms = skew_ms
        self._run = 0
        self._under_way = 0
        self._idle = asyncio.Event()
        self._gate = asyncio.Event()
        self.recorder = Recorder(descriptor, 0)
        #: Errors that are none of these end the test.
        self.expected = expected
        #: What calls failed with, by the names of the errors.
        self.failures: Counter[str] = Counter()

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

    def earliest(self) -> int:
        """The earliest that it can be by a server's clock."""
        return self._clock.now() - self._skew_ms

    def latest(self) -> int:
        """The latest that it can be by a server's clock."""
        return self._clock.now() + self._skew_ms

    def record(self, event: HistoryEvent) -> None:
        self.recorder.record(event)

    def failed(self, error: PenstockError) -> None:
        """A call has failed with what it may fail with."""
        self.failures[type(error).__name__] += 1


class Doors:
    """Where a worker may call. It stays at one door until it is failed there."""

    def __init__(self, clients: Sequence[QueueApi], first: int = 0) -> None:
        self._clients = clients
        self._at = first

    @property
    def here(self) -> QueueApi:
        """The door that it is at."""
        return self._clients[self._at % len(self._clients)]

    def move_on(self) -> None:
        """Try the next one."""
        self._at += 1


def batch(name: str) -> list[NewMessage]:
    """The batch of that name; those that begin with ``id`` have idempotency ids.

    What one producer publishes is one partition.
    """
    random = Random(name)
    return [
        NewMessage(
            f"{name}/{number}/".encode() + random.randbytes(random.choice((0, 20, 300, 3000))),
            id=f"{name}/{number}" if name.startswith("id") else None,
            partition_key=name.split(".")[1],
            priority=random.choice((4, 4, 4, 9)),
        )
        for number in range(random.randint(1, 6))
    ]


class Producer:
    """Publishes until told to finish, with a random pause of up to ``pause_s`` in between."""

    def __init__(
        self,
        doors: Doors,
        history: History,
        name: str,
        seed: int,
        *,
        own_ids: bool = False,
        pause_s: float = 0.04,
    ) -> None:
        self._doors = doors
        self._history = history
        self._name = name
        self._random = Random(f"{seed}/{name}")
        self._own_ids = own_ids
        self._pause_s = pause_s

    async def run(self, finished: asyncio.Event) -> None:
        number = 0
        while not finished.is_set():
            number += 1
            kind = self._random.choice(("id", "plain", "single"))
            name = f"{kind}.{self._name}.{number}"
            if kind == "single":
                # Several of these share a request, with those of the other producers' clients not.
                durability = self._durability()
                await asyncio.gather(*(self._publish_one(m, durability) for m in batch(name)))
            else:
                await self._publish(name)
            if kind == "id" and self._random.random() < 0.2:
                await self._publish(name)
            await asyncio.sleep(self._random.uniform(0, self._pause_s))

    def _durability(self) -> str:
        return self._random.choice(("fsync", "fsync", "os"))

    async def _publish(self, name: str) -> None:
        messages = batch(name)
        durability = self._durability()
        batch_id = name if self._own_ids and name.startswith("plain") else None
        call = begin_publish(self._history, messages)
        reply: PublishReply | None = None
        while reply is None:
            try:
                reply = await self._doors.here.publish_batch(
                    TOPIC, messages, durability=durability, batch_id=batch_id
                )
            except self._history.expected as error:
                self._fail(error)
                await asyncio.sleep(self._random.uniform(0, 0.05))
        ids = tuple(item.id for item in reply.messages)
        self._history.record(Published(call=call, messages=ids))

    async def _publish_one(self, message: NewMessage, durability: str) -> None:
        """Without an id of its own: if it is not known what became of it, it is left at that."""
        call = begin_publish(self._history, [message])
        try:
            done = await self._doors.here.publish(
                TOPIC, message.payload, priority=message.priority, durability=durability
            )
        except self._history.expected as error:
            self._fail(error)
            if took_no_effect(error):
                self._history.record(Refused(call=call))
        else:
            self._history.record(Published(call=call, messages=(done.id,)))

    def _fail(self, error: PenstockError) -> None:
        if not self._own_ids:
            raise error
        self._history.failed(error)
        self._doors.move_on()


class Consumer:
    """Claims, and does with what comes all that can be done with it."""

    def __init__(
        self, doors: Doors, history: History, name: str, seed: int, *, queue: str = QUEUE
    ) -> None:
        self._doors = doors
        self._history = history
        self._queue = queue
        self._name = name
        self._random = Random(f"{seed}/{name}")
        self._old: list[Receipt] = []

    async def run(self, finished: asyncio.Event | None = None) -> None:
        """Go on for ever, or until told to finish; whoever is cancelled leaves a call open."""
        number = 0
        while finished is None or not finished.is_set():
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
            while (await self._doors.here.stats(self._queue)).depth:
                deliveries = await self.claim(PAGE, 1_000)
                if deliveries:
                    await self.settle([Ack(item.receipt) for item in deliveries], None)

    async def claim(self, limit: int, wait_ms: int) -> list[Delivery]:
        """What was granted; nothing if there was no answer."""
        history = self._history
        with history.under_way():
            call = history.recorder.call()
            history.record(Claim(call=call, queue=self._queue))
            try:
                deliveries = await self._doors.here.claim(
                    self._queue,
                    limit=limit,
                    consumer=self._name,
                    lease_ms=self._random.choice(LEASES_MS),
                    wait_ms=wait_ms,
                )
            except history.expected as error:
                self._fail(error)
                if not took_no_effect(error):
                    history.record(Unanswered(call=call))
                    return []
                deliveries = []
            for item in deliveries:
                history.record(self._granted(call, item))
            history.record(Claimed(call=call))
        return deliveries

    def _fail(self, error: PenstockError) -> None:
        self._history.failed(error)
        self._doors.move_on()

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
                reply = await self._doors.here.settle(self._queue, items, publish=outgoing)
            except history.expected as error:
                self._fail(error)
                if took_no_effect(error):
                    for call in calls:
                        history.record(_without_effect(call))
                    if messages:
                        history.record(Refused(call=publishing))
                return False
            self._end_settle(calls, reply)
            # These receipts published before, something else: what is given is the answer to that.
            if messages and reply.published and not reply.repeated:
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
                at=self._history.earliest(),
                lease_ms=(item.lease_ms or 0) if isinstance(item, Extend) else 0,
            )
        )
        return call

    def _end_settle(self, calls: list[int], reply: SettleReply) -> None:
        now = self._history.latest()
        for call, outcome in zip(calls, reply.outcomes, strict=True):
            self._history.record(
                _without_effect(call)
                if outcome.verdict == "aborted"
                else Settled(
                    call=call,
                    verdict=outcome.verdict,
                    state=outcome.state,
                    until=outcome.until,
                    at=now,
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


def _without_effect(call: int) -> Settled:
    """It took no effect, and says nothing about the claim."""
    return Settled(call=call, verdict="aborted", state=None, until=None, at=2**53)


def begin_publish(history: History, messages: list[NewMessage]) -> int:
    call = history.recorder.call()
    payloads = tuple(digest(message.payload) for message in messages)
    history.record(
        Publish(call=call, payloads=payloads, ids=tuple(message.id for message in messages))
    )
    return call
