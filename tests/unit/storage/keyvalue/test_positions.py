"""Position records: where deliveries wait that moved to the back (01 07 1c in docs/formats.md)."""

from __future__ import annotations

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Ack, Delivery, Nack
from penstock.model.message import NewMessage
from penstock.model.queue import Backoff, QueuePolicy, RetryPosition, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.encoding import seal, unseal
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import FORMAT_KEY, QueueKeys, claim_id_of
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from penstock.testing.laws import law

T, Q = "default", "orders"
BACK = QueuePolicy(retry_position=RetryPosition.BACK, backoff=Backoff(0, 0), max_attempts=9)


@pytest.fixture
def store() -> FaultyAdapter:
    return FaultyAdapter()


async def opened(store: FaultyAdapter) -> KeyValueEngine:
    return await KeyValueEngine.open(store, EngineOptions(clock=FakeClock()))


async def filled(store: FaultyAdapter, count: int, policy: QueuePolicy = BACK) -> KeyValueEngine:
    engine = await opened(store)
    await engine.put_queue(T, Q, policy, Start())
    await engine.publish(T, "topic", [NewMessage(b"%d" % n) for n in range(count)])
    return engine


async def nack(engine: KeyValueEngine, claimed: list[Delivery]) -> None:
    await engine.settle(T, Q, [Nack(one.receipt, delay_ms=0) for one in claimed])


def positions(store: FaultyAdapter) -> dict[bytes, bytes]:
    prefix = QueueKeys(T, Q).position
    return {key: value for key, value in store.contents().items() if key.startswith(prefix)}


def format_of(store: FaultyAdapter) -> int:
    return int.from_bytes(unseal(store.contents()[FORMAT_KEY], "format"), "little")


def test_golden_vector() -> None:
    key = QueueKeys(T, Q).position + (7).to_bytes(8, "big")
    assert key.hex() == "01071c" + "64656661756c742f6f726465727300" + "0000000000000007"
    value = seal(claim_id_of(2, 4, 9).to_bytes(8, "little"))
    assert value.hex() == "0900b2d3595bf026" + "8c9667f3"


async def test_a_record_lasts_until_the_next_claim(store: FaultyAdapter) -> None:
    engine = await filled(store, 3)
    claimed = await engine.claim(T, Q, "c", 2, None)
    await nack(engine, claimed)
    ids = [one.message.id for one in claimed]
    assert [int.from_bytes(key[-8:], "big") for key in positions(store)] == ids
    again = await engine.claim(T, Q, "c", 9, None)
    assert positions(store) == {}
    await engine.settle(T, Q, [Ack(one.receipt) for one in again])
    (reply,) = (await engine.publish(T, "topic", [NewMessage(b"x")])).messages
    assert reply.id > ids[-1]
    await engine.close()


async def test_the_format_is_raised_by_a_queue_that_needs_it(store: FaultyAdapter) -> None:
    engine = await filled(store, 1, QueuePolicy())
    assert format_of(store) == 1
    await engine.put_queue(T, Q, BACK, Start())
    assert format_of(store) == 3
    await engine.close()


@pytest.mark.parametrize("bucket_size", [0, 1, 4])
async def test_order_survives_eviction_and_reopening(
    store: FaultyAdapter, bucket_size: int
) -> None:
    policy = QueuePolicy(
        retry_position=RetryPosition.BACK,
        backoff=Backoff(0, 0),
        max_attempts=9,
        bucket_size=bucket_size,
    )
    engine = await filled(store, 300, policy)
    order = [b"%d" % n for n in range(300)]
    for _ in range(4):
        claimed = await engine.claim(T, Q, "c", 70, None)
        assert [one.payload for one in claimed] == order[:70]
        await nack(engine, claimed)
        order = order[70:] + order[:70]
        await engine.close()
        engine = await opened(store)
    shown = await engine.peek(T, Q, State.AVAILABLE, None, 300, payloads=True)
    assert [one.payload for one in shown.items] == order
    await engine.close()


@law("X1")
@pytest.mark.parametrize("damage", ["missing", "another"])
async def test_a_claim_id_without_its_position_is_reported(
    store: FaultyAdapter, damage: str
) -> None:
    engine = await filled(store, 2)
    await nack(engine, await engine.claim(T, Q, "c", 2, None))
    await engine.close()
    first, second = positions(store).items()
    store.write({first[0]: None if damage == "missing" else second[1]}, (), True)
    engine = await opened(store)
    with pytest.raises(StoreCorrupt):
        await engine.claim(T, Q, "c", 9, None)
    await engine.close()


async def test_deleting_the_queue_removes_its_positions(store: FaultyAdapter) -> None:
    engine = await filled(store, 2)
    await nack(engine, await engine.claim(T, Q, "c", 2, None))
    assert positions(store)
    await engine.delete_queue(T, Q)
    assert positions(store) == {}
    await engine.close()
