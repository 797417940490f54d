"""Watching: other servers are told, and what they did is heard or found (C5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import cast

import pytest

from penstock.model.queue import QueuePolicy
from penstock.storage.contract import EngineOptions
from penstock.storage.listener import Listener
from penstock.storage.sql import notifications as module
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.clock import DatabaseClock
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import ConnectionLost, Database
from penstock.storage.sql.notifications import Watch
from penstock.testing.clock import FakeClock

#: Only a test that would hang for ever waits this long.
HANG_S = 60.0


class FakeDatabase:
    """Answers polls, and remembers them and what was told."""

    name = "postgresql"

    def __init__(self) -> None:
        self.hears = False
        self.has_company = True
        self.told: list[list[int]] = []
        self.polls: list[tuple[float, list[int]]] = []
        #: By queue: version, newest number, how many.
        self.answers = {1: (1, 10, 2), 2: (1, 0, 0)}
        self.failure: Exception | None = None
        self.happened = asyncio.Event()
        self.heard: Callable[[Sequence[int]], None] = lambda _: None
        #: Holds what is being told back.
        self.gate = asyncio.Event()
        self.gate.set()

    async def watch(self, heard: Callable[[Sequence[int]], None]) -> None:
        self.heard = heard

    async def broadcast(self, queues: Sequence[int]) -> None:
        self.told.append(list(queues))
        self.happened.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[FakeDatabase]:
        yield self

    async def fetch(self, statement: str, *, queues: list[int]) -> list[tuple[int, ...]]:
        assert statement == "poll"
        self.polls.append((asyncio.get_running_loop().time(), queues))
        self.happened.set()
        if self.failure is not None:
            raise self.failure
        return [(queue, *self.answers[queue]) for queue in queues if queue in self.answers]

    async def until(self, done: Callable[[], object]) -> None:
        """Wait until that is so, which it is after a poll or a word to others."""
        async with asyncio.timeout(HANG_S):
            while not done():
                self.happened.clear()
                await self.happened.wait()
                await asyncio.sleep(0)

    async def polled(self, count: int = 1) -> None:
        """Wait for so many polls more, and for what the last of them led to."""
        before = len(self.polls)
        await self.until(lambda: len(self.polls) >= before + count)
        await asyncio.sleep(0)


class Ears(Listener):
    """Remembers which queues were ready."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def ready(self, tenant: str, queue: str) -> None:
        assert tenant == "acme"
        self.heard.append(queue)

    def take(self) -> list[str]:
        heard, self.heard = self.heard, []
        return heard


@pytest.fixture
async def database() -> FakeDatabase:
    return FakeDatabase()


@pytest.fixture
async def core(database: FakeDatabase) -> Core:
    clock = FakeClock()
    core = Core(cast(Database, database), EngineOptions(clock=clock), clock)
    names = {1: "a", 2: "b"}
    queues = [
        Queue(
            number=number,
            tenant="acme",
            name=name,
            policy=QueuePolicy(),
            filter_version=1,
            created_at=0,
            cursor=None,
            joining=False,
            dead_paused=False,
        )
        for number, name in names.items()
    ]
    core.catalog.remember(Tenant(1, "acme", 1, queues, {}))
    core.listener = Ears()
    return core


@pytest.fixture
async def ears(core: Core) -> Ears:
    assert isinstance(core.listener, Ears)
    return core.listener


@pytest.fixture
async def watch(core: Core) -> AsyncIterator[Watch]:
    watch = Watch(core)
    await watch.start()
    yield watch
    await watch.close()


# -- telling ---------------------------------------------------------------------------


async def test_what_comes_together_is_told_together(watch: Watch, database: FakeDatabase) -> None:
    database.gate.clear()
    watch.broadcast({1})
    await database.until(lambda: database.told)
    watch.broadcast({2})
    watch.broadcast({3, 2})
    watch.broadcast({1})
    database.gate.set()
    await database.until(lambda: len(database.told) == 2)
    assert database.told == [[1], [1, 2, 3]]


async def test_nobody_waits_for_the_telling(watch: Watch, database: FakeDatabase) -> None:
    database.gate.clear()
    watch.broadcast({1})
    assert not database.told
    await database.until(lambda: database.told)
    database.gate.set()


async def test_what_could_not_be_told_is_let_go(
    watch: Watch, database: FakeDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    database.failure = ConnectionLost("gone", committing=False)
    with caplog.at_level(logging.WARNING, "penstock.storage"):
        watch.broadcast({1})
        await database.until(lambda: database.told)
        database.failure = None
        watch.broadcast({2})
        await database.until(lambda: len(database.told) == 2)
    assert database.told == [[1], [2]]
    assert caplog.messages == ["other servers could not be notified: gone"]


async def test_closing_tells_what_is_left(core: Core, database: FakeDatabase) -> None:
    watch = Watch(core)
    await watch.start()
    database.gate.clear()
    watch.broadcast({1})
    await database.until(lambda: database.told)
    watch.broadcast({2})
    closing = asyncio.create_task(watch.close())
    await asyncio.sleep(0)
    database.gate.set()
    await closing
    watch.broadcast({3})
    await asyncio.sleep(0.01)
    assert database.told == [[1], [2]]


async def test_closing_does_not_wait_for_ever(
    core: Core, database: FakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PARTING_S", 0.01)
    watch = Watch(core)
    await watch.start()
    database.gate.clear()
    watch.broadcast({1})
    await database.until(lambda: database.told)
    await watch.close()
    await watch.close()


# -- hearing ---------------------------------------------------------------------------


async def test_what_is_heard_is_passed_on(database: FakeDatabase, watch: Watch, ears: Ears) -> None:
    database.heard([2])
    assert ears.take() == ["b", "b.dlq"]


async def test_whoever_is_alone_tells_nobody(watch: Watch, database: FakeDatabase) -> None:
    database.has_company = False
    watch.broadcast({1})
    database.has_company = True
    watch.broadcast({2})
    await database.until(lambda: database.told)
    assert database.told == [[2]]


async def test_a_queue_that_nobody_named_here_is_left_alone(
    watch: Watch, database: FakeDatabase, ears: Ears
) -> None:
    database.heard([77, 1])
    assert ears.take() == ["a", "a.dlq"]


async def test_if_anything_may_have_been_missed_all_who_wait_look(
    watch: Watch, core: Core, database: FakeDatabase, ears: Ears
) -> None:
    known = await core.catalog.tenant("acme")
    database.heard(())
    assert ears.take() == []
    # The connection is a new one, and the catalog behind it may be another.
    assert not core.catalog._tenants
    core.catalog.remember(known)
    await watch.interested_in("acme", "b.dlq")
    database.heard(())
    assert ears.take() == ["b", "b.dlq"]


async def test_a_new_connection_makes_the_clock_doubtful(
    watch: Watch, core: Core, database: FakeDatabase
) -> None:
    core.clock = clock = DatabaseClock(cast(Database, database))
    database.heard([1])
    assert not clock._doubted.is_set()
    database.heard(())
    assert clock._doubted.is_set()


async def test_after_closing_nothing_is_passed_on(
    core: Core, database: FakeDatabase, ears: Ears
) -> None:
    watch = Watch(core)
    await watch.start()
    await watch.close()
    database.heard([1])
    assert ears.take() == []


# -- polling ---------------------------------------------------------------------------


async def test_nobody_waits_and_nothing_is_asked(watch: Watch, database: FakeDatabase) -> None:
    await asyncio.sleep(0.05)
    assert database.polls == []
    await watch.interested_in("acme", "unknown")
    await asyncio.sleep(0.05)
    assert database.polls == []


async def test_all_queues_are_one_statement(watch: Watch, database: FakeDatabase) -> None:
    await watch.interested_in("acme", "a")
    await watch.interested_in("acme", "b.dlq")
    await database.polled()
    assert [queues for _, queues in database.polls] == [[1, 2]]


async def test_the_first_answer_is_a_change(
    watch: Watch, database: FakeDatabase, ears: Ears
) -> None:
    watch.interested(1)
    await database.polled()
    assert ears.take() == ["a", "a.dlq"]
    watch.interested(2)
    await database.polled()
    assert ears.take() == ["b", "b.dlq"]
    watch.interested(1)
    await database.polled(2)
    assert ears.take() == []


@pytest.mark.parametrize("answer", [(1, 11, 3), (1, 10, 3), (2, 10, 2), (1, 12, 1), None], ids=str)
async def test_a_change_is_passed_on_once(
    watch: Watch, database: FakeDatabase, ears: Ears, answer: tuple[int, int, int] | None
) -> None:
    watch.interested(1)
    watch.interested(2)
    await database.polled()
    ears.take()
    if answer is None:
        del database.answers[1]
    else:
        database.answers[1] = answer
    await database.polled()
    assert ears.take() == ["a", "a.dlq"]
    await database.polled(2)
    assert ears.take() == []


async def test_while_nothing_happens_it_is_asked_less_and_less(
    watch: Watch, database: FakeDatabase
) -> None:
    watch.interested(1)
    await database.polled(12)
    times = [at for at, _ in database.polls]
    gaps = [b - a for a, b in pairwise(times)]
    # What a busy machine adds may hide that it grows, but cannot make it shorter.
    assert gaps[-1] >= 0.2
    assert all(gap >= 0.009 for gap in gaps)


async def test_after_a_change_it_is_asked_often_again(
    watch: Watch, database: FakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    plain = watch._rest

    async def rest(pause: float, least: float) -> float:
        pauses.append(pause)
        return await plain(pause, least)

    monkeypatch.setattr(watch, "_rest", rest)
    watch.interested(1)
    await database.polled(5)
    assert pauses[-1] > pauses[1]
    database.answers[1] = (1, 11, 3)
    await database.polled(2)
    assert min(pauses[-2:]) == pauses[1]


async def test_a_poll_that_takes_long_is_followed_by_a_longer_pause(
    watch: Watch, database: FakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = database.fetch

    async def slow(statement: str, *, queues: list[int]) -> list[tuple[int, ...]]:
        await asyncio.sleep(0.04)
        database.answers[1] = (1, len(database.polls), 0)
        return await plain(statement, queues=queues)

    monkeypatch.setattr(database, "fetch", slow)
    watch.interested(1)
    await database.polled(3)
    times = [at for at, _ in database.polls]
    assert times[2] - times[1] >= 0.2


async def test_where_others_are_heard_it_is_only_a_net(
    watch: Watch, database: FakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NET_S", 0.1)
    database.hears = True
    watch.interested(1)
    await database.polled(3)
    watch.interested(2)
    await database.polled(3)
    times = [at for at, _ in database.polls]
    assert min(b - a for a, b in pairwise(times)) >= 0.1
    assert database.polls[-1][1] == [1, 2]


async def test_interest_ends_and_begins_anew(
    watch: Watch, database: FakeDatabase, ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.interested(2)
    monkeypatch.setattr(module, "_INTEREST_S", -1.0)
    watch.interested(1)
    await database.polled()
    assert database.polls[-1][1] == [2]
    monkeypatch.undo()
    watch.interested(1)
    await database.polled()
    ears.take()
    monkeypatch.setattr(module, "_INTEREST_S", -1.0)
    watch.interested(1)
    await database.polled()
    monkeypatch.undo()
    watch.interested(1)
    await database.polled()
    assert ears.take() == ["a", "a.dlq"]


async def test_a_poll_that_fails_is_made_again(
    watch: Watch,
    database: FakeDatabase,
    ears: Ears,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "_FAILED_S", 0.01)
    database.failure = ConnectionLost("gone", committing=False)
    watch.interested(1)
    with caplog.at_level(logging.WARNING, "penstock.storage"):
        await database.polled(3)
    assert caplog.messages == ["queues cannot be polled: gone"]
    assert ears.take() == []
    database.failure = None
    await database.polled()
    assert ears.take() == ["a", "a.dlq"]
