"""An ordered queue on two servers that share a database and a clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.model.message import MessageId
from penstock.model.queue import Ordering
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql.core import Core
from penstock.testing.clock import FakeClock
from penstock.testing.conformance.harness import TENANT, Store, jitter, msg
from tests.databases import server, store_url

__all__ = ["Pair", "core_of", "fill", "joined", "opened_pair", "ordered", "store"]

_NAME = "partitions"


class Pair:
    """The servers."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        url = store_url(dialect, _NAME)
        self.clock = FakeClock()
        self.first = store(url, self.clock)
        self.second = store(url, self.clock)

    def sql(self, statements: str) -> None:
        """Change the store behind the servers' backs."""
        server(self._dialect).sql(statements, _NAME)


def store(url: str, clock: FakeClock) -> Store:
    """A server that is not open yet."""

    def opener(options: EngineOptions, path: Path) -> Any:
        return open_engine(url, options)

    options = EngineOptions(clock=clock, jitter=jitter, auto_create=False)
    return Store(opener, Path(), options, clock)


@asynccontextmanager
async def opened_pair(dialect: str) -> AsyncIterator[Pair]:
    """Both servers on an empty store; at the end that has to be as it should (Q2, S3)."""
    pair = Pair(dialect)
    for one in (pair.first, pair.second):
        await one.open()
    yield pair
    await pair.second.verify()
    for one in (pair.first, pair.second):
        await one.engine.close()


async def ordered(
    one: Store, *, concurrency: int = 1, batch: int = 1, max_attempts: int = 5
) -> None:
    """Put the ordered queue ``q``."""
    await one.queue(
        ordering=Ordering.PARTITION,
        partition_concurrency=concurrency,
        partition_batch=batch,
        max_attempts=max_attempts,
    )


async def fill(one: Store, *partitions: str) -> dict[str, list[MessageId]]:
    """Publish one message a name, in order; the ids by partition."""
    ids = await one.publish(*(msg(p.encode(), partition_key=p) for p in partitions))
    filled: dict[str, list[MessageId]] = defaultdict(list)
    for partition, message_id in zip(partitions, ids, strict=True):
        filled[partition].append(message_id)
    return filled


async def joined(one: Store, consumer: str) -> str:
    """The names of what the consumer owns after a heartbeat."""
    return "".join((await one.engine.join(TENANT, "q", consumer)).partitions)


def core_of(one: Store) -> Core:
    """What the server's engine stands on."""
    core = one.engine._core  # type: ignore[attr-defined]
    assert isinstance(core, Core)
    return core
