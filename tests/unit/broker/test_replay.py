"""The bulk verbs and the readers: what they refuse, and that a preview counts as a router does."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from penstock import Ack, Broker, NewMessage, Outgoing, ReplaySource, Start, State
from penstock.errors import (
    BadFilter,
    BadInput,
    BadName,
    Conflict,
    OtherStore,
    TooLarge,
    UnknownMessage,
    UnknownQueue,
)
from penstock.filters import parse
from penstock.model.identity import StoreIdentity
from penstock.model.limits import MAX_FILTER_BYTES, MAX_TIME_MS
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

MILLION: Final = 1_000_000
#: The last offset, and the last message id.
LAST_OFFSET: Final = 10**17 - 1
BAD_COUNTS: Final[list[Any]] = [0, -1, True, 1.0, "1", None]


async def failed(q: Broker, count: int, topic: str = "orders") -> list[int]:
    """Publish and reject; returns the message ids."""
    await q.publish_batch(topic, [NewMessage(b"%d" % n, headers={"n": n}) for n in range(count)])
    deliveries = await q.claim(topic, limit=count)
    for delivery in deliveries:
        await q.reject(delivery, "no good")
    return [item.message.id for item in deliveries]


# -- arguments -------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize("queue", ["", "a b", None, 5, "q" * 129, ".dlq"])
async def test_a_queue_that_is_not_a_name(q: Broker, refuses: Refuses, queue: Any) -> None:
    for call in (
        q.replay(queue),
        q.purge(queue, "done"),
        q.peek(queue),
        q.route(queue),
        q.assign(queue, filter="TRUE", start=0, end=1, offsets=[0]),
        q.result(queue, 0),
        q.explain(queue, 0),
    ):
        await refuses(call, BadName, "queue", 128)


@law("E1")
@pytest.mark.parametrize("queue", ["nowhere", "nowhere.dlq"])
async def test_a_queue_that_is_not_there(q: Broker, refuses: Refuses, queue: str) -> None:
    for call in (
        q.replay(queue),
        q.purge(queue, "done"),
        q.peek(queue),
        q.route(queue),
        q.assign(queue, filter="TRUE", start=0, end=1, offsets=[0]),
        q.result(queue, 0),
        q.explain(queue, 0),
    ):
        await refuses(call, UnknownQueue, "queue")


@law("E1")
@pytest.mark.parametrize("limit", [*BAD_COUNTS, MILLION + 1])
async def test_a_limit_out_of_bounds(q: Broker, refuses: Refuses, limit: Any) -> None:
    for call in (
        q.replay("stock", limit=limit),
        q.purge("stock", "done", limit=limit),
        q.route("stock", limit),
        q.sweep(limit),
    ):
        await refuses(call, BadInput, "limit", MILLION)


async def test_limits_at_the_bounds(q: Broker) -> None:
    await failed(q, 3)
    assert (await q.purge("orders", "failed", limit=1)).count == 1
    assert (await q.replay("orders", limit=1)).count == 1
    assert (await q.replay("orders", limit=MILLION)).count == 1
    assert (await q.purge("orders", "available", limit=MILLION)).count == 2
    assert (await q.route("orders", MILLION)).cursor is None
    assert not (await q.sweep(MILLION)).more


@law("E1")
@pytest.mark.parametrize("limit", [*BAD_COUNTS, 1001])
async def test_a_page_out_of_bounds(q: Broker, refuses: Refuses, limit: Any) -> None:
    await refuses(q.peek("stock", limit=limit), BadInput, "limit", 1000)


@law("E1")
@pytest.mark.parametrize("limit", [*BAD_COUNTS, 10_001])
async def test_a_read_out_of_bounds(q: Broker, refuses: Refuses, limit: Any) -> None:
    await refuses(q.read_log(limit=limit), BadInput, "limit", 10_000)


@law("E1")
@pytest.mark.parametrize("ttl_ms", [0, -1, True, 1.0, "1", MAX_TIME_MS + 1])
async def test_a_ttl_out_of_bounds(q: Broker, refuses: Refuses, ttl_ms: Any) -> None:
    await refuses(q.replay("stock", ttl_ms=ttl_ms), BadInput, "ttl_ms", MAX_TIME_MS)


@law("E1")
@pytest.mark.parametrize("rate", [0, -1, True, 1.0, "1", 10**9 + 1])
async def test_a_rate_out_of_bounds(q: Broker, refuses: Refuses, rate: Any) -> None:
    await refuses(q.replay("stock", rate=rate), BadInput, "rate", 10**9)


@law("E1")
@pytest.mark.parametrize("replay_id", ["", 5, b"x", State.DONE, ["x"]])
async def test_a_replay_id_that_is_none(q: Broker, refuses: Refuses, replay_id: Any) -> None:
    await refuses(q.replay("stock", replay_id=replay_id), BadInput, "replay_id")


@law("E1")
@pytest.mark.parametrize("replay_id", ["x" * 513, "é" * 257])
async def test_a_replay_id_over_512_bytes(q: Broker, refuses: Refuses, replay_id: str) -> None:
    await refuses(q.replay("stock", replay_id=replay_id), TooLarge, "replay_id", 512)


@law("E1")
async def test_a_replay_id_that_is_not_unicode(q: Broker, refuses: Refuses) -> None:
    await refuses(q.replay("stock", replay_id="\ud800"), BadInput, "replay_id")


@pytest.mark.parametrize("replay_id", ["x" * 512, "é" * 256])
async def test_a_replay_id_of_512_bytes_moves_once(q: Broker, replay_id: str) -> None:
    await failed(q, 2)
    assert (await q.replay("orders", replay_id=replay_id)).count == 2
    for delivery in await q.claim("orders", limit=2):
        await q.reject(delivery)
    again = await q.replay("orders", replay_id=replay_id)
    assert (again.count, again.skipped) == (0, 2)


@law("E1")
@pytest.mark.parametrize("ids", [5, "1", {1}, [1.0], [True], ["1"]])
async def test_ids_that_are_none(q: Broker, refuses: Refuses, ids: Any) -> None:
    await refuses(q.replay("stock", ids=ids), BadInput, "ids")


@law("E1")
@pytest.mark.parametrize("ids", [5, "1", {1}, [1.0], [True], ["1"]])
async def test_ids_of_a_purge_that_are_none(q: Broker, refuses: Refuses, ids: Any) -> None:
    await refuses(q.purge("stock", "available", ids=ids), BadInput, "ids")


@law("E1")
@pytest.mark.parametrize("ids", [[-1], [0, 10**17]])
async def test_ids_out_of_range(q: Broker, refuses: Refuses, ids: list[int]) -> None:
    await refuses(q.replay("stock", ids=ids), BadInput, "ids", 10**17 - 1)
    await refuses(q.purge("stock", "available", ids=ids), BadInput, "ids", 10**17 - 1)


@law("E1")
async def test_more_ids_than_one_purge_takes(q: Broker, refuses: Refuses) -> None:
    await refuses(q.purge("stock", "available", ids=[0] * 100_001), TooLarge, "ids", 100_000)


async def test_purge_by_ids_and_filter(q: Broker) -> None:
    ids = await failed(q, 6)
    assert (await q.purge("orders", "failed", ids=[])).count == 0
    assert (await q.purge("orders", "failed", ids=ids[:4], where="n >= 2")).count == 2
    page = await q.peek("orders", "failed")
    assert [item.message.id for item in page.items] == [*ids[:2], *ids[4:]]


@law("E1")
async def test_more_ids_than_one_call_takes(q: Broker, refuses: Refuses) -> None:
    await refuses(q.replay("stock", ids=[0] * 100_001), TooLarge, "ids", 100_000)


async def test_messages_that_are_named_and_what_a_filter_takes_of_them(q: Broker) -> None:
    ids = await failed(q, 6)
    assert (await q.replay("orders", ids=[], dry_run=True)).count == 0
    assert (await q.replay("orders", ids=[*ids[:4], 10**9], dry_run=True)).count == 4
    assert (await q.replay("orders", ids=ids[:4], where="n >= 2")).count == 2
    assert [delivery.message.id for delivery in await q.claim("orders", limit=6)] == ids[2:4]


@law("E1")
@pytest.mark.parametrize("source", [None, 5, [], "", "FAILED", "expired", State.AVAILABLE])
async def test_a_source_that_is_none(q: Broker, refuses: Refuses, source: Any) -> None:
    await refuses(q.replay("stock", source), BadInput, "source")


@pytest.mark.parametrize("source", [ReplaySource.FAILED, "failed", State.FAILED])
async def test_a_source_by_its_word(q: Broker, source: Any) -> None:
    await failed(q, 1)
    assert (await q.replay("orders", source)).count == 1


@law("E1")
@pytest.mark.parametrize("state", [None, 5, [], "", "DONE", "gone"])
async def test_a_state_that_is_none(q: Broker, refuses: Refuses, state: Any) -> None:
    error = await refuses(q.peek("stock", state), BadInput, "state")
    assert "in_flight" in error.detail
    await refuses(q.purge("stock", state), BadInput, "state")


@law("E1")
@pytest.mark.parametrize("where", ["", "n =", 5, "\ud800"])
async def test_a_selection_that_does_not_parse(q: Broker, refuses: Refuses, where: Any) -> None:
    for call in (
        q.peek("stock", where=where),
        q.purge("stock", "done", where=where),
        q.replay("stock", where=where),
    ):
        await refuses(call, BadFilter, "where")
    await refuses(q.preview(where), BadFilter, "filter")


@law("E1")
async def test_a_selection_over_its_limits(q: Broker, refuses: Refuses) -> None:
    long = "a = '" + "x" * MAX_FILTER_BYTES + "'"
    await refuses(q.peek("stock", where=long), BadFilter, "where", MAX_FILTER_BYTES)
    await refuses(q.preview(long), BadFilter, "filter", MAX_FILTER_BYTES)


@law("E1")
async def test_what_is_in_flight_is_not_purged(q: Broker, refuses: Refuses) -> None:
    await refuses(q.purge("stock", "in_flight"), Conflict, "state")


@law("E1")
@pytest.mark.parametrize(
    "message_id", [-1, LAST_OFFSET + 1, 2**63, 2**64, 2**70, True, 1.0, "1", None]
)
async def test_an_id_that_is_none(q: Broker, refuses: Refuses, message_id: Any) -> None:
    for call in (
        q.message(message_id),
        q.history(message_id),
        q.result("stock", message_id),
        q.explain("stock", message_id),
    ):
        await refuses(call, BadInput, "id", LAST_OFFSET)


@law("E1")
@pytest.mark.parametrize("message_id", [999, 2**53, LAST_OFFSET])
async def test_a_message_that_is_not_there(q: Broker, refuses: Refuses, message_id: int) -> None:
    for call in (
        q.message(message_id),
        q.history(message_id),
        q.result("stock", message_id),
        q.explain("stock", message_id),
    ):
        await refuses(call, UnknownMessage, "id")


@law("E1")
@pytest.mark.parametrize(
    "offset", [-1, LAST_OFFSET + 1, 2**63, 2**64, 2**70, True, State.DONE, 1.0, "1", None]
)
async def test_an_offset_that_is_none(q: Broker, refuses: Refuses, offset: Any) -> None:
    await refuses(q.read_log(offset), BadInput, "start", LAST_OFFSET)
    await refuses(q.preview("TRUE", start=offset), BadInput, "start", LAST_OFFSET)
    await refuses(q.archived(offset, await q.identity()), BadInput, "through", LAST_OFFSET)
    await q.publish("orders", b"still alive")


async def test_the_last_offset_is_one(q: Broker) -> None:
    await q.publish("orders", b"")
    page = await q.read_log(LAST_OFFSET)
    assert (page.entries, page.next_offset) == ((), LAST_OFFSET)
    assert (await q.preview("TRUE", start=LAST_OFFSET)).scanned == 0
    with pytest.raises(OtherStore):
        await q.archived(LAST_OFFSET, await q.identity())
    await q.publish("orders", b"still alive")
    assert await q.log_end() == 2


async def test_an_archived_offset_only_grows(q: Broker) -> None:
    for _ in range(3):
        await q.publish("orders", b"")
    for through in (0, 2, 1):
        await q.archived(through, await q.identity())
    assert await q.log_end() == 3


@law("E1")
@pytest.mark.parametrize(
    "store", [None, "store", StoreIdentity("", ""), StoreIdentity("x" * 32, "0" * 32)]
)
async def test_an_identity_that_is_none(q: Broker, refuses: Refuses, store: Any) -> None:
    await q.publish("orders", b"")
    await refuses(q.archived(0, store), BadInput, "store")


# -- cursors ---------------------------------------------------------------------------


@law("A1")
async def test_a_cursor_of_another_store_or_epoch(q: Broker, refuses: Refuses) -> None:
    await q.publish_batch("orders", [NewMessage(b"%d" % n) for n in range(6)])
    cursor = (await q.peek("orders", limit=2)).cursor
    assert cursor is not None
    number, _, mark = cursor.partition("-")
    assert len(mark) == 16
    rest = await q.peek("orders", cursor=cursor)
    assert len(rest.items) == 4
    # An older Penstock gave the number only.
    assert await q.peek("orders", cursor=number) == rest
    await refuses(q.peek("orders", cursor=f"{number}-{'0' * 16}"), OtherStore, "cursor")
    await q.engine.new_epoch()
    await refuses(q.peek("orders", cursor=cursor), OtherStore, "cursor")


@law("E1")
@pytest.mark.parametrize("cursor", ["", "zz", "é", 5, b"0", "0.5", "\ud800", ["0"], State.DONE])
async def test_a_cursor_that_nobody_gave(q: Broker, refuses: Refuses, cursor: Any) -> None:
    for state in State:
        await refuses(q.peek("stock", state, cursor=cursor), BadInput, "cursor")


@law("E1")
@pytest.mark.parametrize("cursor", ["-1", "+5", "0x1f", " 1f ", "1_0", "1F", "1f\n", "\u0661"])
async def test_a_cursor_that_is_almost_one(q: Broker, refuses: Refuses, cursor: str) -> None:
    await refuses(q.peek("stock", cursor=cursor), BadInput, "cursor")


@law("E1")
@pytest.mark.parametrize("state", State)
async def test_a_cursor_over_60_bits(q: Broker, refuses: Refuses, state: State) -> None:
    for cursor in ("0" * 16, "f" * 16, "f" * 40):
        await refuses(q.peek("stock", state, cursor=cursor), BadInput, "cursor")


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("cursor", ["0", "8" * 15, "f" * 15])
@pytest.mark.usefixtures("refuses")
async def test_any_cursor_within_60_bits_is_a_place(q: Broker, state: State, cursor: str) -> None:
    for queue in ("stock", "stock.dlq"):
        every = (await q.peek(queue, state)).items
        some = (await q.peek(queue, state, cursor=cursor)).items
        assert {item.message.id for item in some} <= {item.message.id for item in every}


@pytest.mark.parametrize("state", ["delayed", "in_flight", "done", "failed", "expired"])
@pytest.mark.parametrize("bucket_size", [0, 4])
async def test_a_cursor_that_a_page_gave_is_taken_in_every_state(
    q: Broker, clock: FakeClock, state: str, bucket_size: int
) -> None:
    await q.create_queue("orders", bucket_size=bucket_size)
    delay_ms, ttl_ms = (5_000 if state == "delayed" else None), (5 if state == "expired" else None)
    for n in range(12):
        await q.publish("orders", b"", priority=n % 10, delay_ms=delay_ms, ttl_ms=ttl_ms)
    if state in ("in_flight", "done", "failed"):
        for delivery in await q.claim("orders", limit=12):
            if state == "done":
                await q.ack(delivery)
            elif state == "failed":
                await q.reject(delivery)
    clock.advance(5)
    await q.sweep()
    queues = [("orders", state)] + [("orders.dlq", "available")] * (state == "failed")
    for queue, wanted in queues:
        page = await q.peek(queue, wanted, limit=5)
        seen = [item.message.id for item in page.items]
        while page.cursor is not None:
            page = await q.peek(queue, wanted, limit=5, cursor=page.cursor)
            seen += [item.message.id for item in page.items]
        assert sorted(seen) == list(range(12))


async def test_pages_follow_each_other(q: Broker) -> None:
    for n in range(25):
        await q.publish("orders", b"%d" % n, priority=n % 10)
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = await q.peek("orders", limit=4, cursor=cursor)
        assert len(page.items) <= 4
        seen += [item.message.id for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    everything = await q.peek("orders", limit=1000)
    assert seen == [item.message.id for item in everything.items]
    assert sorted(seen) == list(range(25))


async def test_payloads_only_where_asked_for(q: Broker) -> None:
    await q.publish("orders", b"payload")
    assert [item.payload for item in (await q.peek("orders")).items] == [None]
    assert [item.payload for item in (await q.peek("orders", payloads=True)).items] == [b"payload"]
    assert [item.payload for item in (await q.read_log()).entries] == [None]
    assert [item.payload for item in (await q.read_log(payloads=True)).entries] == [b"payload"]
    assert (await q.stats("orders")).available == 1


# -- what they do ----------------------------------------------------------------------


async def test_replay_selects_limits_and_previews(q: Broker) -> None:
    ids = await failed(q, 30)
    dry = await q.replay("orders", where="n >= 10", dry_run=True)
    assert dry.count == 20
    assert [item.message.id for item in dry.sample] == ids[10:20]
    assert (await q.stats("orders")).failed == 30
    assert (await q.replay("orders", where="n >= 10", limit=5)).count == 5
    assert [item.message.id for item in await q.claim("orders", limit=99)] == ids[10:15]


async def test_replay_at_a_rate(q: Broker, clock: FakeClock) -> None:
    await failed(q, 4)
    await q.replay("orders", rate=2)
    counts = []
    for wait_ms in (0, 499, 1, 500, 500):
        clock.advance(wait_ms)
        counts.append(len(await q.claim("orders", limit=9)))
    assert counts == [1, 0, 1, 1, 1]


async def test_replay_from_the_log_brings_in_what_was_before(q: Broker) -> None:
    await q.publish("orders", b"before")
    await q.create_queue("late", "topic = 'orders'")
    assert await q.claim("late") == []
    assert (await q.replay("late", "log")).count == 1
    assert [item.payload for item in await q.claim("late")] == [b"before"]


async def test_replay_from_done_and_from_the_dead_letters(q: Broker) -> None:
    await q.publish("orders", b"done")
    (delivery,) = await q.claim("orders")
    await q.ack(delivery)
    await failed(q, 1)
    assert (await q.replay("orders", ReplaySource.DONE)).count == 1
    assert (await q.replay("orders.dlq", ReplaySource.FAILED)).count == 1
    again = await q.claim("orders", limit=9)
    assert [item.attempts for item in again] == [1, 1]


async def test_purge_removes_what_it_selects(q: Broker) -> None:
    await failed(q, 10)
    reply = await q.purge("orders", State.FAILED, where="n < 5", limit=3)
    assert (reply.count, reply.more) == (3, True)
    reply = await q.purge("orders", "failed", where="n < 5")
    assert (reply.count, reply.more) == (2, False)
    left = (await q.peek("orders", "failed")).items
    assert [item.message.headers["n"] for item in left] == [5, 6, 7, 8, 9]


async def test_route_catches_up_step_by_step(q: Broker) -> None:
    await q.publish_batch("orders", [NewMessage(b"", headers={"n": n}) for n in range(5)])
    await q.create_queue("late", "n > 2", start="earliest")
    steps = [await q.route("late", 2) for _ in range(4)]
    assert [(item.scanned, item.assigned, item.cursor) for item in steps] == [
        (2, 0, 2),
        (2, 1, 4),
        (1, 1, None),
        (0, 0, None),
    ]


NUMBERS: Final[list[Any]] = [-1, LAST_OFFSET + 1, True, 1.0, "1", None]


@law("E1")
@pytest.mark.parametrize(
    "field, limit, wrong",
    [
        *(("start", LAST_OFFSET, {"start": number}) for number in NUMBERS),
        *(("end", LAST_OFFSET, {"end": number}) for number in NUMBERS),
        ("end", None, {"start": 5, "end": 4, "offsets": []}),
        ("filter", None, {"filter": ""}),
        ("filter", None, {"filter": None}),
        ("offsets", None, {"offsets": None}),
        ("offsets", None, {"offsets": {1, 2}}),
        ("offsets", None, {"offsets": "12"}),
        ("offsets", None, {"offsets": [1, 2.0]}),
        ("offsets", None, {"offsets": [True]}),
        ("offsets", None, {"offsets": [1, "2"]}),
        ("offsets", None, {"offsets": [0, 2]}),
        ("offsets", None, {"offsets": [1, 4]}),
        ("offsets", None, {"offsets": [2, 1]}),
        ("offsets", None, {"offsets": [1, 1]}),
        ("offsets", None, {"offsets": [1, 3, 2, 3]}),
    ],
)
async def test_an_assignment_that_is_none(
    q: Broker, refuses: Refuses, field: str, limit: int | None, wrong: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"filter": "TRUE", "start": 1, "end": 4, "offsets": [1, 3]}
    await refuses(q.assign("orders", **(asked | wrong)), BadInput, field, limit)


@law("E1")
async def test_an_assignment_of_too_much(q: Broker, refuses: Refuses) -> None:
    await q.publish("orders", b"")
    most = list(range(100_000))
    asked: dict[str, Any] = {"filter": "topic = 'orders'", "start": 0, "end": LAST_OFFSET}
    over = q.assign("orders", **asked, offsets=[*most, 100_000])
    await refuses(over, TooLarge, "offsets", 100_000)
    assert (await q.assign("orders", **asked, offsets=most)).cursor is None
    over = q.assign("orders", **(asked | {"filter": "x" * (MAX_FILTER_BYTES + 1)}), offsets=[])
    await refuses(over, TooLarge, "filter", MAX_FILTER_BYTES)


async def test_assign_catches_up_step_by_step(q: Broker) -> None:
    await q.publish_batch("orders", [NewMessage(b"", headers={"n": n}) for n in range(5)])
    await q.create_queue("late", "n > 2", start="earliest")
    asked: dict[str, Any] = {"filter": "n > 2", "start": 0, "end": 4}
    for _ in range(2):
        reply = await q.assign("late", **asked, offsets=(3,))
        assert reply.cursor == 4
    assert (await q.stats("late")).available == 1
    assert (await q.assign("late", filter="n > 2", start=4, end=4, offsets=[])).cursor == 4
    assert (await q.route("late")).assigned == 1


@law("R1")
@pytest.mark.parametrize(
    "queue, field, changed",
    [
        ("late", "filter", {"filter": "n > 3"}),
        ("late", "filter", {"filter": " n > 2"}),
        ("late", "start", {"start": 1}),
        ("late", "end", {"end": MILLION}),
        ("late.dlq", "queue", {}),
    ],
)
async def test_an_assignment_that_does_not_fit(
    q: Broker, refuses: Refuses, queue: str, field: str, changed: dict[str, Any]
) -> None:
    await q.publish_batch("orders", [NewMessage(b"", headers={"n": n}) for n in range(5)])
    await q.create_queue("late", "n > 2", start="earliest")
    end = await q.log_end()
    asked: dict[str, Any] = {"filter": "n > 2", "start": 0, "end": end, "offsets": [end - 1]}
    limit = {"start": 0, "end": end}.get(field)
    await refuses(q.assign(queue, **(asked | changed)), Conflict, field, limit)
    assert (await q.queue("late")).cursor == 0
    assert (await q.stats("late")).available == 0


async def test_sweep_lets_time_take_effect(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", done_retention_s=60)
    for delay_ms, ttl_ms in ((None, None), (None, None), (100, None), (None, 100)):
        await q.publish("orders", b"", delay_ms=delay_ms, ttl_ms=ttl_ms)
    first, _ = await q.claim("orders", limit=2, lease_ms=100)
    await q.ack(first)
    clock.advance(100)
    reply = await q.sweep()
    assert (reply.due, reply.lapsed, reply.expired, reply.removed) == (1, 1, 1, 0)
    stats = await q.stats("orders")
    assert (stats.available, stats.in_flight, stats.done, stats.expired) == (2, 0, 1, 1)
    clock.advance(60_000)
    assert (await q.sweep()).removed == 2


async def test_sweep_stops_at_its_bound_and_says_so(q: Broker, clock: FakeClock) -> None:
    await q.publish_batch("orders", [NewMessage(b"", delay_ms=1) for _ in range(5)])
    clock.advance(1)
    replies = [await q.sweep(2) for _ in range(3)]
    assert [item.due for item in replies] == [2, 2, 1]
    assert [item.more for item in replies] == [True, True, False]


# -- previews --------------------------------------------------------------------------

FILTERS: Final = [
    "TRUE",
    "FALSE",
    "topic = 'orders'",
    "amount >= 50",
    "amount IS NULL",
    "NOT (amount >= 50)",
    "country IN ('DE', 'AT') AND amount BETWEEN 10 AND 90",
    "priority > 4 OR country LIKE 'F%'",
    "partition_key = 'k1' AND topic <> 'orders'",
]


def random_headers(random: Random) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if random.random() < 0.7:
        headers["amount"] = random.choice([random.randrange(100), "50", 49.5])
    if random.random() < 0.7:
        headers["country"] = random.choice(["DE", "AT", "FR"])
    return headers


@law("R1")
@pytest.mark.parametrize("seed", range(3))
async def test_a_preview_counts_as_a_scan_does(q: Broker, seed: int) -> None:
    random = Random(seed)
    for _ in range(40):
        batch = [
            NewMessage(
                b"x",
                headers=random_headers(random),
                priority=random.randrange(10),
                partition_key=random.choice([None, "k1", "k2"]),
            )
            for _ in range(random.randrange(1, 6))
        ]
        await q.publish_batch(random.choice(["orders", "other"]), batch)
    entries = (await q.read_log(limit=10_000)).entries
    start = random.randrange(len(entries))
    for text in FILTERS:
        matching = [e for e in entries if parse(text).matches(e.message)]
        preview = await q.preview(text)
        assert preview.scanned == len(entries)
        assert preview.count == len(matching)
        assert preview.sample == tuple(matching[:10])
        later = await q.preview(text, start=start)
        assert later.scanned == len(entries) - start
        assert later.count == sum(e.message.offset >= start for e in matching)
        await q.create_queue("check", text, start="earliest")
        assert (await q.route("check")).assigned == preview.count
        await q.delete_queue("check")


async def test_a_preview_of_nothing(q: Broker) -> None:
    preview = await q.preview("TRUE")
    assert (preview.count, preview.scanned, preview.sample) == (0, 0, ())
    await q.publish("orders", b"")
    assert (await q.preview("TRUE", start=1)).scanned == 0


async def test_a_preview_reads_the_log_in_pieces(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.read_verbs.READ_BATCH", 3)
    for count in (2, 3, 4, 7):
        await q.publish_batch("orders", [NewMessage(b"")] * count)
        end = await q.log_end()
        preview = await q.preview("TRUE")
        assert (preview.count, preview.scanned) == (end, end)
        assert [item.message.offset for item in preview.sample] == list(range(min(end, 10)))


@law("R1")
async def test_a_preview_counts_a_replaced_message_once(q: Broker) -> None:
    """What a queue would take from the log is what the router assigns."""
    for n in range(2):
        await q.publish("orders", b"", key="k", headers={"n": n})
    preview = await q.preview("n IS NOT NULL")
    await q.create_queue("late", "n IS NOT NULL", start="earliest")
    assert (await q.route("late")).assigned == preview.count == 1


@law("R1")
@pytest.mark.parametrize("seed", range(6))
async def test_a_preview_counts_keyed_messages_as_the_router_does(q: Broker, seed: int) -> None:
    """Some were claimed before they were published again, and are two messages."""
    random = Random(seed)
    await q.create_queue("orders", "topic = 'orders'")
    for _ in range(40):
        await q.publish(
            random.choice(["orders", "other"]),
            b"",
            key=random.choice([None, "k1", "k2", "k3"]),
            headers={"n": random.randrange(4)},
        )
        if random.random() < 0.2:
            await q.claim("orders")
    for text in ("n = 0", "n > 1", "n IS NOT NULL", "FALSE"):
        for start in (0, random.randrange(40)):
            preview = await q.preview(text, start=start)
            assert preview.scanned == 40 - start
            await q.create_queue("late", text, start=Start("offset", start))
            assert (await q.route("late")).assigned == preview.count
            assert (await q.stats("late")).available == preview.count
            await q.delete_queue("late")


@law("R1")
@pytest.mark.parametrize("text, expected", [("n = 0", []), ("n >= 0", [1])])
async def test_a_sample_shows_what_is_counted(q: Broker, text: str, expected: list[int]) -> None:
    for n in range(2):
        await q.publish("orders", b"", key="k", headers={"n": n})
    preview = await q.preview(text)
    assert preview.count == len(expected)
    assert [entry.message.headers["n"] for entry in preview.sample] == expected


# -- readers ---------------------------------------------------------------------------


@law("L2")
async def test_reading_the_log_page_by_page(q: Broker) -> None:
    await q.publish_batch("orders", [NewMessage(b"%d" % n) for n in range(7)])
    assert await q.log_end() == 7
    offset, seen = 0, []
    while offset < await q.log_end():
        page = await q.read_log(offset, limit=3, payloads=True)
        seen += [entry.payload for entry in page.entries]
        offset = page.next_offset
    assert seen == [b"%d" % n for n in range(7)]
    beyond = await q.read_log(2**53)
    assert (beyond.entries, beyond.next_offset) == ((), 2**53)


async def test_a_message_and_its_history(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("one", max_attempts=1)
    await q.create_queue("two")
    published = await q.publish("orders", b"payload")
    (delivery,) = await q.claim("one", consumer="worker")
    clock.advance(5)
    await q.settle("one", [Ack(delivery.receipt)], publish=[Outgoing("next", [NewMessage(b"")])])
    found = await q.message(published.id)
    assert (found.payload, found.message.topic) == (b"payload", "orders")
    assert [(item.queue, item.state) for item in found.deliveries] == [
        ("one", State.DONE),
        ("two", State.AVAILABLE),
    ]
    events = [event for event in await q.history(published.id) if event.queue == "one"]
    assert [event.transition.value for event in events] == ["publish", "claim", "ack"]
    assert events[1].consumer == "worker"
    assert events[2].at == clock.now()
