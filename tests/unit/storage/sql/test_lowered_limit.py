"""A lowered ``max_attempts`` on two servers that share a database, and the bounds of one claim."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.model.delivery import Delivery, Nack
from penstock.model.message import MessageId
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.storage.sql import claim, partition_order
from penstock.testing.conformance.harness import TENANT, Store, ids_of, msg
from penstock.testing.conformance.ready import Ear
from penstock.testing.laws import law
from tests.unit.storage.sql.ordered import Pair, opened_pair


@pytest.fixture
async def pair(dialect: str) -> AsyncIterator[Pair]:
    async with opened_pair(dialect) as pair:
        yield pair


async def nack_all(store: Store, deliveries: list[Delivery]) -> None:
    """Return the deliveries at once; errors that differ keep each in a row of its own."""
    nacks = [Nack(d.receipt, f"error {n}", 0) for n, d in enumerate(deliveries)]
    await store.engine.settle(TENANT, "q", nacks)


async def backlog(store: Store, count: int, *, ordered: bool = False) -> list[MessageId]:
    """``count`` deliveries without attempts left, and one that was not handed out yet."""
    ordering = Ordering.PARTITION if ordered else Ordering.NONE
    await store.queue(ordering=ordering, partition_concurrency=count)
    ids = await store.publish(*[msg(partition_key="a")] * count)
    await nack_all(store, await store.claim(limit=count))
    ids += await store.publish(msg(partition_key="a"))
    await store.queue(ordering=ordering, partition_concurrency=count, max_attempts=1)
    return ids


@law("C2")
async def test_another_server_applies_the_lowered_limit(pair: Pair) -> None:
    one, other = pair.first, pair.second
    await one.queue(max_attempts=3)
    first, second = await one.publish(b"1", b"2")
    held = await other.claim(limit=2)
    await nack_all(other, held)
    await one.queue(max_attempts=1)
    assert await other.claim(limit=2) == []
    assert await one.ids("q", State.FAILED) == [first, second]


async def test_a_claim_of_one_gets_past_a_backlog_of_many_rows(pair: Pair) -> None:
    *failed, last = await backlog(pair.first, 200)
    assert ids_of(await pair.first.claim()) == [last]
    assert await pair.first.ids("q", State.FAILED) == failed


@law("C5")
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_claim_that_stops_early_notifies_consumers(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, *, ordered: bool
) -> None:
    monkeypatch.setattr(claim, "_LOOKS", 1)
    monkeypatch.setattr(partition_order, "_MAX_FAILED", 5)
    store = pair.first
    ids = await backlog(store, 12, ordered=ordered)
    ear = store.engine.listener = Ear()
    for claims in (1, 2):
        assert await store.claim() == []
        assert await store.ids("q", State.FAILED) == ids[: 5 * claims]
        assert "q" in ear.heard()
    assert ids_of(await store.claim()) == ids[-1:]
    assert await store.ids("q", State.FAILED) == ids[:-1]


async def test_a_claim_that_stops_early_hands_out_what_it_has(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_LOOKS", 0)
    store = pair.first
    await store.queue()
    ids = await store.publish(*[b"x"] * 4)
    taken = await store.claim(limit=4)
    await nack_all(store, taken[::2])
    for delivery in taken[1::2]:
        await store.release(delivery)
    await store.queue(max_attempts=1)
    assert ids_of(await store.claim(limit=2)) == [ids[1]]
    assert await store.ids("q", State.FAILED) == [ids[0]]
    assert ids_of(await store.claim(limit=2)) == [ids[3]]
    assert await store.ids("q", State.FAILED) == [ids[0], ids[2]]
