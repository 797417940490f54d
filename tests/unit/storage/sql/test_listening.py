"""LISTEN and NOTIFY on a real PostgreSQL: who is heard, and what happens when the line is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from penstock.storage.sql.postgresql import notifications as module
from penstock.storage.sql.postgresql.notifications import NOTIFY, Listening, announcements
from tests.databases import server

#: Only a test that would hang for ever waits this long.
HANG_S = 30.0
DATABASE = "listening"


@pytest.fixture(scope="module")
def url() -> str:
    found = server("postgresql")
    found.drop_database(DATABASE)
    found.create_database(DATABASE)
    return found.url(DATABASE)


class One:
    """A server: what it hears."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.refuse = False
        self.tries: asyncio.Queue[None] = asyncio.Queue()
        self.listening = Listening(self._connect)
        self.heard: asyncio.Queue[list[int]] = asyncio.Queue()

    async def _connect(self) -> Any:
        self.tries.put_nowait(None)
        if self.refuse:
            raise ConnectionRefusedError("not now")
        return await asyncpg.connect(self._url)

    async def start(self) -> None:
        await self.listening.start(self._hear)

    def _hear(self, queues: Sequence[int]) -> None:
        self.heard.put_nowait(list(queues))

    async def next(self) -> list[int]:
        return await asyncio.wait_for(self.heard.get(), HANG_S)


def hears(one: One) -> bool:
    return one.listening.hears


@pytest.fixture
async def pair(url: str) -> AsyncIterator[tuple[One, One]]:
    pair = One(url), One(url)
    for one in pair:
        await one.start()
        # Whatever was said before was missed.
        assert await one.next() == []
    yield pair
    for one in pair:
        await one.listening.close()
        await one.listening.close()


async def test_the_others_hear_it(pair: tuple[One, One]) -> None:
    a, b = pair
    await a.listening.broadcast([1, 0xBEEF, 2**31 - 1])
    assert await b.next() == [1, 0xBEEF, 2**31 - 1]
    await b.listening.broadcast([5])
    # Its own words came before that, and were passed by.
    assert await a.next() == [5]
    assert a.heard.empty()


async def test_many_queues_take_several_words(pair: tuple[One, One]) -> None:
    a, b = pair
    queues = [2**31 - 1 - number for number in range(2500)]
    assert all(len(said) < 8000 for said in announcements(queues))
    await a.listening.broadcast(queues)
    heard: list[int] = []
    while len(heard) < len(queues):
        heard += await b.next()
    assert heard == queues


async def test_all_hear_what_a_callers_own_transaction_says(
    pair: tuple[One, One], url: str
) -> None:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute(NOTIFY, announcements([7, 8]))
    for one in pair:
        assert await one.next() == [7, 8]
    await connection.close()


async def test_what_no_server_says_is_passed_by(pair: tuple[One, One], url: str) -> None:
    a, b = pair
    connection = await asyncpg.connect(url)
    for said in ("", "hello world", "-", "zz"):
        await connection.execute(NOTIFY, [said])
    await connection.close()
    await a.listening.broadcast([1])
    assert await b.next() == [1]


async def test_a_lost_connection_is_made_again(pair: tuple[One, One]) -> None:
    a, b = pair
    server("postgresql").kill_backends(DATABASE)
    for one in pair:
        assert await one.next() == []
        assert hears(one)
    await a.listening.broadcast([3])
    assert await b.next() == [3]


async def test_without_a_connection_nobody_is_told_and_nobody_minds(url: str) -> None:
    one = One(url)
    await one.listening.broadcast([1])
    one.refuse = True
    await one.start()
    assert not hears(one)
    await one.listening.broadcast([1])
    for _ in range(2):
        await asyncio.wait_for(one.tries.get(), HANG_S)
    one.refuse = False
    assert await one.next() == []
    assert hears(one)
    await one.listening.close()
    assert not hears(one)
    await one.listening.broadcast([1])


async def test_a_connection_that_breaks_while_telling(pair: tuple[One, One]) -> None:
    a, b = pair
    server("postgresql").kill_backends(DATABASE)
    await a.listening.broadcast([1])
    for one in pair:
        assert await one.next() == []
    await a.listening.broadcast([2])
    assert await b.next() == [2]


def has_company(one: One) -> bool:
    return one.listening.has_company


async def test_servers_know_of_each_other(url: str) -> None:
    a, b = One(url), One(url)
    await a.start()
    assert not has_company(a)
    await b.start()
    # One has heard the other begin, and has answered.
    async with asyncio.timeout(HANG_S):
        while not (has_company(a) and has_company(b)):  # noqa: ASYNC110  (it tells nobody)
            await asyncio.sleep(0.01)
    for one in (a, b):
        await one.listening.close()


async def test_whoever_hears_nobody_for_long_is_alone(
    pair: tuple[One, One], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    await b.listening.broadcast([1])
    assert await a.next() == [1]
    assert has_company(a)
    monkeypatch.setattr(module, "_ALONE_AFTER_S", 0.0)
    assert not has_company(a)


async def test_a_server_says_again_that_it_is_there(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HERE_EVERY_S", 0.02)
    connection = await asyncpg.connect(url)
    said: asyncio.Queue[object] = asyncio.Queue()
    await connection.add_listener("penstock", lambda *heard: said.put_nowait(heard[3]))
    one = One(url)
    await one.start()
    heard = [await asyncio.wait_for(said.get(), HANG_S) for _ in range(3)]
    assert heard == ["hello", "here", "here"]
    await one.listening.close()
    await connection.close()


class Deaf:
    """A connection that nobody is at the other end of any more."""

    def __init__(self) -> None:
        self.ended = False

    def add_termination_listener(self, callback: object) -> None:
        pass

    async def add_listener(self, channel: str, callback: object) -> None:
        assert channel == "penstock"

    async def execute(self, _statement: str, said: object = (), **_: object) -> None:
        if said == ["here"]:
            raise TimeoutError

    async def close(self, **_: object) -> None:
        raise TimeoutError

    def terminate(self) -> None:
        self.ended = True


async def test_a_connection_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_HERE_EVERY_S", 0.01)
    connections: list[Deaf] = []
    two = asyncio.Event()

    async def connect() -> Deaf:
        connections.append(Deaf())
        if len(connections) == 2:
            two.set()
        return connections[-1]

    listening = Listening(connect)
    await listening.start(lambda _: None)
    await asyncio.wait_for(two.wait(), HANG_S)
    assert connections[0].ended
    await listening.close()
    assert connections[1].ended
