"""Quotas on two servers that share a database: they are exact, whoever creates the queues."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import TooManyQueues
from penstock.model.limits import Limits
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.storage.sql.callers import caller
from tests.unit.storage.sql.pairs import LATEST, NAME, TENANT, opened


async def test_two_servers_share_one_quota(dialect: str) -> None:
    clock = FakeClock()
    async with opened(dialect, clock, clock, limits=Limits(queues=3)) as (a, b):
        await asyncio.gather(*(server.list_queues(TENANT) for server in (a, b)))
        policy = QueuePolicy(filter="FALSE")
        calls = [
            call
            for n, server in enumerate((a, b, a, b))
            for call in (
                server.put_queue(TENANT, f"put{n}", policy, LATEST),
                server.publish(TENANT, f"topic{n}", [NewMessage(b"x")]),
            )
        ]
        done = await asyncio.gather(*calls, return_exceptions=True)
        refused = [error for error in done if isinstance(error, BaseException)]
        assert {type(error) for error in refused} == {TooManyQueues}
        assert len(refused) == len(calls) - 3
        assert len(await a.list_queues(TENANT)) == 3


@law("P2")
async def test_an_outbox_publish_is_refused_too(dialect: str) -> None:
    async with opened(dialect, FakeClock(), limits=Limits(queues=0)) as (engine,):
        own = await caller(dialect, NAME)
        try:
            await own.begin()
            with pytest.raises(TooManyQueues):
                await engine.publish_within(own.connection, TENANT, "t", [NewMessage(b"x")])
            await own.roll_back()
        finally:
            await own.close()
        assert await engine.list_queues(TENANT) == ()
