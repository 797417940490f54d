"""The log as columns: records of equal and unequal elements, and what is wrong with them (X1)."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from itertools import repeat

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum, checksums, first_wrong
from penstock.model.message import NewMessage, Offset
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX, LogKeys
from penstock.testing.bulk import messages_of, payloads_of
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

TENANT = "t"
EQUAL = [NewMessage(b"%02d" % n) for n in range(20)]
UNEQUAL = [NewMessage(b"%02d" % n, {"n": "x" * n}) for n in range(20)]


class Store:
    """An engine, and the map below it."""

    def __init__(self, adapter: MemoryAdapter, engine: KeyValueEngine) -> None:
        self.adapter = adapter
        self.engine = engine

    def records(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return list(self.adapter.scan(prefix, prefix + b"\xff" * 9))

    async def read(self, start: int = 0, limit: int = 100) -> list[object]:
        columns = await self.engine.read_log_columns(TENANT, Offset(start), limit)
        return [messages_of(columns), await payloads_of(self.engine, TENANT, columns)]


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    adapter = MemoryAdapter()
    engine = await KeyValueEngine.open(adapter, EngineOptions(clock=FakeClock()))
    yield Store(adapter, engine)
    await engine.close()


@law("X1")
@pytest.mark.parametrize("messages", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
async def test_no_bit_of_a_record_can_change_unnoticed(
    store: Store, messages: list[NewMessage]
) -> None:
    await store.engine.publish(TENANT, "orders", messages)
    ((key, value),) = store.records(LogKeys(TENANT).prefix(1))
    sound = await store.read()
    for place in range(2, len(value), 7):
        for bit in (0, 7):
            broken = value[:place] + bytes((value[place] ^ 1 << bit,)) + value[place + 1 :]
            store.adapter.write({key: broken}, (), False)
            with pytest.raises(StoreCorrupt):
                await store.read()
    for broken in (
        value[:-1],
        value[:1],
        value + b"\x00",
        b"\x13" + value[1:],
        b"\x15" + value[1:],
    ):
        store.adapter.write({key: broken}, (), False)
        with pytest.raises(StoreCorrupt):
            await store.read()
    store.adapter.write({key: value}, (), False)
    assert await store.read() == sound


@law("X1")
async def test_a_payload_that_changed_or_is_missing(store: Store) -> None:
    await store.engine.publish(TENANT, "orders", EQUAL)
    for key, value in store.records(PAYLOAD_PREFIX)[::5]:
        for wrong, words in ((b"x" + value[1:], "checksum"), (None, "missing")):
            store.adapter.write({key: wrong}, (), False)
            with pytest.raises(StoreCorrupt, match=words):
                await store.read()
        store.adapter.write({key: value}, (), False)
    assert len(await store.read()) == 2


@pytest.mark.parametrize("messages", [EQUAL * 30, UNEQUAL * 30], ids=["equal", "unequal"])
async def test_a_large_record_from_everywhere(store: Store, messages: list[NewMessage]) -> None:
    await store.engine.publish(TENANT, "orders", messages)
    assert len(store.records(LogKeys(TENANT).prefix(1))) == 1
    page = await store.engine.read_log(TENANT, Offset(0), 1000, payloads=True)
    for start in (0, 1, 299, 598, 599, 600, 700):
        for limit in (1, 7, 300, 600):
            wanted = [e for e in page.entries if e.message.offset >= start][:limit]
            assert await store.read(start, limit) == [
                [entry.message for entry in wanted],
                [entry.payload for entry in wanted],
            ]


async def test_records_of_single_messages_are_read_together(store: Store) -> None:
    for message in (*EQUAL, *UNEQUAL[:3]):
        await store.engine.publish(TENANT, "orders", [message])
    assert len(store.records(LogKeys(TENANT).prefix(1))) == 23
    page = await store.engine.read_log(TENANT, Offset(0), 1000, payloads=True)
    assert await store.read() == [
        [entry.message for entry in page.entries],
        [entry.payload for entry in page.entries],
    ]


async def test_uncommitted_entries_are_not_there_yet(store: Store) -> None:
    await store.engine.publish(TENANT, "orders", EQUAL)
    columns = await store.engine.read_log_columns(TENANT, Offset(0), 20)
    assert (len(columns), columns.next_offset) == (20, 20)
    columns = await store.engine.read_log_columns(TENANT, Offset(20), 20)
    assert (len(columns), columns.next_offset) == (0, 20)
    columns = await store.engine.read_log_columns("another", Offset(3), 20)
    assert (len(columns), columns.next_offset) == (0, 3)


def test_many_checksums_are_those_of_each() -> None:
    pieces = [b"", b"a", b"bc" * 100]
    assert checksums(pieces, [0, 1, 2]) == [checksum(p, n) for n, p in enumerate(pieces)]
    assert checksums(map(memoryview, pieces), [0, 0, 0]) == [checksum(p) for p in pieces]


@pytest.mark.parametrize("bit", [0, 8, 16, 24, 31])
def test_the_first_piece_with_a_wrong_checksum(bit: int) -> None:
    pieces = [b"%d" % n for n in range(5)]
    sums = checksums(pieces, range(5))
    view = memoryview(array("q", sums))
    assert first_wrong(pieces, range(5), sums) is first_wrong(pieces, range(5), view) is None
    for wrong in (4, 2):
        sums[wrong] = view[wrong] = sums[wrong] ^ 1 << bit
        assert first_wrong(pieces, range(5), sums) == wrong
        assert first_wrong(pieces, range(5), view) == wrong
    assert first_wrong([], repeat(0), []) is None


async def test_elements_of_one_length_that_differ_only_in_the_middle(store: Store) -> None:
    headers = ["aa", "ab", "ba", "aa"]
    await store.engine.publish(TENANT, "t", [NewMessage(b"", {"h": text}) for text in headers])
    columns = await store.engine.read_log_columns(TENANT, Offset(0), 10)
    assert columns.headers == tuple({"h": text} for text in headers)


@law("L2")
@pytest.mark.parametrize("batches", [[1_000], [300, 1, 300, 399], [10] * 100])
@pytest.mark.parametrize("equal", [True, False])
async def test_large_metadata_is_read_a_part_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, batches: list[int], equal: bool
) -> None:
    monkeypatch.setattr("penstock.storage.keyvalue.columns._MOST_BYTES", 50_000)
    number = 0
    for size in batches:
        messages = []
        for _ in range(size):
            number += 1
            text = "x" * (500 if equal else number % 1_000)
            messages.append(NewMessage(b"", {"n": number, "text": text}))
        await store.engine.publish(TENANT, "orders", messages)
    wanted = (await store.engine.read_log(TENANT, Offset(0), 2_000)).entries
    for limit in (70, 1_000, 2_000):
        found: list[object] = []
        position = Offset(0)
        while position < number:
            columns = await store.engine.read_log_columns(TENANT, position, limit)
            assert len(columns) <= min(limit, 256 + 200)
            assert columns.next_offset > position
            found += messages_of(columns)
            position = columns.next_offset
        assert found == [entry.message for entry in wanted]
