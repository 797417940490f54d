"""A store that has every kind of record, and a round of verbs that reads all of them.

``outcome`` says what became of one flipped bit: whether it was detected (X1), and if it was
not, whether anybody was served something wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Ack, Nack, Receipt, Reject, ReplaySource
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import Ordering, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from tests.crash.program import TENANT, everything, open_on

#: Key prefix to kind, for every record of docs/formats.md.
KINDS: Final[dict[bytes, str]] = {
    b"\x01\x01": "payload",
    b"\x01\x02": "active bucket",
    b"\x01\x03": "done bucket",
    b"\x01\x04": "failed bucket",
    b"\x01\x05": "attempts",
    b"\x01\x06": "queue specification",
    b"\x01\x07\x00": "format",
    b"\x01\x07\x01": "queue state",
    b"\x01\x07\x02": "lease",
    b"\x01\x07\x03": "delayed",
    b"\x01\x07\x04": "place",
    b"\x01\x07\x05": "expiry",
    b"\x01\x07\x06": "trail",
    b"\x01\x07\x07": "result",
    b"\x01\x07\x08": "expired bucket",
    b"\x01\x07\x09": "retention slot",
    b"\x01\x07\x0a": "partition",
    b"\x01\x07\x0b": "partition sequence",
    b"\x01\x07\x0c": "consumer",
    b"\x01\x07\x0d": "replay mark",
    b"\x01\x07\x0e": "topic",
    b"\x01\x07\x0f": "tenant",
    b"\x01\x07\x10": "idempotency id",
    b"\x01\x07\x11": "idempotency slot",
    b"\x01\x07\x12": "open key",
    b"\x01\x07\x13": "replaced",
    b"\x01\x07\x14": "queue number",
    b"\x01\x07\x15": "replacement",
    b"\x01\x07\x16": "document",
    b"\x01\x07\x17": "batch id",
    b"\x01\x07\x18": "identity",
    b"\x01\x07\x19": "commit link",
    b"\x03\x01\x00\x00\x00\x00\x20": "sequence block",
    b"\x03\x01\x00\x00\x00\x00\x30": "segment",
    b"\x03\x01": "log entry",
}
#: Their key says it all; there is no value to damage.
EMPTY: Final = frozenset({"expiry", "retention slot", "replay mark"})

DETECTED, HARMLESS, SERVED, UNTYPED = "detected", "harmless", "served", "untyped"


def kind_of(key: bytes) -> str:
    """The longest prefix decides; a listing of the log has no value and counts as the log."""
    return next(KINDS[key[:n]] for n in range(7, 1, -1) if key[:n] in KINDS)


async def build() -> tuple[FaultyAdapter, FakeClock, list[Receipt]]:
    """A store with every kind of record, and the claims that are held on it."""
    adapter, clock = FaultyAdapter(), FakeClock()
    engine = await open_on(adapter, clock)
    await engine.put_topic(TENANT, "orders", TopicPolicy(default_ttl_ms=10**9))
    await engine.put_queue(TENANT, "jobs", QueuePolicy(bucket_size=1, max_attempts=3), Start())
    ordered = QueuePolicy(filter="partition_key = 'a'", ordering=Ordering.PARTITION)
    await engine.put_queue(TENANT, "ordered", ordered, Start())
    now = clock.now()
    batch = [NewMessage(b"payload %d" % n, headers={"n": n}, id=f"id{n}") for n in range(8)]
    await engine.publish(TENANT, "orders", batch)
    first = await engine.claim(TENANT, "jobs", "anna", 5, 1000)
    done, again, delayed, failed, replayed = (item.receipt for item in first)
    await engine.settle(
        TENANT,
        "jobs",
        [
            Ack(done, b"result"),
            Nack(again, "again", 0),
            Nack(delayed, "later", 5000),
            Reject(failed, "never"),
            Reject(replayed, "once more"),
        ],
    )
    await engine.replay(TENANT, "jobs", ReplaySource.FAILED, None, 1, replay_id="once")
    short = [NewMessage(b"short", expires_at=now + 10), NewMessage(b"due", deliver_at=now + 9000)]
    await engine.publish(TENANT, "orders", short)
    clock.advance(20)
    await engine.sweep()
    keyed = NewMessage(b"keyed", key="key", partition_key="a")
    await engine.publish(TENANT, "orders", [keyed])
    await engine.publish(TENANT, "orders", [NewMessage(b"replaced", key="key")])
    await engine.publish(TENANT, "orders", [NewMessage(b"part", partition_key="a")] * 3)
    await engine.publish(TENANT, "orders", [NewMessage(b"batched")], batch_id="batch1")
    await engine.join(TENANT, "ordered", "anna")
    await engine.put_document("keys", "k1", b"document")
    held = await engine.claim(TENANT, "jobs", "bert", 2, 1000)
    await engine.close()
    return adapter, clock, [item.receipt for item in held]


async def outcome(
    adapter: FaultyAdapter,
    clock: FakeClock,
    held: list[Receipt],
    key: bytes,
    bit: int,
    sound: Mapping[str, object],
) -> str:
    """Open the damaged store and read all of it; ``sound`` is what the undamaged one shows."""
    disk = adapter.survivor(len(adapter.journal))
    if key:
        disk.damage(lambda other: other == key, bit)
    try:
        seen = await round_of_verbs(disk, FakeClock(clock.now()), held)
    except StoreCorrupt:
        return DETECTED
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
        return f"{UNTYPED}: {type(error).__name__}"
    return HARMLESS if seen == sound else SERVED


async def round_of_verbs(
    disk: FaultyAdapter, clock: FakeClock, held: list[Receipt]
) -> dict[str, object]:
    """Every verb that reads something, and everything they show."""
    engine = await open_on(disk, clock)
    assert isinstance(engine, KeyValueEngine)
    seen: dict[str, object] = {"at first": await everything(engine)}
    try:
        for step in _steps(engine, held):
            seen[f"step {len(seen)}"] = await step()
        clock.advance(10_000)
        for queue in ("jobs", "jobs.dlq", "ordered"):
            seen[f"claim {queue}"] = await engine.claim(TENANT, queue, "cleo", 20, 1000)
        clock.advance(4_000_000)
        seen["sweep"] = await engine.sweep()
        seen["at last"] = await everything(engine)
    finally:
        await engine.close()
    return seen


def _steps(engine: Engine, held: list[Receipt]) -> list[Callable[[], Awaitable[object]]]:
    again = [NewMessage(b"payload 1", id="id1"), NewMessage(b"newest", key="key")]
    nacks = [Nack(receipt, "no", 0) for receipt in held]
    return [
        lambda: _result(engine),
        lambda: engine.publish(TENANT, "orders", again),
        lambda: engine.publish(TENANT, "orders", again, batch_id="batch1"),
        lambda: engine.settle(TENANT, "jobs", nacks),
        lambda: engine.replay(TENANT, "jobs", ReplaySource.FAILED, None, 5, replay_id="once"),
        lambda: engine.put_queue(TENANT, "new", QueuePolicy(), Start(Start.EARLIEST)),
        lambda: engine.assign(
            TENANT,
            "new",
            filter="TRUE",
            start=Offset(0),
            end=Offset(3),
            offsets=[Offset(1), Offset(2)],
        ),
        lambda: engine.route(TENANT, "new", 100),
    ]


async def _result(engine: Engine) -> object:
    done = await engine.peek(TENANT, "jobs", State.DONE, None, 10)
    return [await engine.result(TENANT, "jobs", item.message.id) for item in done.items]
