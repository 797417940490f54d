"""The views show what the verbs show, column by column."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.delivery import Ack, Extend, Nack, Reject, Release, Snapshot
from penstock.model.limits import MAX_TIME_MS
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.testing.clock import FakeClock
from tests.databases import server, store_url
from tests.unit.storage.sql.callers import Caller, caller
from tests.unit.storage.sql.pairs import LATEST, NAME, TENANT, claim, opened, settled

OTHER: Final = "other"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ODD: Final = 'quote " backslash \\ tab \t newline \n control \x01 escape \\u0000 NUL \0 é 😀'
HEADERS: Final[dict[str, Any]] = {
    "text": ODD,
    ODD: "name",
    "": "",
    "long": "x" * 300,
    "true": True,
    "false": False,
    "zero": 0,
    "minus": -1,
    "low": -(2**63),
    "high": 2**63 - 1,
    "byte": -129,
    "word": 70_000,
    "one": 1.0,
    "third": 1 / 3,
    "tiny": 5e-324,
    "huge": -1.7976931348623157e308,
    "e16": 1e16,
    "nan": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
}


class Selected:
    """The rows of queries, by column, with plain values."""

    def __init__(self, connection: Caller) -> None:
        self._connection = connection

    async def rows(self, view: str, columns: str) -> list[dict[str, Any]]:
        found = await self._connection.run(f"SELECT {columns} FROM {view}")
        names = [name.strip("` ") for name in columns.split(",")]
        return [dict(zip(names, map(_plain, row), strict=True)) for row in found]


def _plain(value: Any) -> Any:
    """A time in epoch milliseconds; anything else as it is."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // timedelta(milliseconds=1)
    return value


def shown(value: Any) -> Any:
    """A value as JSON in a view shows it."""
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case bytes():
            return value.hex()
        case float() if not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]
        case list():
            return [shown(item) for item in value]
        case dict():
            return {shown(name): shown(item) for name, item in value.items()}
        case _:
            return value


def typed(value: Any) -> Any:
    """The value, such that 1, 1.0 and True differ."""
    match value:
        case dict():
            return {name: typed(item) for name, item in value.items()}
        case list():
            return [typed(item) for item in value]
        case _:
            return type(value), value


@asynccontextmanager
async def selecting(dialect: str) -> AsyncIterator[Selected]:
    connection = await caller(dialect, NAME)
    try:
        # None of this changes what is shown.
        if dialect == "postgresql":
            await connection.run("SET extra_float_digits = -5")
            await connection.run("SET timezone = 'Asia/Kolkata'")
        else:
            await connection.run("SET time_zone = '+05:30', sql_mode = 'ANSI'")
        yield Selected(connection)
    finally:
        await connection.close()


# -- a store with everything in it -----------------------------------------------------


async def fill(engine: Engine, clock: FakeClock) -> None:
    policies = {
        "moves": QueuePolicy(filter="topic = 'moves'"),
        "ordered": QueuePolicy(filter="topic = 'kept'", ordering=Ordering.PARTITION),
        "odd": QueuePolicy(
            filter=f"key = '{ODD[:-5]}'",
            description=ODD,
            paused=True,
            max_depth=7,
            lease_ms=7_000,
            labels={"team": ODD, ODD: ""},
        ),
        "all": QueuePolicy(message_ttl_ms=10**8),
    }
    for name, policy in policies.items():
        await engine.put_queue(TENANT, name, policy, LATEST)
    await engine.put_queue(OTHER, "all", QueuePolicy(), LATEST)
    await engine.pause(TENANT, "moves.dlq", paused=True)
    await engine.pause(TENANT, "moves.dlq", paused=False)
    await engine.pause(TENANT, "ordered.dlq", paused=True)
    await _publish(engine, clock)
    await _move(engine, clock)
    # Two pages are routed of what is there: this one stays behind.
    await engine.put_queue(TENANT, "behind", QueuePolicy(), Start(Start.EARLIEST))


async def _publish(engine: Engine, clock: FakeClock) -> None:
    now = clock.now()
    full = NewMessage(
        bytes(range(256)),
        HEADERS,
        content_type="text/plain; é",
        partition_key=ODD,
        priority=9,
        max_attempts=65_535,
    )
    await engine.publish(
        TENANT,
        "kept",
        [
            NewMessage(b""),
            full,
            NewMessage(b"short", {"n": 1}, priority=0, deliver_at=now + 10_000),
            NewMessage(b"late", deliver_at=MAX_TIME_MS, expires_at=MAX_TIME_MS),
            NewMessage(b"x" * 200_000),
            NewMessage(b"first", {"n": 1}, key=ODD, expires_at=now + 5),
            NewMessage(b"only", key="only"),
        ],
    )
    clock.advance(1)
    await engine.publish(TENANT, "kept", [NewMessage(b"second", {"n": 2}, key=ODD)])
    clock.advance(1)
    third = NewMessage(b"third", {"n": 3}, key=ODD, expires_at=now + 10**9)
    await engine.publish(TENANT, "kept", [NewMessage(b"between"), third])
    await engine.publish(TENANT, "short", [NewMessage(b"", expires_at=now + 3)] * 3)
    await engine.publish(OTHER, "kept", [NewMessage(b"of another tenant", key=ODD)])
    clock.advance(1)
    await engine.sweep()


async def _move(engine: Engine, clock: FakeClock) -> None:
    """Bring deliveries of one row into every state, and of its dead letters too."""
    await engine.publish(TENANT, "moves", [NewMessage(b"%d" % nth) for nth in range(16)])
    await engine.publish(TENANT, "moves", [NewMessage(b"delayed", deliver_at=clock.now() + 99_000)])
    clock.advance(1)
    by = [one.receipt for one in await claim(engine, "moves", 15, consumer="one")]
    clock.advance(1)
    verdicts = await settled(
        engine,
        "moves",
        *(Ack(by[0]), Ack(by[2], b"result"), Ack(by[5])),
        *(Release(by[1]), Nack(by[3], ODD, delay_ms=5_000), Nack(by[4], "again", delay_ms=0)),
        *(Reject(one, ODD) for one in by[7:12]),
        Reject(by[12]),
    )
    assert set(verdicts) == {"ok"}
    await engine.settle(TENANT, "moves", [Extend(by[13], 90_000)])
    clock.advance(1)
    dead = [one.receipt for one in await claim(engine, "moves.dlq", 5, consumer="two")]
    clock.advance(1)
    verdicts = await settled(
        engine,
        "moves.dlq",
        *(Ack(dead[0]), Nack(dead[1], "not yet", delay_ms=7_000), Nack(dead[2]), Release(dead[3])),
    )
    assert set(verdicts) == {"ok"}


# -- what the verbs say ----------------------------------------------------------------


async def messages_by_verbs(engine: Engine, tenant: str) -> list[dict[str, Any]]:
    page = await engine.read_log(tenant, Offset(0), 1_000)
    found = []
    for id_ in sorted({entry.message.id for entry in page.entries}):
        one = await engine.message(tenant, id_)
        found.append(
            {
                "tenant": tenant,
                "id": one.message.id,
                "log_offset": one.message.offset,
                **{
                    name: shown(getattr(one.message, name))
                    for name in (
                        *("topic", "priority", "published_at", "deliver_at", "expires_at"),
                        *("key", "partition_key", "content_type", "headers", "size"),
                        "max_attempts",
                    )
                },
                "payload": one.payload,
            }
        )
    return found


async def deliveries_by_verbs(engine: Engine, tenant: str, queue: str) -> list[dict[str, Any]]:
    ordered = (await engine.get_queue(tenant, queue)).policy.ordering is Ordering.PARTITION
    sides: list[tuple[str, State, State, State | None]] = [
        *((queue, state, state, None) for state in State if state is not State.FAILED),
        (queue, State.FAILED, State.FAILED, State.AVAILABLE),
        (f"{queue}.dlq", State.DELAYED, State.FAILED, State.DELAYED),
        (f"{queue}.dlq", State.IN_FLIGHT, State.FAILED, State.IN_FLIGHT),
        (f"{queue}.dlq", State.DONE, State.DONE, State.DONE),
    ]
    found = []
    for name, asked, state, dead in sides:
        page = await engine.peek(tenant, name, asked, None, 1_000)
        for item in page.items:
            row = _delivery(item, ordered=ordered)
            found.append(
                {"tenant": tenant, "queue": queue, "state": state, "dead_letter_state": dead, **row}
            )
    return found


def _delivery(item: Snapshot, *, ordered: bool) -> dict[str, Any]:
    delayed = item.state is State.DELAYED
    return {
        "message_id": item.message.id,
        "attempts": item.attempts,
        "released": item.released,
        "consumer": item.consumer,
        "error": shown(item.error),
        "due_at": item.at if delayed else None,
        "expires_at": item.message.expires_at,
        "claimed_at": item.claimed_at,
        "deadline": item.lease_deadline,
        "settled_at": None if delayed else item.at,
        "partition_key": shown(item.message.partition_key or "") if ordered else None,
    }


async def queues_by_verbs(engine: Engine, tenant: str) -> list[dict[str, Any]]:
    found = []
    for info in await engine.list_queues(tenant):
        counts = await engine.stats(tenant, info.name)
        dead = await engine.stats(tenant, f"{info.name}.dlq")
        dead_info = await engine.get_queue(tenant, f"{info.name}.dlq")
        found.append(
            {
                "tenant": tenant,
                "name": info.name,
                "filter": shown(info.policy.filter),
                "paused": info.policy.paused,
                "created_at": info.created_at,
                "caught_up": info.cursor is None,
                **{str(state): getattr(counts, state) for state in State},
                **{
                    f"dead_letters_{state}": getattr(dead, state)
                    for state in ("delayed", "available", "in_flight", "done")
                },
                "dead_letters_paused": dead_info.policy.paused,
                "policy": shown(json.loads(msgspec.json.encode(info.policy))),
            }
        )
    return found


# -- the same --------------------------------------------------------------------------


def _sorted(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [row[name] for name in names])


async def test_views_show_what_the_verbs_show(dialect: str) -> None:
    clock = FakeClock()
    async with opened(dialect, clock) as (engine,), selecting(dialect) as views:
        await fill(engine, clock)
        tenants = (OTHER, TENANT)

        expected = [row for one in tenants for row in await messages_by_verbs(engine, one)]
        assert len(expected) == 29
        columns = ", ".join(_quoted(dialect, name) for name in expected[0])
        rows = await views.rows("penstock_messages", columns)
        for row in rows:
            row["headers"] = json.loads(row["headers"])
        rows, expected = (_sorted(some, "tenant", "id") for some in (rows, expected))
        assert [typed(row) for row in rows] == [typed(row) for row in expected]

        expected = [
            row
            for one in tenants
            for queue in await engine.list_queues(one)
            for row in await deliveries_by_verbs(engine, one, queue.name)
        ]
        assert {(row["state"], row["dead_letter_state"]) for row in expected} == {
            *((state, None) for state in State if state is not State.FAILED),
            *((State.FAILED, state) for state in ("available", "delayed", "in_flight")),
            (State.DONE, State.DONE),
        }
        rows = await views.rows("penstock_deliveries", ", ".join(expected[0]))
        for row in rows:
            if row["dead_letter_state"] == "delayed":
                # When it failed, which peek does not show for a delivery that is delayed.
                assert row.pop("settled_at") == clock.now() - 2
                row["settled_at"] = None
        keys = ("tenant", "queue", "message_id")
        assert _sorted(rows, *keys) == _sorted(expected, *keys)

        expected = [row for one in tenants for row in await queues_by_verbs(engine, one)]
        assert {row["caught_up"] for row in expected} == {True, False}
        columns = ", ".join(_quoted(dialect, name) for name in expected[0])
        rows = await views.rows("penstock_queues", columns)
        for row in rows:
            row["policy"] = json.loads(row["policy"])
        assert _sorted(rows, "tenant", "name") == _sorted(expected, "tenant", "name")


async def test_the_lease_has_its_present_name_however_it_is_stored(dialect: str) -> None:
    clock = FakeClock()
    async with opened(dialect, clock) as (engine,), selecting(dialect) as views:
        await engine.put_queue(TENANT, "q", QueuePolicy(lease_ms=7_000), LATEST)
        for name, lease_ms in (("visibility_timeout_ms", 8_000), ("lease_ms", 9_000)):
            stored = json.dumps({"filter": "TRUE", "paused": False, name: lease_ms})
            text = f"convert_to('{stored}', 'UTF8')" if dialect == "postgresql" else f"'{stored}'"
            server(dialect).sql(f"UPDATE penstock_queue SET policy = {text}", NAME)
            (row,) = await views.rows("penstock_queues", "policy")
            assert json.loads(row["policy"]) == {
                "filter": "TRUE",
                "paused": False,
                "lease_ms": lease_ms,
            }


def _quoted(dialect: str, name: str) -> str:
    return f"`{name}`" if dialect == "mysql" else name


async def test_a_delivery_is_joined_with_its_message_by_segment(dialect: str) -> None:
    """Also if the message was replaced, so that its newest entry is in another segment."""
    clock = FakeClock()
    async with opened(dialect, clock) as (engine,), selecting(dialect) as views:
        await fill(engine, clock)
        joined = (
            "penstock_deliveries AS d JOIN penstock_messages AS m"
            " ON m.segment = d.segment AND m.id = d.message_id WHERE d.queue = 'ordered'"
        )
        rows = await views.rows(joined, "d.message_id, m.log_offset, d.routed_at, m.published_at")
        assert len(rows) == 8
        replaced = [row for row in rows if row["d.message_id"] != row["m.log_offset"]]
        assert len(replaced) == 1
        assert {row["d.routed_at"] - row["m.published_at"] for row in rows} == {0}


async def test_views_follow_purge_and_retention(dialect: str) -> None:
    clock = FakeClock()
    async with opened(dialect, clock) as (engine,), selecting(dialect) as views:
        await engine.put_queue(TENANT, "q", QueuePolicy(max_attempts=1), LATEST)
        await engine.publish(TENANT, "kept", [NewMessage(b"1", key="k")])
        await engine.publish(TENANT, "kept", [NewMessage(b"2", key="k")])
        (one,) = await claim(engine, "q")
        clock.advance(1)
        await settled(engine, "q", Nack(one.receipt, "no"))
        clock.advance(1)
        rows = await views.rows("penstock_deliveries", "state, attempts, error, settled_at")
        assert [*rows[0].values()] == ["failed", 1, "no", clock.now() - 1]
        assert (await engine.purge(TENANT, "q", State.FAILED, None, 10)).count == 1
        assert await views.rows("penstock_deliveries", "state") == []
        assert await views.rows("penstock_messages", "payload") == [{"payload": b"2"}]
        clock.advance(10**9)
        await engine.sweep()
        assert await views.rows("penstock_messages", "payload") == []


# -- the decoder -----------------------------------------------------------------------

#: The sizes of integers at which their form changes.
BITS: Final = (5, 7, 8, 15, 16, 31, 32)
EDGES: Final = [sign * 2**bits + by for bits in BITS for sign in (1, -1) for by in (-1, 0, 1)]
TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]))
#: Names stay different if NUL is replaced.
NAMES: Final = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufffd"))
NUMBERS: Final = st.integers(-(2**63), 2**64 - 1) | st.sampled_from(EDGES) | st.floats()
VALUES: Final = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(NAMES, inner, max_size=20),
)
LONG: Final = [
    *(list(range(n)) for n in (15, 16, 70_000)),
    *({str(n): n for n in range(size)} for size in (15, 16, 70_000)),
    *("é" * n for n in (15, 16, 127, 128, 40_000)),
    *(b"b" * n for n in (255, 256, 70_000)),
]


@pytest.fixture
def unpack(dialect: str) -> Iterator[Any]:
    """Unpacks MessagePack with the function of the views."""
    store_url(dialect, NAME)
    with asyncio.Runner() as runner:
        connection = runner.run(caller(dialect, NAME))

        def call(packed: bytes) -> Any:
            sealed = b"seal" + packed
            if dialect == "postgresql":
                value = f"penstock_unpack('\\x{sealed.hex()}')"
            else:
                value = f"penstock_unpack(x'{sealed.hex()}', NULL)"
            ((found,),) = runner.run(connection.run(f"SELECT {value}"))
            return json.loads(found)

        yield call
        runner.run(connection.close())


def test_messagepack_is_unpacked_as_msgspec_does(unpack: Any) -> None:
    @settings(max_examples=150)
    @given(VALUES)
    def check(value: Any) -> None:
        assert typed(unpack(msgspec.msgpack.encode(value))) == typed(shown(value))

    check()


def test_long_values_are_unpacked(unpack: Any) -> None:
    for value in LONG:
        assert unpack(msgspec.msgpack.encode(value)) == shown(value)


def test_other_types_are_refused(unpack: Any) -> None:
    """Nothing is skipped silently (X1)."""
    with pytest.raises(Exception, match="type"):
        unpack(msgspec.msgpack.encode([1, msgspec.msgpack.Ext(5, b"extension")]))
