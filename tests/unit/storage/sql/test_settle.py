"""A settle finds its delivery although another server moves it meanwhile (S1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.model.delivery import Ack, Extend
from penstock.storage.sql.dialects import load_module
from penstock.storage.sql.engine import SqlEngine
from penstock.testing.laws import law
from tests.databases import server
from tests.unit.storage.sql.pairs import NAME, TENANT, Pair, claim, publish, settled

#: How many transactions wait for a row that another one has locked.
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


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
    pair.a._core.seats.clear()
    name, module = {
        "postgresql": ("PostgreSQLSession", "session"),
        "mysql": ("_Session", "adapter"),
    }[dialect]
    session: Any = getattr(load_module(dialect, module), name)
    change = session.change
    written, waited = asyncio.Event(), asyncio.Event()

    async def change_slowly(self: object, *args: object, **named: object) -> Any:
        found = await change(self, *args, **named)
        if not written.is_set():
            written.set()
            await waited.wait()
        return found

    monkeypatch.setattr(session, "change", change_slowly)
    receipt = three[0].receipt
    first = Extend(receipt, 95_000) if verb == "extend" else Ack(receipt)
    settling = asyncio.ensure_future(pair.a.settle(TENANT, "old", [first]))
    await written.wait()
    acking = asyncio.ensure_future(settled(pair.b, "old", Ack(receipt)))
    while server(dialect).sql(WAITING[dialect], NAME) == [["0"]]:
        assert not acking.done()
        await asyncio.sleep(0)
    waited.set()
    assert (await settling).outcomes[0].ok
    assert await acking == ["ok"]
