"""Every statement has a deadline: a connection that is silent freezes no queue (C5, P2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NoReturn
from urllib.parse import urlsplit

import pytest

from penstock.errors import CommitFailed, StoreBusy
from penstock.model.delivery import Ack
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql.database import Overdue, Session
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.mysql import connection
from penstock.storage.sql.postgresql import adapter
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.databases import server, store_url
from tests.unit.storage.sql.black_hole import BlackHole, black_hole
from tests.unit.storage.sql.pairs import LATEST, NAME, TENANT, claim, payloads, publish

#: What a statement may take here, in seconds, and how long a test waits for what must happen.
TIMEOUT_S = 1
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_GRACE_S", 0.2)
    monkeypatch.setattr(connection, "_GRACE_S", 0.2)
    monkeypatch.setattr(connection, "_PARTING_S", 0.2)


@asynccontextmanager
async def opened_behind(dialect: str) -> AsyncIterator[tuple[Engine, BlackHole]]:
    """An engine behind a proxy, on an empty store with a queue ``q``."""
    url = store_url(dialect, NAME)
    plain = "sslmode=disable" if dialect == "postgresql" else "ssl-mode=DISABLED"
    async with black_hole(urlsplit(url).port or 0) as hole:
        behind = url.replace(f":{urlsplit(url).port}/", f":{hole.port}/")
        engine = await open_engine(
            f"{behind}?{plain}&statement_timeout={TIMEOUT_S}&connect_timeout={TIMEOUT_S}",
            EngineOptions(clock=FakeClock()),
        )
        assert isinstance(engine, SqlEngine)
        await engine._watch.close()
        try:
            await engine.put_queue(TENANT, "q", QueuePolicy(filter="TRUE"), LATEST)
            await publish(engine, "t", b"0")
            yield engine, hole
        finally:
            await engine.close()


@law("C5")
async def test_a_silent_connection_ends_a_call_with_an_error_to_retry(dialect: str) -> None:
    async with opened_behind(dialect) as (engine, hole), asyncio.timeout(PATIENCE_S):
        hole.silence()
        with pytest.raises(StoreBusy) as refused:
            await engine.stats(TENANT, "q")
        assert refused.value.retryable


@law("C5")
async def test_many_calls_on_silent_connections_all_end(dialect: str) -> None:
    async with opened_behind(dialect) as (engine, hole), asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(engine.stats(TENANT, "q") for _ in range(5)))
        hole.silence()
        calls = [engine.stats(TENANT, "q") for _ in range(15)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in ended] == [StoreBusy] * 15


async def test_a_connection_that_missed_a_deadline_is_not_used_again(dialect: str) -> None:
    async with opened_behind(dialect) as (engine, hole), asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(engine.stats(TENANT, "q") for _ in range(5)))
        hole.silence()
        with pytest.raises(StoreBusy):
            await claim(engine, "q")
        hole.heal()
        assert payloads(await claim(engine, "q")) == [b"0"]


@law("P2")
async def test_a_commit_that_is_not_answered_has_an_unknown_outcome(dialect: str) -> None:
    async with opened_behind(dialect) as (engine, hole), asyncio.timeout(PATIENCE_S):
        hole.silence_at(b"COMMIT")
        with pytest.raises(CommitFailed):
            await engine.publish(TENANT, "t", [NewMessage(b"1", id="x")])
        hole.heal()
        reply = await engine.publish(TENANT, "t", [NewMessage(b"1", id="x")])
        # The server never got the COMMIT.
        assert not reply.messages[0].duplicate
        assert payloads(await claim(engine, "q")) == [b"0", b"1"]


@law("C5")
async def test_what_a_vanished_server_has_locked_is_free_soon(dialect: str) -> None:
    """The database ends a transaction in which nothing happens."""
    async with opened_behind(dialect) as (engine, hole), asyncio.timeout(PATIENCE_S):
        # The claim has locked the delivery and cannot commit.
        assert isinstance(engine, SqlEngine)
        queue = (await engine._core.catalog.tenant(TENANT)).queues["q"]
        engine._core.shared[queue.number] = 1 << 60
        hole.silence_at(b"COMMIT")
        with pytest.raises(CommitFailed):
            await claim(engine, "q")
        other = await open_engine(
            f"{server(dialect).url(NAME)}?statement_timeout={TIMEOUT_S}",
            EngineOptions(clock=FakeClock()),
        )
        try:
            found: list[bytes] = []
            while not found:
                found = payloads(await claim(other, "q"))
            assert found == [b"0"]
        finally:
            await other.close()


async def test_the_server_ends_a_statement_that_takes_too_long(dialect: str) -> None:
    """Its connection goes on to be used: it is not the network that is silent."""
    async with opened_behind(dialect) as (engine, _), asyncio.timeout(PATIENCE_S):
        assert isinstance(engine, SqlEngine)
        core = engine._core
        slow = "SELECT pg_sleep(60)" if dialect == "postgresql" else "SELECT SLEEP(60)"

        async def act(session: object) -> None:
            if dialect == "postgresql":
                await session._connection.execute(slow)  # type: ignore[attr-defined]
            else:
                await (await session._linked()).execute(slow)  # type: ignore[attr-defined]

        with pytest.raises(StoreBusy, match="in time"):
            await core.run_without_tenant(act)
        assert (await engine.stats(TENANT, "q")).available == 1


@law("C5")
@pytest.mark.parametrize("verb", ["publish", "claim", "settle"])
async def test_what_is_done_at_once_and_missed_its_deadline_is_not_tried_again(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL has ended the statement: the caller has waited for as long as one may take."""
    async with opened_behind("postgresql") as (engine, _), asyncio.timeout(PATIENCE_S):
        (held,) = await claim(engine, "q")
        await publish(engine, "t", b"1")
        assert isinstance(engine, SqlEngine)
        database = engine._core.database

        def overdue() -> NoReturn:
            raise Overdue("canceling statement due to statement timeout", committing=False)

        transaction, transactions = database.transaction, 0

        def counted() -> AbstractAsyncContextManager[Session]:
            nonlocal transactions
            transactions += 1
            return transaction()

        monkeypatch.setattr(database, "single_statement", overdue)
        monkeypatch.setattr(database, "transaction", counted)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "publish": lambda: publish(engine, "t", b"2"),
            "claim": lambda: claim(engine, "q"),
            "settle": lambda: engine.settle(TENANT, "q", [Ack(held.receipt)]),
        }
        with pytest.raises(StoreBusy, match="in time"):
            await calls[verb]()
        assert transactions == 0
