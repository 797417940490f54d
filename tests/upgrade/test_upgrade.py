"""Stores that earlier releases wrote are opened, complete, and go on.

``data/VERSION`` was written by that release (``write_store.py``) and never changes.
"""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from penstock.model.delivery import Ack, Receipt, ReplaySource
from penstock.model.message import NewMessage
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql import migrations
from penstock.storage.sql.migrations import known, migrate
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.databases import Server, server, without_views
from tests.upgrade.contents import TENANT, Json, Kept, describe, missing
from tests.upgrade.tables import Tables, write_tables

DATA: Final = Path(__file__).parent / "data"
#: By release, the number of migrations that its databases had.
MIGRATIONS: Final = {"0.1.0": {"postgresql": 8, "mysql": 7}}
NAME: Final = "upgraded"
#: Fields that have another name now.
RENAMED: Final = {"visibility_timeout_ms": "lease_ms"}


def _decoded(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes())


def _renamed(value: Json) -> Json:
    if isinstance(value, dict):
        return {RENAMED.get(name, name): _renamed(item) for name, item in value.items()}
    return [*map(_renamed, value)] if isinstance(value, list) else value


async def _restore(release: str, engine: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> str:
    """Put the store of a release where it can be opened; returns its URL."""
    if engine == "rocksdb":
        with tarfile.open(DATA / release / "rocksdb.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        return f"rocksdb://{tmp_path}/store"
    database = server(engine)
    database.drop_database(NAME)
    database.create_database(NAME)
    url = database.url(NAME)
    await _migrate_to(database, MIGRATIONS[release][engine], patch)
    tables = msgspec.json.decode(_decoded(DATA / release / f"{engine}.json.xz"), type=Tables)
    write_tables(database, NAME, tables)
    await migrate(url)
    return url


async def _migrate_to(database: Server, number: int, patch: pytest.MonkeyPatch) -> None:
    every = known(database.SCHEME)
    with patch.context() as older:
        older.setattr(migrations, "known", lambda _: every[:number])
        older.setattr(migrations, "functions", lambda _: None)
        without_views(older, database)
        await migrate(database.url(NAME))


class Upgraded(msgspec.Struct):
    """An opened store, its clock, and what it contained."""

    engine: Engine
    clock: FakeClock
    kept: Kept


@pytest.fixture(params=["rocksdb", "postgresql", "mysql"])
async def upgraded(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Upgraded]:
    release = "0.1.0"
    url = await _restore(release, request.param, tmp_path, monkeypatch)
    text = _decoded(DATA / release / f"{request.param}.contents.json.xz")
    kept = msgspec.json.decode(text, type=Kept)
    clock = FakeClock(kept.now)
    engine = await open_engine(url, EngineOptions(clock=clock))
    yield Upgraded(engine, clock, kept)
    await engine.close()


@law("P1", "Q2")
async def test_nothing_is_missing_or_different(upgraded: Upgraded) -> None:
    now = await describe(upgraded.engine)
    assert missing(_renamed(upgraded.kept.contents), _renamed(now)) == []
    for name, stats in now["stats"].items():
        counts = {state: len(items) for state, items in now["deliveries"][name].items()}
        assert counts == {state.value: stats[state.value] for state in State}


@law("S1", "C1")
async def test_claims_of_before_are_settled(upgraded: Upgraded) -> None:
    for queue, receipt in upgraded.kept.held.items():
        reply = await upgraded.engine.settle(TENANT, queue, [Ack(Receipt(receipt))])
        assert [outcome.state for outcome in reply.outcomes] == [State.DONE]
        again = await upgraded.engine.stats(TENANT, queue)
        assert again.done == upgraded.kept.contents["stats"][queue]["done"] + 1


@law("P4")
async def test_ids_keys_and_replays_are_remembered(upgraded: Upgraded) -> None:
    engine = upgraded.engine
    (known_id,) = (
        await engine.publish(TENANT, "orders", [NewMessage(b"again", id="id-1")])
    ).messages
    assert known_id.duplicate
    reply = await engine.publish(TENANT, "orders", [NewMessage(b"again")] * 10, batch_id="first")
    assert reply.repeated
    (keyed,) = (
        await engine.publish(TENANT, "orders", [NewMessage(b"newest", {"amount": 8}, key="k")])
    ).messages
    assert keyed.replaced
    replayed = await engine.replay(
        TENANT, "large", ReplaySource.FAILED, None, 1_000, replay_id="r1"
    )
    before = upgraded.kept.contents["stats"]["large"]["failed"]
    assert replayed.count == before  # The one that was replayed before is not failed any more.


@law("C5", "S2")
async def test_everything_that_waits_is_delivered_once(upgraded: Upgraded) -> None:
    engine, clock = upgraded.engine, upgraded.clock
    clock.advance(24 * 3_600_000)
    while (await engine.route(TENANT, "behind", 1_000)).cursor is not None:
        pass
    for queue in ("orders", "orders.dlq", "large", "behind"):
        seen: set[int] = set()
        while deliveries := await engine.claim(TENANT, queue, "w", 1_000, None):
            ids = {one.message.id for one in deliveries}
            assert not ids & seen
            seen |= ids
            await engine.settle(TENANT, queue, [Ack(one.receipt) for one in deliveries])
        assert seen
        stats = await engine.stats(TENANT, queue)
        assert (stats.depth, stats.in_flight) == (0, 0)
