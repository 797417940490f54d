"""Servers that come to use the same server number lose nothing (C1, S3, P4)."""

from __future__ import annotations

from penstock.model.delivery import Ack, Extend
from penstock.model.message import NewMessage
from penstock.storage.contract import Engine
from penstock.storage.sql.claim_numbers import Leases
from penstock.storage.sql.engine import SqlEngine
from penstock.testing.laws import law
from tests.unit.storage.sql.pairs import TENANT, Pair, claim, payloads, publish, settled


def _number(engine: Engine, number: int) -> None:
    """Make the engine use a server number that another engine may be using."""
    assert isinstance(engine, SqlEngine)
    engine._core.leases = Leases(number)


@law("C1")
async def test_a_claim_never_overwrites_the_claim_of_another_server(pair: Pair) -> None:
    await publish(pair.a, "old", b"1", b"2")
    for engine in (pair.a, pair.b):
        _number(engine, 1)
    first = await claim(pair.a, "old", 1)
    second = await claim(pair.b, "old", 1)
    assert payloads([*first, *second]) == [b"0", b"1"]
    assert first[0].receipt.split("-")[2] != second[0].receipt.split("-")[2]
    for engine, delivery in ((pair.a, first[0]), (pair.b, second[0])):
        assert await settled(engine, "old", Ack(delivery.receipt)) == ["ok"]
    assert payloads(await claim(pair.b, "old")) == [b"2"]


@law("S3")
async def test_an_extension_never_overwrites_a_claim_of_another_server(pair: Pair) -> None:
    """Extending one of two deliveries of a claim moves it to a row of its own."""
    await publish(pair.a, "old", b"1", b"2")
    assert payloads(await claim(pair.a, "old", 1)) == [b"0"]
    two = await claim(pair.a, "old", 2)
    assert payloads(two) == [b"1", b"2"]
    await publish(pair.a, "old", b"3")
    for engine in (pair.a, pair.b):
        _number(engine, 1)
    other = await claim(pair.b, "old", 1)
    assert payloads(other) == [b"3"]
    reply = await pair.a.settle(TENANT, "old", [Extend(two[0].receipt, 90_000)])
    assert [str(outcome.verdict) for outcome in reply.outcomes] == ["ok"]
    for engine, delivery in ((pair.a, two[0]), (pair.a, two[1]), (pair.b, other[0])):
        assert await settled(engine, "old", Ack(delivery.receipt)) == ["ok"]


@law("P4")
async def test_an_id_of_another_server_is_never_taken_for_one_of_this_transaction(
    pair: Pair,
) -> None:
    for engine in (pair.a, pair.b):
        _number(engine, 1)
    message = NewMessage(b"once", id="x")
    first = await pair.a.publish(TENANT, "old", [message])
    second = await pair.b.publish(TENANT, "old", [message])
    assert [item.duplicate for item in (*first.messages, *second.messages)] == [False, True]
