"""A broker over a store in memory, a clock that the test moves, and what E1 asks of a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Final, Protocol

import pytest

import penstock
from penstock import Broker, BrokerOptions, EngineOptions, PenstockError, errors
from penstock.testing.clock import FakeClock

#: What an HTTP door answers. Written out: a door's clients depend on the numbers.
STATUS: Final[dict[type[PenstockError], int]] = {
    errors.BadFilter: 400,
    errors.BadInput: 400,
    errors.BadName: 400,
    errors.BadPolicy: 400,
    errors.BadSchema: 400,
    errors.Conflict: 409,
    errors.OtherStore: 409,
    errors.QueueNotEmpty: 409,
    errors.SchemaViolation: 422,
    errors.StaleReceipt: 409,
    errors.TooLarge: 413,
    errors.UnknownMessage: 404,
    errors.UnknownQueue: 404,
    errors.UnknownTopic: 404,
}


class Refuses(Protocol):
    """Awaits a call that has to be refused, and looks at the whole store before and after."""

    async def __call__(
        self,
        call: Awaitable[object],
        kind: type[PenstockError],
        field: str | None,
        limit: int | str | None = None,
    ) -> PenstockError: ...


def to_options(clock: FakeClock, *, require_topics: bool = False) -> BrokerOptions:
    # The longest wait that the backoff allows, every time.
    engine = EngineOptions(clock=clock, jitter=lambda ceiling_ms: ceiling_ms)
    return BrokerOptions(engine=engine, require_topics=require_topics)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def options(clock: FakeClock) -> BrokerOptions:
    return to_options(clock)


@pytest.fixture
async def q(options: BrokerOptions) -> AsyncIterator[Broker]:
    async with penstock.open("memory://", options=options, keepers=False) as broker:
        yield broker


@pytest.fixture
async def strict(clock: FakeClock) -> AsyncIterator[Broker]:
    """A broker that knows registered topics only."""
    options = to_options(clock, require_topics=True)
    async with penstock.open("memory://", options=options, keepers=False) as broker:
        yield broker


@pytest.fixture
async def refuses(q: Broker, clock: FakeClock) -> Refuses:
    """E1: a typed error with the field, the limit and the status, and nothing changed."""
    await stock(q, clock)

    async def check(
        call: Awaitable[object],
        kind: type[PenstockError],
        field: str | None,
        limit: int | str | None = None,
    ) -> PenstockError:
        before = await picture(q)
        with pytest.raises(PenstockError) as caught:
            await call
        error = caught.value
        assert type(error) is kind
        assert (error.field, error.limit, error.status) == (field, limit, STATUS[kind])
        assert error.detail in str(error)
        assert error.advice in str(error)
        assert await picture(q) == before
        return error

    return check


async def stock(q: Broker, clock: FakeClock) -> None:
    """One delivery in every state, so that there is something to spoil."""
    await q.create_queue("stock", "topic = 'stock'")
    await q.put_topic("stock")
    for _ in range(3):
        await q.publish("stock", b"settled")
    done, failed, _ = await q.claim("stock", limit=3, consumer="keeper")
    await q.ack(done, b"result")
    await q.reject(failed, "no good")
    await q.publish("stock", b"expired", ttl_ms=1)
    clock.advance(1)
    await q.sweep()
    await q.publish("stock", b"delayed", delay_ms=3_600_000)
    await q.publish("stock", b"available", headers={"amount": 1})


async def picture(q: Broker) -> object:
    """Everything that the verbs can see of a tenant."""
    entries = (await q.read_log(payloads=True)).entries
    queues = await q.queues()
    return (
        await q.log_end(),
        entries,
        queues,
        await q.topics(),
        await q.runs(),
        await q.report(),
        [await q.stats(info.name) for info in queues],
        [await q.stats(f"{info.name}.dlq") for info in queues],
        [(await q.message(entry.message.id)).deliveries for entry in entries],
        [await q.history(entry.message.id) for entry in entries],
    )
