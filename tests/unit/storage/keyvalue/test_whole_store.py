"""Every record of a store that has seen a bit of everything is one that docs/formats.md has.

Keys are taken apart here by the page alone, not by ``keys``; values go through whatever
reads them. Nothing may be unknown, and nothing may be left over.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from penstock.filters import parse
from penstock.model.checksum import checksum
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Reject,
    Release,
    ReplaySource,
    Settlement,
)
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import Ordering, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.encoding import unpack_var_u64, unseal, untangle
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.metadata import decode_metadata
from penstock.storage.keyvalue.open_keys import OpenKey
from penstock.storage.keyvalue.records import (
    decode_attempts,
    decode_spec,
    read_available,
    read_in_flight,
    read_log_value,
    read_settled,
)
from penstock.storage.keyvalue.topics import decode_topic
from penstock.storage.keyvalue.trail import Trail
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

PAGE = Path(__file__).resolve().parents[4] / "docs" / "formats.md"
TENANTS = ("default", "other")
TOPICS = ("orders", "mail", "late")
#: What follows the kind: names end with a terminator (TB) or with the key (REST).
TB, REST, U64, U8 = "TB", "rest", "u64", "u8"
Part: TypeAlias = bytes | int


# -- keys, by the page ---------------------------------------------------------------------

SHAPES: dict[str, tuple[str, ...]] = {
    "0101": (U64,),
    "0102": (TB, U64),
    "0103": (TB, U64),
    "0104": (TB, U64),
    "0105": (TB, U64),
    "0106": (REST,),
    "010700": (),
    "010701": (TB,),
    "010702": (TB, U64),
    "010703": (TB, U64, U64),
    "010704": (TB, U64),
    "010705": (TB, U64, U64),
    "010706": (TB, U64),
    "010707": (TB, U64),
    "010708": (TB, U64),
    "010709": (TB, U8, U64, U64),
    "01070a": (TB, REST),
    "01070b": (TB, TB, U64),
    "01070c": (TB, REST),
    "01070d": (TB, U64, REST),
    "01070e": (TB, REST),
    "01070f": (REST,),
    "010710": (TB, REST),
    "010711": (U64, U64),
    "010712": (TB, REST),
    "010713": (U64,),
    "010714": (),
    "010715": (U64,),
    "010716": (TB, REST),
    "010717": (TB, REST),
    "010718": (),
    "01071a": (TB, REST),
}


def _take_apart(key: bytes) -> tuple[str, list[Part]]:
    if key.startswith(b"\x03\x01"):
        return _take_log_key_apart(key)
    length = 3 if key.startswith(b"\x01\x07") else 2
    kind = key[:length].hex()
    position = length
    parts: list[Part] = []
    for shape in SHAPES[kind]:
        if shape == TB:
            part, position = untangle(key, position)
            parts.append(part)
        elif shape == REST:
            parts.append(key[position:])
            position = len(key)
        else:
            size = 8 if shape == U64 else 1
            assert position + size <= len(key)
            parts.append(int.from_bytes(key[position : position + size], "big"))
            position += size
    assert position == len(key), f"{key.hex()} is longer than its kind"
    return kind, parts


def _take_log_key_apart(key: bytes) -> tuple[str, list[Part]]:
    segment, kind = int.from_bytes(key[2:6], "big"), key[6]
    if segment == 0:
        assert (kind, len(key)) in {(0x20, 7), (0x30, 11)}
        return f"0301..{kind:02x}", [int.from_bytes(key[7:], "big")]
    if kind == 0x10:
        user_key, position = untangle(key, 7)
        relative, end = unpack_var_u64(key, position)
        assert end == len(key)
        return "0301..10", [segment, user_key, relative]
    assert kind == 0x40
    return "0301..40", [segment, key[7:]]


# -- values --------------------------------------------------------------------------------


def _bucket(value: bytes) -> None:
    waiting, position = read_available(value)
    held, end = read_in_flight(value, position)
    assert end == len(value)
    assert waiting or held, "an empty bucket has no record"
    for message_id, _, _, metadata in waiting:
        decode_metadata(message_id, metadata)
    for message_id, *_, metadata in held:
        decode_metadata(message_id, metadata)


def _settled(value: bytes) -> None:
    rows = read_settled(value)
    assert rows
    for message_id, _, _, _, metadata in rows:
        decode_metadata(message_id, metadata)


def _delayed(value: bytes) -> None:
    ((message_id, _, _, metadata),), end = read_available(value)
    assert end == len(value), "one, and nothing behind it"
    decode_metadata(message_id, metadata)


def _log_entry(value: bytes) -> None:
    offsets = [decode_metadata(*pair).offset for pair in read_log_value(value)]
    assert offsets == sorted(set(offsets))
    assert offsets


def _size(size: int) -> Callable[[bytes], None]:
    def check(value: bytes) -> None:
        assert len(value) == size

    return check


def _sealed(size: int) -> Callable[[bytes], None]:
    """At least that long, without the checksum."""

    def check(value: bytes) -> None:
        assert len(unseal(value, "test")) >= size

    return check


def _sealed_size(size: int) -> Callable[[bytes], None]:
    """Exactly that long, without the checksum."""

    def check(value: bytes) -> None:
        assert len(unseal(value, "test")) == size

    return check


def _anything(value: bytes) -> None:
    assert isinstance(value, bytes)


VALUES: dict[str, Callable[[bytes], object]] = {
    "0101": _anything,
    "0102": _bucket,
    "0103": _settled,
    "0104": _settled,
    "0105": decode_attempts,
    "0106": decode_spec,
    "010700": _sealed_size(4),
    "010701": _sealed(8 * 13 + 1),
    "010702": _sealed(2 + 8 * 4 + 2),
    "010703": _delayed,
    "010704": _sealed_size(8),
    "010705": _size(0),
    "010706": Trail.decode,
    "010707": _sealed(0),
    "010708": lambda value: _settled(unseal(value, "test")),
    "010709": _size(0),
    "01070a": _sealed(17),
    "01070b": _sealed_size(8),
    "01070c": _sealed(8),
    "01070d": _size(0),
    "01070e": decode_topic,
    "01070f": _sealed_size(16),
    "010710": _sealed(24),
    "010711": _sealed(2),
    "010712": OpenKey.decode,
    "010713": _sealed_size(8),
    "010714": _sealed_size(8),
    "010715": _sealed_size(8),
    "010716": _sealed(0),
    "010717": _sealed(29),
    "010718": _sealed(32),
    "0301..10": _log_entry,
    "0301..20": _size(16),
    "0301..30": _size(16),
    "0301..40": _size(0),
}


# -- a bit of everything -------------------------------------------------------------------


class Workload:
    """Random verbs on a few queues of two tenants."""

    def __init__(self, engine: KeyValueEngine, clock: FakeClock, seed: int) -> None:
        self.engine = engine
        self.clock = clock
        self.random = random.Random(seed)
        self.deliveries: list[tuple[str, Delivery]] = []

    async def start(self) -> None:
        for tenant in TENANTS:
            for name, ordering in (("orders", Ordering.NONE), ("mail", Ordering.PARTITION)):
                policy = QueuePolicy(
                    filter=f"topic = '{name}'",
                    ordering=ordering,
                    max_attempts=2,
                    bucket_size=self.random.randrange(3),
                    done_retention_s=600,
                )
                await self.engine.put_queue(tenant, name, policy, Start())
            await self.engine.put_topic(tenant, "late", TopicPolicy(default_ttl_ms=30_000))

    def message(self) -> NewMessage:
        rnd, now = self.random, self.clock.now()
        return NewMessage(
            rnd.randbytes(rnd.randrange(20)),
            headers={"n": rnd.randrange(9), "s": "x", "f": 0.5, "b": True},
            id=rnd.choice([None, None, f"id{rnd.randrange(50)}"]),
            key=rnd.choice([None, None, f"k{rnd.randrange(3)}"]),
            partition_key=rnd.choice([None, "a", "b\x00", "\x01"]),
            priority=rnd.randrange(10),
            content_type=rnd.choice([None, "text/plain"]),
            deliver_at=rnd.choice([None, now + rnd.randrange(60_000)]),
            expires_at=rnd.choice([None, None, now + rnd.randrange(90_000)]),
        )

    async def step(self) -> None:
        rnd, engine = self.random, self.engine
        tenant = rnd.choice(TENANTS)
        queue = rnd.choice(["orders", "mail", "late", "orders.dlq", "mail.dlq", "all"])
        names = {info.name for info in await engine.list_queues(tenant)}
        known = queue.removesuffix(".dlq") in names
        match rnd.choice(
            ["publish"] * 4 + ["claim"] * 5 + ["settle"] * 5 + ["time", "bulk", "queue"]
        ):
            case "publish":
                batch = [self.message() for _ in range(rnd.randrange(1, 6))]
                batch_id = rnd.choice([None, None, f"b{rnd.randrange(50)}"])
                await engine.publish(tenant, rnd.choice(TOPICS), batch, batch_id=batch_id)
            case "claim" if known:
                consumer = rnd.choice(["w1", "w2"])
                claimed = await engine.claim(tenant, queue, consumer, 5, rnd.choice([None, 1000]))
                self.deliveries += [(tenant, delivery) for delivery in claimed]
            case "settle" if self.deliveries:
                await self.settle()
            case "time":
                self.clock.advance(rnd.choice([1, 1000, 20_000]))
                await engine.sweep()
            case "bulk" if known:
                await self.bulk(tenant, queue)
            case "queue":
                await self.change_queue(tenant, names)

    async def settle(self) -> None:
        rnd = self.random
        tenant, delivery = self.deliveries.pop(rnd.randrange(len(self.deliveries)))
        receipt = delivery.receipt
        choices: list[Settlement] = [
            Ack(receipt, b"result"),
            Ack(receipt),
            Nack(receipt, "error", rnd.choice([None, 0, 5000])),
            Reject(receipt, "never"),
            Release(receipt),
            Extend(receipt, 2000),
        ]
        names = {info.name for info in await self.engine.list_queues(tenant)}
        if delivery.queue.removesuffix(".dlq") in names:
            await self.engine.settle(tenant, delivery.queue, [rnd.choice(choices)])

    async def bulk(self, tenant: str, queue: str) -> None:
        rnd = self.random
        if rnd.random() < 0.7:
            sources = [ReplaySource.FAILED, ReplaySource.DONE]
            if not queue.endswith(".dlq"):
                sources.append(ReplaySource.LOG)
            replay_id = rnd.choice([None, "r1", "r2"])
            await self.engine.replay(
                tenant,
                queue,
                rnd.choice(sources),
                None,
                3,
                rate=rnd.choice([None, 1]),
                replay_id=replay_id,
            )
        else:
            state = rnd.choice([State.AVAILABLE, State.DELAYED, State.DONE, State.EXPIRED])
            await self.engine.purge(tenant, queue, state, parse("n > 6"), 2)

    async def change_queue(self, tenant: str, names: set[str]) -> None:
        if "all" in names and self.random.random() < 0.3:
            await self.engine.delete_queue(tenant, "all")
        else:
            await self.engine.put_queue(tenant, "all", QueuePolicy(), Start(Start.EARLIEST))
            await self.engine.route(tenant, "all", 20)
        if await self.engine.log_end(tenant) > 3:
            await self.engine.archived(tenant, Offset(3), await self.engine.identity(tenant))
        await self.engine.put_document("kind\x01", f"{tenant}/{len(names)}", b"x" * len(names))


async def _run(seed: int, steps: int) -> dict[bytes, bytes]:
    adapter, clock = MemoryAdapter(), FakeClock()
    options = EngineOptions(clock=clock, jitter=lambda ceiling: ceiling)
    engine = await KeyValueEngine.open(adapter, options)
    workload = Workload(engine, clock, seed)
    await workload.start()
    for number in range(steps):
        await workload.step()
        if number % 100 == 99:
            await engine.close()
            engine = workload.engine = await KeyValueEngine.open(adapter, options)
    await engine.close()
    return dict(adapter.scan(b"", b"\xff"))


@pytest.mark.parametrize("seed", range(6))
async def test_every_record_is_one_that_the_page_has(seed: int) -> None:
    store = await _run(seed, 300)
    seen: set[str] = set()
    for key, value in store.items():
        kind, parts = _take_apart(key)
        is_dead_letter = bool(parts) and isinstance(parts[0], bytes) and parts[0].endswith(b".dlq")
        if kind == "010703":
            (_settled if is_dead_letter else _delayed)(unseal(value, "test"))
        else:
            VALUES[kind](value)
        seen.add(kind)
    # Most kinds have to be there, or the workload has gone soft.
    assert len(seen) >= len(VALUES) - 4, sorted(VALUES.keys() - seen)


async def test_the_workload_meets_every_kind_of_record() -> None:
    seen: set[str] = set()
    for seed in range(6):
        seen |= {_take_apart(key)[0] for key in await _run(seed, 300)}
    assert seen == VALUES.keys()


@law("P3")
async def test_payloads_and_log_entries_belong_together() -> None:
    """One payload an entry, under its offset, with the checksum that the entry says (P3)."""
    store = await _run(7, 300)
    payloads = {key[2:]: value for key, value in store.items() if key.startswith(b"\x01\x01")}
    entries = [
        decode_metadata(*pair)
        for key, value in store.items()
        if _take_apart(key)[0] == "0301..10"
        for pair in read_log_value(value)
    ]
    assert entries
    assert sorted(payloads) == sorted(entry.offset.to_bytes(8, "big") for entry in entries)
    for entry in entries:
        payload = payloads[entry.offset.to_bytes(8, "big")]
        assert (len(payload), checksum(payload)) == (entry.size, entry.checksum)


def test_the_page_lists_every_kind() -> None:
    page = PAGE.read_text()
    listed = re.findall(r"^\| ([0-9a-f]{2}) \| \[", page, re.MULTILINE)
    # A store in memory, which the workload runs on, has no links of commits and writes no pieces,
    # no topic of it compares ids within partitions, no delivery moves to the back, it has no
    # record of its writer, it is no copy, and it removes ranges at once: test_chain, test_pieces,
    # test_dedup, test_positions, test_adapter, test_copying, test_removals.
    for kind in ("19", "1b", "1c", "1f", "20", "21", "22"):
        listed.remove(kind)
    assert [f"0107{kind}" for kind in listed] == [kind for kind in SHAPES if kind[:4] == "0107"]
    for kind in ("01 01", "01 02", "01 03", "01 04", "01 05", "01 06"):
        assert re.search(rf"^{kind} ", page, re.MULTILINE)
