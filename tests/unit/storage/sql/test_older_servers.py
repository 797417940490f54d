"""A server that is older than the schema can write no more: it does not know the schema's rules."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from types import ModuleType

import pytest

from penstock.errors import PenstockError, StoreTooNew, StoreTooOld
from penstock.model.delivery import Ack, Nack, ReplaySource
from penstock.model.limits import Limits
from penstock.model.message import NewMessage, Outgoing
from penstock.model.queue import QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql import core, migrations
from penstock.storage.sql.database import load_module
from penstock.storage.sql.migrations import Migration, known, migrate, read
from penstock.testing.clock import FakeClock
from tests.databases import Server, server, without_views

NAME = "older"
TENANT = "t"
#: The migration that older servers stumble over.
FENCE = "_topic_policy"
#: Tables and columns that were renamed since.
OLD_NAMES = {
    "penstock_topic_policy": "penstock_topic",
    "row_key": "place",
    "record": "life",
    "metadata": "heads",
}
MARIADB_ONLY = re.compile(r"/\*M!.*?\*/", re.DOTALL)


@pytest.fixture
def database(dialect: str) -> Iterator[Server]:
    """A server with an empty database."""
    found = server(dialect)
    found.drop_database(NAME)
    found.create_database(NAME)
    yield found
    found.drop_database(NAME)


async def use(engine: Engine) -> list[Ack]:
    """Publish and claim, so that the server has its catalog and its statements ready."""
    for number in range(4):
        await engine.publish(TENANT, "jobs", [NewMessage(b"x")])
        await engine.publish(TENANT, "jobs", [NewMessage(b"y", id=f"{number}")])
    return [Ack(one.receipt) for one in await engine.claim(TENANT, "jobs", "c", 3, None)]


def writes(engine: Engine, held: list[Ack]) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every way to write to a tenant."""
    message = [NewMessage(b"z")]
    policy = QueuePolicy(filter="topic = 'jobs'")
    return {
        "publish": lambda: engine.publish(TENANT, "jobs", message),
        "publish with an id": lambda: engine.publish(TENANT, "jobs", [NewMessage(b"z", id="z")]),
        "publish to a new queue": lambda: engine.publish(TENANT, "new", message),
        "claim": lambda: engine.claim(TENANT, "jobs", "c", 1, None),
        "ack": lambda: engine.settle(TENANT, "jobs", held[:1]),
        "nack": lambda: engine.settle(TENANT, "jobs", [Nack(held[1].receipt)]),
        "settle and publish": lambda: engine.settle(
            TENANT, "jobs", held[2:], publish=[Outgoing("jobs", message)]
        ),
        "put_queue": lambda: engine.put_queue(TENANT, "more", policy, Start()),
        "delete_queue": lambda: engine.delete_queue(TENANT, "jobs"),
        "put_topic": lambda: engine.put_topic(TENANT, "jobs", TopicPolicy()),
        "purge": lambda: engine.purge(TENANT, "jobs", State.AVAILABLE, None, 10),
        "replay": lambda: engine.replay(
            TENANT, "jobs", ReplaySource.LOG, None, 10, rate=None, dry_run=False, replay_id=None
        ),
    }


def rows(found: Server) -> list[list[str]]:
    counts = ", ".join(
        f"(SELECT count(*) FROM penstock_{table})" for table in ("log", "run", "queue", "id")
    )
    return found.sql(f"SELECT {counts}", NAME)


async def check_refused(
    database: Server, engine: Engine, held: list[Ack], error: type[PenstockError]
) -> None:
    before = rows(database)
    refused = {}
    for name, write in writes(engine, held).items():
        try:
            await write()
        except PenstockError as raised:
            refused[name] = type(raised)
    assert refused == dict.fromkeys(writes(engine, held), error)
    assert rows(database) == before


async def test_a_server_that_runs_while_a_newer_one_migrates(
    database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the newer schema changes: here nothing that the older server would stumble over."""
    url = database.url(NAME)
    await migrate(url)
    engine = await open_engine(url)
    try:
        held = await use(engine)
        newer = await _migrate_further(database, monkeypatch)
        await check_refused(database, engine, held, StoreTooNew)
        words = rf"has schema {newer.number}.*up to {newer.number - 1}\."
        with pytest.raises(StoreTooNew, match=words):
            await engine.publish("a tenant that is new", "jobs", [NewMessage(b"x")])
    finally:
        await engine.close()


async def test_a_server_that_sweeps_after_a_newer_one_has_migrated(
    database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may leave the log is a rule of the schema too, and nothing has to be due in a queue."""
    url = database.url(NAME)
    await migrate(url)
    clock = FakeClock()
    limits = Limits(log_retention_ms=1)
    options = EngineOptions(clock=clock, auto_create=False, limits=limits)
    engine = await open_engine(url, options)
    try:
        await engine.publish(TENANT, "jobs", [NewMessage(b"x", id="x")])
        clock.advance(7 * 24 * 3_600_000)
        await _migrate_further(database, monkeypatch)
        before = rows(database)
        with pytest.raises(StoreTooNew):
            await engine.sweep(1_000)
        for write in (
            lambda: engine.put_document("kind", "name", b"x"),
            lambda: engine.add_document("kind", "name", b"x", None),
            lambda: engine.delete_document("kind", "name"),
        ):
            with pytest.raises(StoreTooNew):
                await write()
        assert rows(database) == before
    finally:
        await engine.close()


async def _migrate_further(database: Server, monkeypatch: pytest.MonkeyPatch) -> Migration:
    """Bring the schema to a version that no server here knows."""
    every = known(database.SCHEME)
    newer = read(f"{len(every) + 1:04}_more.sql", "CREATE TABLE penstock_more (a int);")
    monkeypatch.setattr(migrations, "known", lambda _: (*every, newer))
    await migrate(database.url(NAME))
    return newer


async def test_a_server_of_the_version_before_numbers_were_compared(
    database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database.url(NAME)
    every = known(database.SCHEME)
    (fence,) = [item.number for item in every if item.name.endswith(FENCE)]
    with monkeypatch.context() as older:
        older.setattr(migrations, "known", lambda _: every[: fence - 1])
        older.setattr(migrations, "functions", lambda _: None)
        without_views(older, database)
        _use_old_statements(older, load_module(database.SCHEME, "adapter"))
        older.setattr(core, "known", lambda _: range(1_000))
        await migrate(url)
        engine = await open_engine(url)
    try:
        held = await use(engine)
        await migrate(url)
        await check_refused(database, engine, held, StoreTooOld)
    finally:
        await engine.close()


def _use_old_statements(monkeypatch: pytest.MonkeyPatch, adapter: ModuleType) -> None:
    """The statements with the old names of tables and columns, and the old place of a store."""
    load = adapter.load

    def old(text: str) -> str:
        for now, before in OLD_NAMES.items():
            text = re.sub(rf"(?<!:)\b{now}\b", before, text)
        return MARIADB_ONLY.sub("", text)

    def load_old(dialect: str) -> dict[str, str]:
        return {name: old(text) for name, text in load(dialect).items()}

    monkeypatch.setattr(adapter, "load", load_old)
