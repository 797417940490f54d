"""Bulk dead-letter copies in a database: each transaction appends a bounded number of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.delivery import SettleReply, Verdict
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql.publish import Publishing
from penstock.testing.clock import FakeClock
from tests.databases import store_url
from tests.unit.storage.bulk_copies import COUNT, BulkCopies, D, Q, Scene, T, rejects


class TestBulkCopies(BulkCopies):
    """The tests of every engine, and what becomes of calls that share transactions."""

    @pytest.fixture
    async def scene(self, dialect: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
        append, transactions = Publishing.append_copies, list[list[int]]()

        async def append_copies(
            publishing: Publishing, copies: Sequence[tuple[str, NewMessage]]
        ) -> None:
            transactions.append([len(copy.payload) for _, copy in copies])
            await append(publishing, copies)

        monkeypatch.setattr(Publishing, "append_copies", append_copies)
        clock = FakeClock()
        engine = await open_engine(store_url(dialect, "copies"), EngineOptions(clock=clock))
        await engine.put_queue(T, D, QueuePolicy(filter="topic = 'dead'"), Start())
        scene = Scene(engine, clock, lambda: transactions)
        await scene.put_queue()
        yield scene
        await engine.close()

    async def test_a_partly_settled_call_is_not_tried_again(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second transaction fails: its first call ends there, the other is tried alone."""
        settlements = rejects(await scene.claimed())
        append, transactions = Publishing.append_copies, 0

        async def append_copies(
            publishing: Publishing, copies: Sequence[tuple[str, NewMessage]]
        ) -> None:
            nonlocal transactions
            transactions += 1
            if transactions == 2:
                raise StoreCorrupt("A payload cannot be read.")
            await append(publishing, copies)

        monkeypatch.setattr(Publishing, "append_copies", append_copies)
        first, second = settlements[:10], settlements[10:]
        refused, reply = await asyncio.gather(
            scene.engine.settle(T, Q, first),
            scene.engine.settle(T, Q, second),
            return_exceptions=True,
        )
        assert isinstance(refused, StoreCorrupt)
        assert isinstance(reply, SettleReply)
        assert {outcome.state for outcome in reply.outcomes} == {State.FAILED}
        repeated = await scene.engine.settle(T, Q, first)
        verdicts = [outcome.verdict for outcome in repeated.outcomes]
        stale = verdicts.count(Verdict.STALE)
        assert 0 < stale < 10
        assert verdicts == [Verdict.STALE] * stale + [Verdict.OK] * (10 - stale)
        assert (await scene.engine.stats(T, D)).available == COUNT
