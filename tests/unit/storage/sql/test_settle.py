"""A settle finds its delivery although another server moves it meanwhile (S1)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.delivery import Ack, Extend
from penstock.storage.sql.engine import SqlEngine
from penstock.testing.laws import law
from tests.unit.storage.sql.gates import Gate
from tests.unit.storage.sql.pairs import TENANT, Pair, claim, publish, settled


@law("S1")
@pytest.mark.parametrize("together", [1, 2], ids=["alone", "with another"])
@pytest.mark.parametrize("verb", ["extend", "ack"])
async def test_an_ack_while_another_server_settles(
    pair: Pair, dialect: str, verb: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery was extended before, so it is found by its segment, not by its receipt."""
    await publish(pair.a, "old", b"1", b"2", b"3")
    await claim(pair.a, "old", 1)
    three = await claim(pair.a, "old", 3)
    extended, rest = three[:together], three[together:]
    await pair.a.settle(TENANT, "old", [Extend(one.receipt, 90_000) for one in extended])
    # Nothing is left in the row that the receipts name, which both servers would lock first.
    await settled(pair.a, "old", *(Ack(one.receipt) for one in rest))
    # What a server does not remember it settles in a transaction.
    assert isinstance(pair.a, SqlEngine)
    pair.a._core.in_flight_rows.clear()
    receipt = three[0].receipt
    first = Extend(receipt, 95_000) if verb == "extend" else Ack(receipt)
    gate = Gate(dialect, monkeypatch)
    settling = asyncio.ensure_future(pair.a.settle(TENANT, "old", [first]))
    await gate.written.wait()
    acking = asyncio.ensure_future(settled(pair.b, "old", Ack(receipt)))
    await gate.open_for(acking)
    assert (await settling).outcomes[0].ok
    assert await acking == ["ok"]
