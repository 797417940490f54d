"""A store written by hand: what docs/formats.md shows is what the engine writes and reads.

``STORE`` is put together here from hexadecimal, field by field, without any codec of ours.
One test lets the engine write the same store and compares byte by byte; one opens it; one
looks every record up in the page.
"""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from penstock.errors import StoreCorrupt, StoreTooNew
from penstock.model.delivery import Ack, Receipt, Reject, Release, ReplaySource, Verdict
from penstock.model.message import MessageId, NewMessage, Offset
from penstock.model.queue import Ordering, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

PAGE = Path(__file__).resolve().parents[4] / "docs" / "formats.md"

#: Times of the story, little-endian: 1,700,000,000,000 ms; one second later; that + 10, + 20 ms.
T0, T1, T1_10, T1_20 = (
    "0068e5cf8b010000",
    "e86be5cf8b010000",
    "f26be5cf8b010000",
    "fc6be5cf8b010000",
)
#: The ends of their leases of 30 s, and of the topic's ttl of one minute.
T0_LEASE, T1_LEASE, T1_TTL = "30dde5cf8b010000", "18e1e5cf8b010000", "4856e6cf8b010000"
NEVER = "ffffffffffffffff"
#: TerminatedBytes of tenant/queue.
ORDERS = "64656661756c742f6f7264657273 00"
ORDERS_DLQ = "64656661756c742f6f72646572732e646c71 00"
MAIL = "64656661756c742f6d61696c 00"
LATE = "64656661756c742f6c617465 00"
#: Exponent 2, priority 4: the bucket of the messages 0 to 99.
BUCKET = "26f05b59d3b20000"
LOG = b"opendata-queue/penstock/messages/metadata/default".hex()


#: What the store's randomness gives: first its identity, then its epoch.
STORE_ID, EPOCH = "000102030405060708090a0b0c0d0e0f", "101112131415161718191a1b1c1d1e1f"
#: Receipts of the delivery in flight, and of the one that is done.
IN_FLIGHT = "0-26f05b59d3b20001-2-1-2166fe087c699c2"
DONE = "0-26f05b59d3b20003-4-1-914ef8e493963cd"


def _raw(text: str) -> bytes:
    return bytes.fromhex(text)


def _xxh3(data: bytes, seed: int = 0) -> int:
    return xxh3_64_intdigest(data, seed) & 0xFFFF_FFFF


def _sealed(text: str) -> str:
    return f"{text} {zlib.crc32(_raw(text)).to_bytes(4, 'little').hex()}"


def _sized(text: str) -> str:
    """VarBytes."""
    return f"{struct.pack('<I', len(_raw(text))).hex()} {text} "


def _id(number: int) -> str:
    return f"{number:02x}00000000000000"


def _claim(number: int, exponent: int = 2) -> str:
    """A claim id of priority 4, as it stands in values."""
    return f"{number:02x}00b2d3595bf0{exponent}6"


def _metadata(
    offset: int,
    payload: bytes,
    topic: str,
    times: str,
    flags: str = "00",
    keys: str = "",
    message_id: int | None = None,
) -> str:
    """``times`` are published_at, deliver_at and expires_at."""
    checksum = _xxh3(payload).to_bytes(4, "little").hex()
    name = f"{len(topic):02x}00 {topic.encode().hex()}"
    head = f"01 {_id(offset)} {times} 04 {len(payload):02x}000000 {checksum} {flags}"
    text = f"{head} {name} {keys} 0000"
    # Begun with the message id, which is the offset unless this replaces another.
    own = _xxh3(_raw(text), offset if message_id is None else message_id)
    return f"{text} {own.to_bytes(4, 'little').hex()}"


def _field(name: str, value: int) -> str:
    """One later field of a specification."""
    number = struct.pack("<q", value).hex()
    return f"{len(name):02x}00 {name.encode().hex()} 08000000 {number} "


def _spec(topic: str, number: int, created_at: int, bucket_size: int = 2, ordered: int = 0) -> str:
    text = f"topic = '{topic}'".encode()
    head = _sized("01" + text.hex()) + f"0500 100e0000 {bucket_size:02x} 0000"
    listed = (
        f"backoff_base_ms=1000,backoff_max_ms=300000,created_at={created_at},"
        "failed_retention_s=1209600,filter_version=1,max_lease_ms=43200000,min_lease_ms=100,"
        f"ordered={ordered},partition_concurrency=1,paused=0,queue_number={number},"
        "visibility_timeout_ms=30000"
    )
    fields = [
        _field("backoff_base_ms", 1_000),
        _field("backoff_max_ms", 300_000),
        _field("checksum", zlib.crc32(_raw(head) + listed.encode())),
        _field("created_at", created_at),
        _field("failed_retention_s", 1_209_600),
        _field("filter_version", 1),
        _field("max_lease_ms", 43_200_000),
        _field("min_lease_ms", 100),
        _field("ordered", ordered),
        _field("partition_concurrency", 1),
        _field("paused", 0),
        _field("queue_number", number),
        _field("visibility_timeout_ms", 30_000),
    ]
    return f"{head} {len(fields):02x}00 {''.join(fields)}"


def _state(cursor: str, *numbers: int) -> str:
    """delayed, available, in flight, done, expired, grants, acks, nacks, failures, epoch, …"""
    assert len(numbers) == 12
    return _sealed(" ".join([cursor, *map(_id, numbers), "00"]))


PLAIN = f"{T0} {T0} {NEVER}"
#: The metadata of the messages 0 to 3.
M = [
    _metadata(number, payload, "orders", PLAIN)
    for number, payload in enumerate([b"w", b"f", b"x", b"d"])
]
M4 = _metadata(4, b"1", "mail", f"{T1} {T1} {T1_TTL}", "01", "0100 70")
M5 = _metadata(5, b"2", "mail", f"{T1} {T1} {T1_TTL}", "03", "0100 70 0100 6b")
M6 = _metadata(6, b"3", "mail", f"{T1} {T1} {T1_TTL}", "03", "0100 70 0100 6b", message_id=5)
M7 = _metadata(7, b"l", "late", f"{T1} {T1_10} {T1_20}")

#: After one second: message 0 waits (it was released), 1 is in flight, 2 failed, 3 is done.
STORE: dict[str, str] = {
    "0101 0000000000000000": "77",
    "0101 0000000000000001": "66",
    "0101 0000000000000002": "78",
    "0101 0000000000000003": "64",
    f"0102 {ORDERS} {BUCKET}": (
        f"0100 {_id(0)} {_claim(0)} 0100 {_sized(M[0])}"
        f"0100 {_id(1)} {_claim(1)} {T0} {T0_LEASE} 0100 {_sized(M[1])}"
    ),
    f"0103 {ORDERS} {BUCKET}": f"0100 {_id(3)} {_claim(3)} {T1} 0100 {_sized(M[3])}",
    f"0104 {ORDERS} {BUCKET}": f"0100 {_id(2)} {_claim(2)} {T1} 0100 {_sized(M[2])}",
    f"0105 {ORDERS} 0000000000000000": f"0100 {T0} 0200 7731",
    f"0105 {ORDERS} 0000000000000001": f"0100 {T0} 0200 7731",
    f"0105 {ORDERS} 0000000000000002": f"0100 {T0} 0200 7731",
    f"0105 {ORDERS} 0000000000000003": f"0100 {T0} 0200 7731",
    f"0106 {ORDERS[:-3]}": _spec("orders", 0, 1_700_000_000_000),
    "010700": _sealed("01000000"),
    f"010701 {ORDERS}": _state(NEVER, 0, 1, 1, 1, 0, 4, 1, 0, 1, 0, 4, 0),
    f"010701 {ORDERS_DLQ}": _state(NEVER, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    f"010702 {ORDERS} {BUCKET}": _sealed(f"0100 {_claim(1)} {_id(2)} {_id(0)} {_id(0)} 0200 7731"),
    f"010706 {ORDERS} 0000000000000000": _sealed(f"0100 {_id(0)} 0100 {T1} 05 01 00"),
    f"010706 {ORDERS} 0000000000000002": _sealed(f"0000 {_id(0)} 0100 {T1} 07 04 01 0300 626164"),
    f"010707 {ORDERS} 0000000000000003": _sealed("6f6b"),
    f"010709 {ORDERS} 01 0000000001b05515 {BUCKET}": "",
    f"010709 {ORDERS} 03 0000000001b05515 {BUCKET}": "",
    "01070f 64656661756c74": _sealed(f"{_id(4)} {NEVER}"),
    "010714": _sealed(_id(2)),
    "010718": _sealed(f"{STORE_ID} {EPOCH}"),
    "0301 00000000 20": "0000000000000000 0000000000001000",
    "0301 00000000 30 00000001": "0000000000000000 0000018bcfe56800",
    f"0301 00000001 10 {LOG} 00 00": f"0100 {_id(0)} {_sized(M[0])}",
    f"0301 00000001 10 {LOG} 00 01": f"0100 {_id(1)} {_sized(M[1])}",
    f"0301 00000001 10 {LOG} 00 02": f"0100 {_id(2)} {_sized(M[2])}",
    f"0301 00000001 10 {LOG} 00 03": f"0100 {_id(3)} {_sized(M[3])}",
    f"0301 00000001 40 {LOG}": "",
}

#: At the same time, with an ordered queue, a key that was replaced, and a delayed message.
MORE: dict[str, str] = {
    f"0102 {MAIL} 06f05b59d3b20004": (
        f"0000 0100 {_id(4)} {_claim(4, 0)} {T1} {T1_LEASE} 0100 {_sized(M4)}"
    ),
    f"0102 {MAIL} 06f05b59d3b20005": f"0100 {_id(5)} {_claim(5, 0)} 0000 {_sized(M6)} 0000",
    f"0106 {MAIL[:-3]}": _spec("mail", 2, 1_700_000_001_000, bucket_size=0, ordered=1),
    f"010702 {MAIL} 06f05b59d3b20004": _sealed(
        f"0100 {_claim(4, 0)} {_id(1)} {_id(1)} {_id(0)} 0200 7731"
    ),
    f"010703 {LATE} 0000018bcfe56bf2 26f05b59d3b20007": _sealed(
        f"0100 {_id(7)} {_claim(7)} 0000 {_sized(M7)}"
    ),
    f"010704 {LATE} 26f05b59d3b20007": _sealed(T1_10),
    f"010705 {LATE} 0000018bcfe56bfc 26f05b59d3b20007": "",
    f"01070a {MAIL} 70": _sealed(f"{_id(1)} {_id(2)} 01 0200 7731"),
    f"01070b {MAIL} 7000 0000000000000004": _sealed(_claim(4, 0)),
    f"01070b {MAIL} 7000 0000000000000005": _sealed(_claim(5, 0)),
    f"01070c {MAIL} 7731": _sealed(T1_LEASE),
    "01070e 64656661756c7400 6d61696c": _sealed(
        "84"
        "ae 64656661756c745f74746c5f6d73 cdea60"
        "af 64656475705f77696e646f775f6d73 ce0036ee80"
        "ab 736368656d615f74797065 c0"
        "a6 736368656d61 c0"
    ),
    f"010710 {MAIL} 696431": _sealed(f"{_id(5)} {_id(5)} {T1}"),
    "010711 0000000001b05551 0000000000000005": _sealed(f"0100 {_sized(f'010710 {MAIL} 696431')}"),
    f"010712 {MAIL} 6b": _sealed(f"{_id(5)} 04 0100 0400 6d61696c"),
    "010713 0000000000000005": _sealed(_id(6)),
    "010715 0000000000000006": _sealed(_id(5)),
    "010716 6b657973 00 6b31": _sealed("7b7d"),
    f"0301 00000001 10 {LOG} 00 04": f"0200 {_id(4)} {_sized(M4)} {_id(5)} {_sized(M5)}",
    f"0301 00000001 10 {LOG} 00 06": f"0100 {_id(5)} {_sized(M6)}",
}

#: Twenty milliseconds later: the failed one was replayed, the delayed one has expired.
LATER: dict[str, str] = {
    f"010706 {ORDERS} 0000000000000002": _sealed(
        f"0000 {_id(4)} 0200 {T1} 07 04 01 0300 626164 {T1_20} 09 01 00"
    ),
    f"010708 {LATE} {BUCKET}": _sealed(f"0100 {_id(7)} {_claim(7)} {T1_20} 0000 {_sized(M7)}"),
    f"010709 {LATE} 02 0000000001b05515 {BUCKET}": "",
    f"01070d {ORDERS} 0000000000000002 7231": "",
}


def _pairs(records: dict[str, str]) -> dict[bytes, bytes]:
    return {_raw(key): _raw(value) for key, value in records.items()}


def _dump(adapter: MemoryAdapter) -> dict[bytes, bytes]:
    return dict(adapter.scan(b"", b"\xff"))


async def _open(adapter: MemoryAdapter, clock: FakeClock) -> KeyValueEngine:
    given = iter([STORE_ID, EPOCH])
    options = EngineOptions(clock=clock, random=lambda _: bytes.fromhex(next(given)))
    return await KeyValueEngine.open(adapter, options)


async def _write_store(adapter: MemoryAdapter, clock: FakeClock) -> KeyValueEngine:
    engine = await _open(adapter, clock)
    for payload in (b"w", b"f", b"x", b"d"):
        await engine.publish("default", "orders", [NewMessage(payload)])
    deliveries = await engine.claim("default", "orders", "w1", 4, None)
    clock.advance(1000)
    receipts = [delivery.receipt for delivery in deliveries]
    await engine.settle(
        "default",
        "orders",
        [Release(receipts[0]), Reject(receipts[2], "bad"), Ack(receipts[3], b"ok")],
    )
    return engine


async def _write_more(engine: KeyValueEngine, clock: FakeClock) -> None:
    policy = QueuePolicy(filter="topic = 'mail'", ordering=Ordering.PARTITION, bucket_size=0)
    await engine.put_topic("default", "mail", TopicPolicy(default_ttl_ms=60_000))
    await engine.put_queue("default", "mail", policy, Start())
    first = NewMessage(b"1", partition_key="p")
    keyed = NewMessage(b"2", partition_key="p", id="id1", key="k")
    await engine.publish("default", "mail", [first, keyed])
    await engine.publish("default", "mail", [NewMessage(b"3", key="k")])
    now = clock.now()
    late = NewMessage(b"l", deliver_at=now + 10, expires_at=now + 20)
    await engine.publish("default", "late", [late], batch_id="b1")
    await engine.claim("default", "mail", "w1", 1, None)
    await engine.put_document("keys", "k1", b"{}")


async def test_the_engine_writes_the_golden_store() -> None:
    adapter, clock = MemoryAdapter(), FakeClock()
    engine = await _write_store(adapter, clock)
    assert _dump(adapter) == _pairs(STORE)
    await engine.close()


async def test_the_engine_writes_the_other_golden_records() -> None:
    adapter, clock = MemoryAdapter(), FakeClock()
    engine = await _write_store(adapter, clock)
    await _write_more(engine, clock)
    written = _dump(adapter)
    assert {key: written.get(key) for key in _pairs(MORE)} == _pairs(MORE)
    clock.advance(20)
    await engine.replay("default", "orders", ReplaySource.FAILED, None, 10, replay_id="r1")
    await engine.sweep()
    written = _dump(adapter)
    assert {key: written.get(key) for key in _pairs(LATER)} == _pairs(LATER)
    assert written[_raw("010714")] == _raw(_sealed(_id(6)))
    await engine.close()


@pytest.mark.parametrize("records", [STORE, MORE, LATER], ids=["store", "more", "later"])
def test_the_page_shows_every_golden_record(records: dict[str, str]) -> None:
    page = re.sub(r"\s", "", PAGE.read_text())
    # The page shows one record of a kind; what differs by a message id only is shown once.
    shown = {key: value for key, value in records.items() if not _is_repeated(key)}
    missing = [
        key
        for key, value in shown.items()
        if _raw(key).hex() not in page or _raw(value).hex() not in page
    ]
    assert missing == []


def _is_repeated(key: str) -> bool:
    return any(
        key.startswith(start) and not key.endswith(shown)
        for start, shown in (("0101", "00"), ("0105", "00"), ("0301 00000001 10", "00"))
    )


@pytest.fixture
def store() -> MemoryAdapter:
    adapter = MemoryAdapter()
    adapter.write(_pairs(STORE), [], sync=True)
    return adapter


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_001_000)


async def test_opening_the_golden_store_changes_nothing(
    store: MemoryAdapter, clock: FakeClock
) -> None:
    engine = await _open(store, clock)
    await engine.close()
    assert _dump(store) == _pairs(STORE)


async def test_the_golden_store_can_be_read(store: MemoryAdapter, clock: FakeClock) -> None:
    engine = await _open(store, clock)
    stats = await engine.stats("default", "orders")
    counts = (stats.available, stats.in_flight, stats.failed, stats.done, stats.delayed)
    assert counts == (1, 1, 1, 1, 0)
    assert (stats.grants, stats.acks, stats.failures) == (4, 1, 1)
    assert stats.in_flight_by_consumer == {"w1": 1}
    page = await engine.read_log("default", Offset(0), 10, payloads=True)
    assert [entry.payload for entry in page.entries] == [b"w", b"f", b"x", b"d"]
    for number, state in enumerate([State.AVAILABLE, State.IN_FLIGHT, State.FAILED, State.DONE]):
        found = await engine.message("default", MessageId(number))
        assert [snapshot.state for snapshot in found.deliveries] == [state]
    result = await engine.result("default", "orders", MessageId(3))
    assert result is not None
    assert (result.result, result.at) == (b"ok", 1_700_000_001_000)
    await engine.close()


async def test_claims_on_the_golden_store(store: MemoryAdapter, clock: FakeClock) -> None:
    engine = await _open(store, clock)
    (waiting,) = await engine.claim("default", "orders", "w2", 10, None)
    assert (waiting.message.id, waiting.payload, waiting.attempts) == (0, b"w", 2)
    (dead,) = await engine.claim("default", "orders.dlq", "w2", 10, None)
    assert (dead.message.id, dead.payload, dead.attempts) == (2, b"x", 2)
    in_flight, done = Receipt(IN_FLIGHT), Receipt(DONE)
    reply = await engine.settle(
        "default", "orders", [Ack(in_flight), Ack(done), Ack(waiting.receipt)]
    )
    assert [outcome.verdict for outcome in reply.outcomes] == [Verdict.OK] * 3
    clock.advance(60_000)
    assert await engine.claim("default", "orders", "w2", 10, None) == []
    await engine.close()


@law("C5")
async def test_a_lease_of_the_golden_store_lapses(store: MemoryAdapter, clock: FakeClock) -> None:
    engine = await _open(store, clock)
    clock.advance(28_999)
    assert [d.message.id for d in await engine.claim("default", "orders", "w2", 10, 100)] == [0]
    clock.advance(1)
    assert [d.message.id for d in await engine.claim("default", "orders", "w2", 10, 100)] == [1]
    await engine.close()


async def test_new_messages_go_on_behind_the_golden_ones(
    store: MemoryAdapter, clock: FakeClock
) -> None:
    engine = await _open(store, clock)
    reply = await engine.publish("default", "orders", [NewMessage(b"n")])
    assert reply.messages[0].id == 4096
    claimed = await engine.claim("default", "orders", "w2", 10, None)
    assert [delivery.message.id for delivery in claimed] == [0, 4096]
    await engine.close()


async def test_a_store_of_a_newer_format_is_refused(store: MemoryAdapter, clock: FakeClock) -> None:
    store.write({_raw("010700"): _raw(_sealed("04000000"))}, [], sync=True)
    with pytest.raises(StoreTooNew) as caught:
        await _open(store, clock)
    assert caught.value.limit == 3


@law("X1")
@pytest.mark.parametrize(
    "key",
    [key for key in STORE if key.startswith(("010700", "010701", "010702"))],
)
async def test_damage_that_is_met_when_opening(
    store: MemoryAdapter, clock: FakeClock, key: str
) -> None:
    value = _raw(STORE[key])
    store.write({_raw(key): value[:-1]}, [], sync=True)
    with pytest.raises(StoreCorrupt):
        await _open(store, clock)


@law("X1")
async def test_a_damaged_payload_is_never_served(store: MemoryAdapter, clock: FakeClock) -> None:
    store.write({_raw("0101 0000000000000000"): b"v"}, [], sync=True)
    engine = await _open(store, clock)
    with pytest.raises(StoreCorrupt, match="payload of message 0"):
        await engine.claim("default", "orders", "w2", 10, None)
    stats = await engine.stats("default", "orders")
    assert (stats.available, stats.in_flight) == (1, 1)
    await engine.close()
