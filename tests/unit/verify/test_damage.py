"""Damage is written up as X1, with what it hit, and the rest of the store is still checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from penstock import Broker, BrokerOptions, EngineOptions
from penstock.errors import StoreClosed, StoreCorrupt, StoreUnavailable
from penstock.model.delivery import Event, LogEntry, MessageDeliveries, QueueStats, Snapshot
from penstock.model.states import State
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import claim_id_of, payload_key
from penstock.storage.keyvalue.metadata import encode_metadata
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from penstock.verify import Check, Report, verify
from tests.crash.damaged import build, kind_of
from tests.crash.program import open_on
from tests.unit.verify.liar import Liar, Stock, stock_up
from tests.unit.verify.test_lies_about_the_log import named


def damage() -> StoreCorrupt:
    return StoreCorrupt("The checksum is wrong.")


def of_law(report: Report, law: str) -> Check:
    return next(check for check in report.checks if check.law == law)


# -- what a verb says is damaged -----------------------------------------------------------


@law("X1")
@pytest.mark.parametrize("first", [0, 5, 17])
async def test_a_part_of_the_log(liar: Liar, first: int) -> None:
    """Three offsets cannot be read; everything before and behind them is."""
    bad = range(first, first + 3)

    def raise_there(entries: list[LogEntry]) -> list[LogEntry]:
        if any(entry.message.offset in bad for entry in entries):
            raise damage()
        return entries

    liar.on_log = raise_there
    report = await verify(liar)
    assert named(report) == {("X1", None, first)}
    last = min(first + 2, 17)
    assert f"the log from offset {first} to {last} cannot be read" in str(report.violations)
    assert report.log_entries == 18 - (last - first + 1)
    assert of_law(report, "P3").examined == report.log_entries


@law("X1", "L2")
async def test_what_can_be_read_again_did_not_appear(liar: Liar, stock: Stock) -> None:
    """A part of the log that only the second reading could read: damage, and no news (L2)."""
    asked: set[int] = set()

    def note(found: MessageDeliveries) -> MessageDeliveries:
        asked.add(found.message.id)
        return found

    def raise_at_first(entries: list[LogEntry]) -> list[LogEntry]:
        # Messages are asked for between the two readings.
        if not asked and any(entry.message.offset == stock["third"] for entry in entries):
            raise damage()
        return entries

    liar.on_message = note
    liar.on_log = raise_at_first
    assert named(await verify(liar)) == {("X1", None, stock["third"])}
    assert asked


@law("X1")
async def test_one_payload(liar: Liar, stock: Stock) -> None:
    def raise_there(entries: list[LogEntry]) -> list[LogEntry]:
        if any(entry.payload == b"third" for entry in entries):
            raise damage()
        return entries

    liar.on_log = raise_there
    report = await verify(liar)
    assert named(report) == {("X1", None, stock["third"])}
    assert of_law(report, "P3").examined == 17


@law("X1")
async def test_a_delivery(liar: Liar, stock: Stock) -> None:
    """A page cannot be turned over damage, so the queue is not counted; others are."""

    def raise_there(queue: str, state: State, items: list[Snapshot]) -> list[Snapshot]:
        if any(item.message.id == stock["second"] for item in items):
            raise damage()
        return items

    liar.on_page = raise_there
    report = await verify(liar)
    assert named(report) == {("X1", "jobs", None)}
    for broken in ("S3", "Q2"):
        assert of_law(report, broken).skipped == "'jobs' could not be read completely"
    assert of_law(report, "Q2").examined == 3
    assert report.deliveries == 17 - 3  # second, third and the keyed one are behind the damage


@law("X1")
async def test_a_payload_in_the_dead_letters(liar: Liar, stock: Stock) -> None:
    def raise_there(queue: str, state: State, items: list[Snapshot]) -> list[Snapshot]:
        if any(item.payload == b"failed" for item in items):
            raise damage()
        return items

    liar.on_page = raise_there
    assert named(await verify(liar)) == {("X1", "jobs.dlq", stock["failed"])}


@law("X1")
async def test_a_message(liar: Liar, stock: Stock) -> None:
    def raise_there(found: MessageDeliveries) -> MessageDeliveries:
        if found.message.id == stock["second"]:
            raise damage()
        return found

    liar.on_message = raise_there
    assert named(await verify(liar)) == {("X1", None, stock["second"])}


@law("X1")
async def test_a_history(liar: Liar, stock: Stock) -> None:
    def raise_there(message_id: int, events: tuple[Event, ...]) -> tuple[Event, ...]:
        if message_id == stock["second"]:
            raise damage()
        return events

    liar.on_history = raise_there
    assert named(await verify(liar)) == {("X1", None, stock["second"])}


@law("X1")
async def test_the_numbers_of_a_queue(liar: Liar) -> None:
    def raise_there(queue: str, stats: QueueStats) -> QueueStats:
        if queue == "jobs.dlq":
            raise damage()
        return stats

    liar.on_stats = raise_there
    report = await verify(liar)
    assert named(report) == {("X1", "jobs", None)}
    assert of_law(report, "Q2").examined == 3


@law("X1")
async def test_the_list_of_queues(stock: Stock) -> None:
    class Listless(Liar):
        async def queues(self):
            raise damage()

    report = await verify(Listless(stock.store))
    assert named(report) == {("X1", None, None)}
    assert report.log_entries == 18
    assert (await verify(Listless(stock.store), queues=["jobs"])).ok


async def test_damage_in_one_place_does_not_hide_another(liar: Liar, stock: Stock) -> None:
    def raise_there(found: MessageDeliveries) -> MessageDeliveries:
        if found.message.id == stock["second"]:
            raise damage()
        return found

    liar.on_message = raise_there
    liar.on_stats = lambda queue, stats: (
        replace(stats, in_flight_by_consumer={}) if queue == "lanes" else stats
    )
    assert named(await verify(liar)) == {("X1", None, stock["second"]), ("Q2", "lanes", None)}


@law("X1")
async def test_a_sector_that_cannot_be_read(liar: Liar, stock: Stock) -> None:
    """The disk refuses one read, and the store answers otherwise."""

    def raise_there(found: MessageDeliveries) -> MessageDeliveries:
        if found.message.id == stock["second"]:
            raise StoreUnavailable("Input/output error.")
        return found

    liar.on_message = raise_there
    assert named(await verify(liar)) == {("X1", None, stock["second"])}


async def test_a_store_that_went_away_cannot_be_verified(stock: Stock) -> None:
    class Away(Liar):
        away = False

        async def log_end(self):
            if self.away:
                raise StoreUnavailable("Connection refused.")
            return await super().log_end()

        async def message(self, message_id):
            self.away = True
            raise StoreUnavailable("Connection refused.")

    with pytest.raises(StoreUnavailable):
        await verify(Away(stock.store))
    await stock.store.close()
    with pytest.raises(StoreClosed):
        await verify(stock.store)


# -- what is done to a real store ----------------------------------------------------------


def _engine(broker: Broker) -> KeyValueEngine:
    assert isinstance(broker.engine, KeyValueEngine)
    return broker.engine


async def remove_payload(broker: Broker, stock: Stock) -> None:
    _engine(broker)._core.stage.delete(payload_key(stock["second"]))


async def damage_payload(broker: Broker, stock: Stock) -> None:
    _engine(broker)._core.stage.put(payload_key(stock["second"]), b"secOnd")


async def remove_log(broker: Broker, stock: Stock) -> None:
    """Retention that does not look: the whole log is gone, and queues still need it."""
    log = _engine(broker)._core.log
    log.open_segment(log.next_offset, 0)
    log.remove_segment(0)


async def miscount(broker: Broker, stock: Stock) -> None:
    queue = _engine(broker)._core.tenant("default").queue("jobs")
    queue.done_count += 1
    queue.touch()


async def put_where_it_is_not(broker: Broker, stock: Stock) -> None:
    """A delivery that is done becomes available too, and is counted as both."""
    queue = _engine(broker)._core.tenant("default").queue("jobs")
    message = (await broker.message(stock["done"])).message
    claim_id = claim_id_of(queue.policy.bucket_size, message.priority, message.id)
    queue.make_available(Entry.waiting(message.id, claim_id, 1, encode_metadata(message)))


async def lose_a_delivery(broker: Broker, stock: Stock) -> None:
    """It leaves the shelf, and nothing says so."""
    queue = _engine(broker)._core.tenant("default").queue("jobs")
    message = (await broker.message(stock["second"])).message
    queue.shelf.remove(claim_id_of(queue.policy.bucket_size, message.priority, message.id))


async def forget_attempts(broker: Broker, stock: Stock) -> None:
    queue = _engine(broker)._core.tenant("default").queue("jobs")
    queue.stage.delete(queue.keys.attempts + stock["retried"].to_bytes(8, "big"))


#: What is done, and which laws that breaks, for which message.
SABOTAGE: Final[list[tuple[Callable[[Broker, Stock], Awaitable[None]], set[str], str | None]]] = [
    (remove_payload, {"X1"}, "second"),
    (damage_payload, {"X1"}, "second"),
    (remove_log, {"G1"}, "second"),
    (miscount, {"Q2"}, None),
    (put_where_it_is_not, {"S3"}, "done"),
    (lose_a_delivery, {"Q2"}, None),
    (forget_attempts, {"C1", "C2"}, "retried"),
]


@pytest.mark.parametrize(
    "sabotage, laws, name", SABOTAGE, ids=lambda item: getattr(item, "__name__", "")
)
async def test_a_store_on_disk_that_was_tampered_with(
    tmp_path: Path,
    clock: FakeClock,
    sabotage: Callable[[Broker, Stock], Awaitable[None]],
    laws: set[str],
    name: str | None,
) -> None:
    url = f"rocksdb://{tmp_path}/store"
    options = EngineOptions(clock=clock)
    async with Broker(await open_engine(url, options), BrokerOptions(engine=options)) as broker:
        stock = await stock_up(broker, clock)
        assert (await verify(broker)).ok
        await sabotage(broker, stock)
        await broker.publish("jobs", b"commits what was done")
    async with Broker(await open_engine(url, options), BrokerOptions(engine=options)) as broker:
        report = await verify(broker)
    found = named(report)
    message_id = None if name is None else stock[name]
    assert {(law, message_id) for law in laws} <= {(law, at) for law, _, at in found}
    assert not report.ok


@law("X1")
@pytest.mark.parametrize(
    "kind", ["payload", "log entry", "delayed", "done bucket", "failed bucket", "trail", "place"]
)
async def test_flipped_bits_stop_no_run(kind: str) -> None:
    """Whatever record is hit, the run ends with a report that names it."""
    adapter, clock, _ = await build()
    disk = adapter.survivor(len(adapter.journal))
    hit = max(key for key, value in adapter.contents().items() if value and kind_of(key) == kind)
    # In the middle of the value, where the metadata and the checksums are.
    bit = 4 * len(adapter.contents()[hit])
    engine = await open_on(disk, clock)
    disk.damage(lambda key: key == hit, bit)
    try:
        report = await verify(Broker(engine, BrokerOptions(engine=EngineOptions(clock=clock))))
    finally:
        await engine.close()
    assert not of_law(report, "X1").ok
    assert of_law(report, "L1").examined > 0
