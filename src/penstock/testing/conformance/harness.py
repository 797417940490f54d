"""The ``store`` of a conformance test: an open engine, a clock, and shortcuts for verbs.

A test file for an engine is three lines::

    from penstock.testing.conformance import *  # noqa: F403
    from penstock.testing.conformance import engine_factory

    open_engine = engine_factory("rocksdb://{path}")

Every test ends with ``Store.verify``: the counts in stats equal a full scan (Q2), a delivery is in
exactly one state of one queue (S3), and bulk reads return the same as single reads.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import pytest_asyncio

from penstock.filters import parse
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Outcome,
    Reject,
    Release,
    Settlement,
    Snapshot,
)
from penstock.model.limits import Limits
from penstock.model.message import HeaderValue, Message, MessageId, NewMessage, Offset
from penstock.model.queue import Backoff, Ordering, QueueInfo, QueuePolicy, Start
from penstock.model.states import LIVE, State
from penstock.storage.contract import Engine, EngineOptions
from penstock.testing.bulk import check_bulk
from penstock.testing.clock import FakeClock
from penstock.testing.opening import Opener, url_opener

__all__ = [
    "OTHER_TENANT",
    "TENANT",
    "Conformance",
    "Store",
    "engine_factory",
    "ids_of",
    "jitter",
    "msg",
    "opened_with",
    "store",
]

TENANT: Final = "acme"
OTHER_TENANT: Final = "rival"

#: More pages than any test fills.
_MAX_PAGES: Final = 10_000


def jitter(ceiling_ms: int) -> int:
    """Always half of the ceiling, so that a test can compute the wait."""
    return ceiling_ms // 2


def msg(
    payload: bytes = b"",
    *,
    id: str | None = None,
    key: str | None = None,
    partition_key: str | None = None,
    priority: int = 4,
    content_type: str | None = None,
    deliver_at: int | None = None,
    expires_at: int | None = None,
    auto_create: bool = True,
    max_attempts: int | None = None,
    **headers: HeaderValue,
) -> NewMessage:
    """A message; arguments that are not fields become headers."""
    return NewMessage(
        payload=payload,
        headers=headers,
        id=id,
        key=key,
        partition_key=partition_key,
        priority=priority,
        content_type=content_type,
        deliver_at=deliver_at,
        expires_at=expires_at,
        auto_create=auto_create,
        max_attempts=max_attempts,
    )


class Store:
    """An open engine with tenant ``acme``, and its clock."""

    def __init__(
        self, opener: Opener, path: Path, options: EngineOptions, clock: FakeClock
    ) -> None:
        self._opener = opener
        self._path = path
        self.options = options
        self.clock = clock
        self.engine: Engine

    async def open(self) -> None:
        opened = self._opener(self.options, self._path)
        self.engine = await opened if inspect.isawaitable(opened) else opened

    async def reopen(self) -> None:
        """Close and reopen the store: everything has to be as it was (P1)."""
        if not self.engine.capabilities.persistent:
            pytest.skip(f"the {self.engine.capabilities.engine} engine is not persistent")
        await self.engine.close()
        await self.open()

    # -- shortcuts for verbs -----------------------------------------------------------

    async def queue(
        self,
        name: str = "q",
        filter: str = "TRUE",
        *,
        start: Start | None = None,
        tenant: str = TENANT,
        max_attempts: int = 5,
        max_depth: int | None = None,
        message_ttl_ms: int | None = None,
        done_retention_s: int = 3600,
        failed_retention_s: int = 14 * 24 * 3600,
        ordering: Ordering = Ordering.NONE,
        partition_concurrency: int = 1,
        bucket_size: int = 2,
        backoff: Backoff | None = None,
        paused: bool = False,
        **others: Any,
    ) -> QueueInfo:
        """Put a queue; retries are immediate unless a backoff is given.

        ``others`` are further fields of the policy.
        """
        policy = QueuePolicy(
            filter=filter,
            max_attempts=max_attempts,
            max_depth=max_depth,
            message_ttl_ms=message_ttl_ms,
            done_retention_s=done_retention_s,
            failed_retention_s=failed_retention_s,
            ordering=ordering,
            partition_concurrency=partition_concurrency,
            bucket_size=bucket_size,
            backoff=backoff or Backoff(base_ms=0, max_ms=0),
            paused=paused,
            **others,
        )
        return await self.engine.put_queue(tenant, name, policy, start or Start())

    async def publish(
        self, *messages: NewMessage | bytes, topic: str = "orders", tenant: str = TENANT
    ) -> list[MessageId]:
        """Publish one batch and return the ids of its messages."""
        batch = [msg(m) if isinstance(m, bytes) else m for m in messages]
        reply = await self.engine.publish(tenant, topic, batch)
        return [p.id for p in reply.messages]

    async def claim(
        self,
        queue: str = "q",
        limit: int = 1,
        *,
        consumer: str = "c",
        lease_ms: int | None = None,
        tenant: str = TENANT,
        where: str | None = None,
    ) -> list[Delivery]:
        chosen = None if where is None else parse(where)
        return await self.engine.claim(tenant, queue, consumer, limit, lease_ms, chosen)

    async def claim_one(
        self,
        queue: str = "q",
        *,
        consumer: str = "c",
        lease_ms: int | None = None,
        tenant: str = TENANT,
    ) -> Delivery:
        """Claim exactly one delivery, which must exist."""
        claimed = await self.claim(queue, consumer=consumer, lease_ms=lease_ms, tenant=tenant)
        assert len(claimed) == 1, f"nothing to claim in {queue}"
        return claimed[0]

    async def settle(
        self, settlement: Settlement, queue: str = "q", tenant: str = TENANT
    ) -> Outcome:
        """Apply one settlement."""
        reply = await self.engine.settle(tenant, queue, [settlement])
        assert len(reply.outcomes) == 1
        assert reply.published == ()
        assert reply.outcomes[0].receipt == settlement.receipt
        return reply.outcomes[0]

    async def ack(self, delivery: Delivery, result: bytes | None = None) -> Outcome:
        return await self.settle(Ack(delivery.receipt, result), delivery.queue)

    async def nack(
        self, delivery: Delivery, error: str | None = None, delay_ms: int | None = None
    ) -> Outcome:
        return await self.settle(Nack(delivery.receipt, error, delay_ms), delivery.queue)

    async def reject(self, delivery: Delivery, error: str | None = None) -> Outcome:
        return await self.settle(Reject(delivery.receipt, error), delivery.queue)

    async def release(self, delivery: Delivery, delay_ms: int | None = None) -> Outcome:
        return await self.settle(Release(delivery.receipt, delay_ms), delivery.queue)

    async def extend(self, delivery: Delivery, lease_ms: int | None = None) -> Outcome:
        return await self.settle(Extend(delivery.receipt, lease_ms), delivery.queue)

    async def fail_one(self, queue: str = "q", error: str = "broken") -> Delivery:
        """Claim one delivery and reject it, so that it becomes a dead letter."""
        delivery = await self.claim_one(queue)
        outcome = await self.reject(delivery, error)
        assert outcome.state is State.FAILED
        return delivery

    async def sweep_all(self, limit: int = 10_000) -> None:
        """Sweep until nothing is left to do."""
        for _ in range(_MAX_PAGES):
            if not (await self.engine.sweep(limit)).more:
                return
        raise AssertionError("the sweep never ends")

    # -- reading ----------------------------------------------------------------------

    async def browse(
        self,
        queue: str,
        state: State,
        where: str | None = None,
        *,
        page: int = 1000,
        payloads: bool = False,
        tenant: str = TENANT,
    ) -> list[Snapshot]:
        """All pages of a peek."""
        condition = None if where is None else parse(where)
        found: list[Snapshot] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            reply = await self.engine.peek(
                tenant, queue, state, condition, page, cursor, payloads=payloads
            )
            assert len(reply.items) <= page
            found.extend(reply.items)
            if reply.cursor is None:
                return found
            cursor = reply.cursor
        raise AssertionError("the pages never end")

    async def ids(self, queue: str, state: State, *, tenant: str = TENANT) -> list[MessageId]:
        """The message ids in one state, in claim order."""
        return [s.message.id for s in await self.browse(queue, state, tenant=tenant)]

    async def log(self, *, payloads: bool = False, tenant: str = TENANT) -> list[Message]:
        """The whole log."""
        page = await self.engine.read_log(tenant, Offset(0), 100_000, payloads=payloads)
        return [entry.message for entry in page.entries]

    async def states(self, message_id: MessageId, tenant: str = TENANT) -> dict[str, State]:
        """The states of a message: queue to state."""
        found = await self.engine.message(tenant, message_id)
        return {s.queue: s.state for s in found.deliveries}

    async def picture(self, queue: str, tenant: str = TENANT) -> object:
        """All observable state of a queue, to compare before and after."""
        return (
            await self.engine.get_queue(tenant, queue),
            await self.engine.stats(tenant, queue),
            [await self.browse(queue, state, payloads=True, tenant=tenant) for state in State],
            [
                await self.browse(f"{queue}.dlq", state, payloads=True, tenant=tenant)
                for state in State
            ],
        )

    async def verify(self) -> None:
        """Q2 and S3 for every queue of every tenant that the suite uses."""
        for tenant in (TENANT, OTHER_TENANT):
            for info in await self.engine.list_queues(tenant):
                await self._verify_queue(tenant, info.name)
        page = await self.engine.read_log(TENANT, Offset(0), 50, payloads=True)
        await check_bulk(self.engine, TENANT, page, histories=3)

    async def _verify_queue(self, tenant: str, name: str) -> None:
        dead = f"{name}.dlq"
        own = {s: await self.ids(name, s, tenant=tenant) for s in State}
        letters = {s: await self.ids(dead, s, tenant=tenant) for s in State}
        assert letters[State.AVAILABLE] == own[State.FAILED]
        assert letters[State.FAILED] == []
        assert letters[State.EXPIRED] == []
        seen = [i for s in State if s is not State.FAILED for i in own[s]]
        seen += [i for s in State for i in letters[s]]
        assert len(seen) == len(set(seen)), f"a delivery of {name} is in two states"
        stats = await self.engine.stats(tenant, name)
        dead_stats = await self.engine.stats(tenant, dead)
        for state in State:
            if state is State.FAILED:
                continue
            assert getattr(stats, state.value) == len(own[state]), f"{name} {state}"
            assert getattr(dead_stats, state.value) == len(letters[state]), f"{dead} {state}"
        assert stats.failed == sum(len(letters[s]) for s in LIVE)
        assert dead_stats.failed == 0
        assert sum(stats.in_flight_by_consumer.values()) == stats.in_flight
        assert sum(dead_stats.in_flight_by_consumer.values()) == dead_stats.in_flight
        assert sum(p.in_flight for p in stats.partitions) in (0, stats.in_flight)


class Conformance:
    """Base of the test classes: makes their tests async in every pytest mode."""

    pytestmark = pytest.mark.asyncio


def opened_with(
    *,
    auto_create: bool = False,
    archive: bool = False,
    log_retention_ms: int = Limits().log_retention_ms,
    queues: int = Limits().queues,
    unindexed_filters: int = Limits().unindexed_filters,
    publish_deliveries: int = Limits().publish_deliveries,
    default_policy: QueuePolicy | None = None,
) -> pytest.MarkDecorator:
    """Open the store of a test with non-default options."""
    limits = Limits(
        log_retention_ms=log_retention_ms,
        queues=queues,
        unindexed_filters=unindexed_filters,
        publish_deliveries=publish_deliveries,
    )
    options = EngineOptions(
        auto_create=auto_create,
        archive=archive,
        limits=limits,
        default_policy=default_policy or QueuePolicy(),
    )
    return pytest.mark.parametrize("store", [options], indirect=True, ids=["options"])


def engine_factory(url_or_opener: str | Opener) -> object:
    """A fixture ``open_engine`` for a store URL (``{path}`` in it is replaced) or an opener."""

    @pytest.fixture
    def open_engine() -> Opener:
        if callable(url_or_opener):
            return url_or_opener
        return url_opener(url_or_opener)

    return open_engine


@pytest_asyncio.fixture
async def store(
    request: pytest.FixtureRequest, open_engine: Opener, tmp_path: Path
) -> AsyncIterator[Store]:
    """An open, empty store. It has ``auto_create`` off unless a test requests it."""
    plain: EngineOptions = getattr(request, "param", EngineOptions(auto_create=False))
    clock = FakeClock()
    options = msgspec.structs.replace(plain, clock=clock, jitter=jitter)
    opened = Store(open_engine, tmp_path, options, clock)
    await opened.open()
    yield opened
    try:
        await opened.verify()
    finally:
        await opened.engine.close()


def ids_of(deliveries: Sequence[Delivery]) -> list[MessageId]:
    """The message ids of claimed deliveries, in order."""
    return [d.message.id for d in deliveries]
