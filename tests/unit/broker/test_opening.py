"""Opening a store by URL with its keepers, closing it, and the tenants that share it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

import penstock
from penstock import Ack, Broker, BrokerOptions, Delivery, EngineOptions, Limits, NewMessage
from penstock.errors import (
    BadInput,
    BadName,
    BadUrl,
    StaleReceipt,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreUnavailable,
    UnknownMessage,
    UnknownQueue,
)
from penstock.model.identity import StoreIdentity
from penstock.model.runs import Run
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


# -- URLs ------------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "store",
        "/var/lib/store",
        "postgres://localhost/store",
        "memory",
        "http://[::1",
        None,
        5,
        b"memory://",
        ["memory://"],
    ],
    ids=repr,
)
async def test_a_url_that_no_engine_answers_to(url: Any) -> None:
    with pytest.raises(BadUrl) as caught:
        await penstock.open(url)
    assert (caught.value.field, caught.value.status) == ("url", 400)
    assert "Use a URL such as rocksdb:///path/to/store, files:///path/to/store" in str(caught.value)


@law("E1")
async def test_the_schemes_there_are_are_named() -> None:
    with pytest.raises(BadUrl, match="schemes are files, memory, mysql, postgresql, rocksdb"):
        await penstock.open("redis://localhost")


@law("E1")
@pytest.mark.parametrize("url", ["http://localhost:8080", "https://:secret@queue.example.org"])
async def test_the_url_of_a_server_is_for_connect(url: str) -> None:
    with pytest.raises(BadUrl, match=r"is a server: use penstock\.connect") as caught:
        await penstock.open(url)
    assert "secret" not in str(caught.value)


@law("E1")
@pytest.mark.parametrize(
    "url", ["memory://host", "memory:///path", "memory://?a=1", "memory://#a", "memory://u@h:1"]
)
async def test_memory_has_no_place(url: str) -> None:
    with pytest.raises(BadUrl) as caught:
        await penstock.open(url)
    assert caught.value.field == "url"


@pytest.mark.parametrize("url", ["memory://", "memory:", "MEMORY://", "memory:///"])
async def test_memory_however_it_is_written(url: str) -> None:
    async with penstock.open(url) as q:
        assert q.engine.capabilities.engine == "memory"
        assert not q.engine.capabilities.persistent


@law("E1")
@pytest.mark.parametrize(
    "url",
    ["rocksdb:", "rocksdb://", "rocksdb://host/path", "rocksdb:///p?sync=no", "rocksdb:///p#x"],
)
async def test_rocksdb_is_a_path_and_nothing_else(url: str) -> None:
    with pytest.raises(BadUrl, match="three slashes") as caught:
        await penstock.open(url)
    assert caught.value.field == "url"


@law("E1")
async def test_a_path_with_a_nul(tmp_path: Path) -> None:
    with pytest.raises(BadUrl) as caught:
        await penstock.open(f"rocksdb://{tmp_path}/a%00b")
    assert (caught.value.field, caught.value.status) == ("url", 400)
    assert is_empty(tmp_path)


@law("E1")
async def test_a_path_that_is_not_unicode(tmp_path: Path) -> None:
    with pytest.raises(BadUrl) as caught:
        await penstock.open(f"rocksdb://{tmp_path}/\ud800")
    assert (caught.value.field, caught.value.status) == ("url", 400)


@law("E1")
@pytest.mark.parametrize("below", ["", "/store", "/deep/er"])
async def test_a_path_that_cannot_be_a_folder(tmp_path: Path, below: str) -> None:
    """Below a file nothing can be made, not even by root."""
    file = tmp_path / "file"
    file.write_bytes(b"kept")
    with pytest.raises(StoreUnavailable) as caught:
        await penstock.open(f"rocksdb://{file}{below}")
    assert (caught.value.field, caught.value.status) == ("url", 503)
    assert str(file) in caught.value.detail
    assert file.read_bytes() == b"kept"


@pytest.mark.parametrize("name", ["with space", "100%", "ümlaut", "a?b", "a#b", "deep/er/still"])
async def test_any_path_can_be_written_as_a_url(tmp_path: Path, name: str) -> None:
    async with penstock.open(f"rocksdb://{quote(str(tmp_path / name))}") as q:
        await q.publish("orders", b"")
    assert (tmp_path / name / "CURRENT").is_file()


async def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with penstock.open("rocksdb:data/store") as q:
        await q.publish("orders", b"kept")
    async with penstock.open(f"rocksdb://{tmp_path}/data/store") as q:
        assert [item.payload for item in await q.claim("orders")] == [b"kept"]


# -- the store below -------------------------------------------------------------------


@law("E1")
async def test_a_store_that_is_open_already(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/store"
    async with penstock.open(url) as q:
        with pytest.raises(StoreLocked) as caught:
            await penstock.open(url)
        assert (caught.value.field, caught.value.status) == ("url", 503)
        assert caught.value.retryable
        await q.publish("orders", b"not disturbed")
    async with penstock.open(url) as q:
        assert await q.log_end() == 1


@law("X1")
async def test_a_store_that_is_damaged(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/store"
    async with penstock.open(url) as q:
        await q.publish("orders", b"")
    (manifest,) = (tmp_path / "store").glob("MANIFEST-*")
    damaged = b"x" * 50 + manifest.read_bytes()[50:]
    manifest.write_bytes(damaged)
    with pytest.raises(StoreCorrupt) as caught:
        await penstock.open(url)
    assert (caught.value.status, caught.value.law) == (503, "X1")
    assert str(tmp_path) in caught.value.detail
    assert manifest.read_bytes() == damaged


@law("E1")
@pytest.mark.parametrize("tenant", ["", "a b", None, 5, ["t"], "é", "t" * 129])
async def test_a_bad_tenant_leaves_the_store_closed(tmp_path: Path, tenant: Any) -> None:
    url = f"rocksdb://{tmp_path}/store"
    with pytest.raises(BadName) as caught:
        await penstock.open(url, tenant=tenant)
    assert (caught.value.field, caught.value.limit) == ("tenant", 128)
    assert is_empty(tmp_path)
    async with penstock.open(url) as q:  # Not locked.
        assert await q.queues() == ()


GIB: Final = 1024**3
#: The last millisecond of the year 9999.
LAST_MS: Final = 253_402_300_799_999


@law("E1")
@pytest.mark.parametrize(
    "field, value, limit",
    [
        *[("payload_bytes", bad, GIB) for bad in (-1, GIB + 1, True, 1.0, "1", None)],
        *[("log_retention_ms", bad, LAST_MS) for bad in (-1, LAST_MS + 1, True, 1.0, "1", None)],
    ],
)
async def test_limits_out_of_bounds_open_nothing(
    tmp_path: Path, field: str, value: Any, limit: int
) -> None:
    chosen: dict[str, Any] = {field: value}
    options = BrokerOptions(engine=EngineOptions(limits=Limits(**chosen)))
    with pytest.raises(BadInput) as caught:
        await penstock.open(f"rocksdb://{tmp_path}/store", options=options)
    assert (caught.value.field, caught.value.limit) == (field, limit)
    assert caught.value.status == 400
    assert is_empty(tmp_path)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(payload_bytes=0, log_retention_ms=0),
        Limits(payload_bytes=GIB, log_retention_ms=LAST_MS),
    ],
    ids=["least", "most"],
)
async def test_limits_at_their_bounds(limits: Limits) -> None:
    options = BrokerOptions(engine=EngineOptions(limits=limits))
    async with penstock.open("memory://", options=options) as q:
        await q.publish("orders", b"")
        await q.sweep()
        assert await q.log_end() == 1


@law("E1")
@pytest.mark.parametrize("limits", [None, 5, {"payload_bytes": 1}], ids=repr)
async def test_limits_that_are_none(limits: Any) -> None:
    options = BrokerOptions(engine=EngineOptions(limits=limits))
    with pytest.raises(BadInput) as caught:
        await penstock.open("memory://", options=options)
    assert caught.value.field == "limits"


# -- opening and closing ---------------------------------------------------------------


async def test_open_by_await(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/store"
    q = await penstock.open(url, tenant="acme")
    assert isinstance(q, Broker)
    assert q.tenant == "acme"
    await q.publish("orders", b"kept")
    await q.close()
    async with await penstock.open(url, tenant="acme") as again:
        assert await again.log_end() == 1
    with pytest.raises(StoreClosed):
        await again.log_end()


async def test_open_as_a_context(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/store"
    opened: list[Broker] = []

    async def crash() -> None:
        async with penstock.open(url) as q:
            opened.append(q)
            await q.publish("orders", b"kept")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await crash()
    with pytest.raises(StoreClosed):
        await opened[0].log_end()
    async with penstock.open(url) as q:
        assert await q.log_end() == 1


def test_nothing_is_opened_before_it_is_awaited(tmp_path: Path) -> None:
    penstock.open(f"rocksdb://{tmp_path}/store")
    assert list(tmp_path.iterdir()) == []


@law("P1")
async def test_what_is_in_flight_when_the_store_closes(tmp_path: Path) -> None:
    """Close commits what is staged, whether or not its caller still waits."""
    url = f"rocksdb://{tmp_path}/store"
    q = await penstock.open(url)
    published, _ = await asyncio.gather(q.publish("orders", b"kept"), q.close())
    assert published.id == 0
    async with penstock.open(url) as q:
        assert [item.payload for item in await q.claim("orders")] == [b"kept"]


@pytest.mark.parametrize("url", ["memory://", "rocksdb://{path}/store"])
async def test_closing_twice_is_fine(tmp_path: Path, url: str) -> None:
    q = await penstock.open(url.format(path=tmp_path))
    await q.close()
    await q.close()
    q = await penstock.open(url.format(path=tmp_path))
    await asyncio.gather(q.close(), q.close())


Verb = Callable[[Broker, Delivery], Awaitable[object]]
RUN: Final = Run(id="r1", job="archive", state="running", started_at=0, updated_at=0)
VERBS: Final[dict[str, Verb]] = {
    "ack": lambda q, d: q.ack(d),
    "archived": lambda q, d: q.archived(0, StoreIdentity("0" * 32, "0" * 32)),
    "batch_log": lambda q, d: q.batch_log("orders", "b", 0),
    "begin_write": lambda q, d: q.begin_write("orders", "w", "r"),
    "claim": lambda q, d: q.claim("orders"),
    "create_queue": lambda q, d: q.create_queue("other"),
    "delete_queue": lambda q, d: q.delete_queue("orders"),
    "delete_topic": lambda q, d: q.delete_topic("orders"),
    "explain": lambda q, d: q.explain("orders", 0),
    "explain_to": lambda q, d: q.explain_to("orders", 0, lambda _: True),
    "extend": lambda q, d: q.extend(d, 1),
    "finish_write": lambda q, d: q.finish_write("orders", "w", "r", 1),
    "history": lambda q, d: q.history(0),
    "identity": lambda q, d: q.identity(),
    "join": lambda q, d: q.join("orders", "me"),
    "leave": lambda q, d: q.leave("orders", "me"),
    "delete_webhook": lambda q, d: q.delete_webhook("w"),
    "log_end": lambda q, d: q.log_end(),
    "log_splits": lambda q, d: q.log_splits(0, 1, 1),
    "log_start": lambda q, d: q.log_start(),
    "log_trimmed": lambda q, d: q.log_trimmed(),
    "message": lambda q, d: q.message(0),
    "nack": lambda q, d: q.nack(d),
    "pause": lambda q, d: q.pause("orders"),
    "peek": lambda q, d: q.peek("orders"),
    "preview": lambda q, d: q.preview("TRUE"),
    "queue_log": lambda q, d: q.queue_log("orders", 0),
    "put_webhook": lambda q, d: q.put_webhook(
        "w", "https://example.com", queue="orders", events=["message.done"]
    ),
    "test_webhook": lambda q, d: q.test_webhook("w"),
    "webhook": lambda q, d: q.webhook("w"),
    "webhooks": lambda q, d: q.webhooks(),
    "publish": lambda q, d: q.publish("orders", b""),
    "publish_batch": lambda q, d: q.publish_batch("orders", [NewMessage(b"")]),
    "cancel": lambda q, d: q.cancel(0),
    "find": lambda q, d: q.find("orders", id="i"),
    "purge": lambda q, d: q.purge("orders", "available"),
    "put_report": lambda q, d: q.put_report("<p>"),
    "put_run": lambda q, d: q.put_run(RUN),
    "put_topic": lambda q, d: q.put_topic("orders"),
    "queue": lambda q, d: q.queue("orders"),
    "queue_history": lambda q, d: q.queue_history("orders"),
    "queues": lambda q, d: q.queues(),
    "read_history": lambda q, d: q.read_history(0),
    "read_log": lambda q, d: q.read_log(),
    "read_log_columns": lambda q, d: q.read_log_columns(0),
    "read_payloads": lambda q, d: q.read_payloads([0], [0], [0]),
    "reject": lambda q, d: q.reject(d),
    "release": lambda q, d: q.release(d),
    "replay": lambda q, d: q.replay("orders"),
    "report": lambda q, d: q.report(),
    "result": lambda q, d: q.result("orders", 0),
    "resume": lambda q, d: q.resume("orders"),
    "route": lambda q, d: q.route("orders"),
    "assign": lambda q, d: q.assign(
        "orders", filter="topic = 'orders'", start=0, end=1, offsets=[0]
    ),
    "run": lambda q, d: q.run("r1"),
    "runs": lambda q, d: q.runs(),
    "settle": lambda q, d: q.settle("orders", [Ack(d.receipt)]),
    "settle_and_claim": lambda q, d: q.settle_and_claim("orders", [Ack(d.receipt)]),
    "stats": lambda q, d: q.stats("orders"),
    "sweep": lambda q, d: q.sweep(),
    "failures": lambda q, d: q.failures("orders"),
    "topic": lambda q, d: q.topic("orders"),
    "topics": lambda q, d: q.topics(),
    "ensure_queue": lambda q, d: q.ensure_queue("other"),
    "put_queue": lambda q, d: q.put_queue("other"),
    "update_queue": lambda q, d: q.update_queue("orders", max_attempts=1),
}


#: The same verbs, by those who would wait.
WAITS: Final[dict[str, Verb]] = {
    "claim and wait": lambda q, d: q.claim("orders", wait_ms=30_000),
    "claim and wait for dead letters": lambda q, d: q.claim("orders.dlq", wait_ms=30_000),
    "result and wait": lambda q, d: q.result("orders", 0, wait_ms=30_000),
}
VERBS.update(WAITS)


def test_every_verb_is_in_the_table() -> None:
    verbs = {
        name
        for name, member in inspect.getmembers(Broker, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    # Filters are checked and completed, and settings are read, without the store.
    storeless = {"close", "end_consuming", "validate_filter", "complete_filter", "server_settings"}
    storeless |= {"most_apart"}  # The server asks before a claim, which then needs the store.
    assert verbs - storeless == VERBS.keys() - WAITS.keys()


@pytest.mark.parametrize("verb", VERBS)
async def test_a_closed_store_answers_to_nothing(options: BrokerOptions, verb: str) -> None:
    q = await penstock.open("memory://", options=options)
    await q.publish("orders", b"")
    (delivery,) = await q.claim("orders")
    await q.close()
    with pytest.raises(StoreClosed) as caught:
        await VERBS[verb](q, delivery)
    assert (caught.value.status, caught.value.retryable) == (503, False)
    assert isinstance(caught.value, StoreError)


async def test_a_closed_store_gives_nothing_even_to_a_throttled_claim(
    options: BrokerOptions,
) -> None:
    q = await penstock.open("memory://", options=options)
    await q.create_queue("orders", throughput_limit=1)
    await q.publish("orders", b"")
    await q.claim("orders")
    await q.close()
    with pytest.raises(StoreClosed):
        await q.claim("orders")


# -- keepers ---------------------------------------------------------------------------


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  (no event tells what keepers do)
            await asyncio.sleep(0)


async def test_keepers_see_to_what_nobody_calls_for(options: BrokerOptions) -> None:
    """With a clock that the test moves, and without a claim, a sweep or a route."""
    clock = options.engine.clock
    assert isinstance(clock, FakeClock)
    async with penstock.open("memory://", options=options) as q:

        async def counts() -> tuple[int, int, int]:
            stats = await q.stats("orders")
            return stats.delayed, stats.available, stats.expired

        async def is_swept() -> bool:
            return await counts() == (0, 1, 1)

        async def is_caught_up() -> bool:
            return (await q.queue("late")).cursor is None

        async def is_removed() -> bool:
            return await counts() == (0, 1, 0)

        await q.create_queue("orders", "topic = 'orders'", done_retention_s=60)
        await q.publish("orders", b"delayed", delay_ms=500)
        await q.publish("orders", b"short-lived", ttl_ms=500)
        assert await counts() == (1, 1, 0)
        clock.advance(1000)
        await until(is_swept)
        await q.create_queue("late", start="earliest")
        await until(is_caught_up)
        assert [item.payload for item in await q.claim("late", limit=9)] == [b"delayed"]
        clock.advance(2 * 60_000)
        await until(is_removed)


async def test_keepers_report_what_they_did(options: BrokerOptions) -> None:
    async with penstock.open("memory://", options=options) as q:

        async def have_run() -> bool:
            return all(report.runs for report in q.keepers)

        await until(have_run)
        assert [report.name for report in q.keepers] == ["sweep", "catch-up", "webhooks"]
        assert all(report.running and not report.failures for report in q.keepers)
        assert q.for_tenant("other").keepers == q.keepers
    assert not any(report.running for report in q.keepers)


async def test_a_store_without_keepers_is_left_alone(options: BrokerOptions) -> None:
    clock = options.engine.clock
    assert isinstance(clock, FakeClock)
    async with penstock.open("memory://", options=options, keepers=False) as q:
        await q.publish("orders", b"", delay_ms=500)
        await q.create_queue("late", start="earliest")
        for _ in range(5):
            clock.advance(10_000)
            await asyncio.sleep(0)
        assert q.keepers == ()
        assert (await q.stats("orders")).delayed == 1
        assert (await q.queue("late")).cursor == 0


@pytest.mark.parametrize("url", ["memory://", "rocksdb://{path}/store"])
async def test_no_keeper_outlives_the_store(tmp_path: Path, url: str) -> None:
    before = asyncio.all_tasks()
    async with penstock.open(url.format(path=tmp_path)) as q:
        await q.publish("orders", b"")
        assert len(asyncio.all_tasks() - before) >= 2
    assert asyncio.all_tasks() == before


# -- tenants ---------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "tenant",
    [
        "",
        "a b",
        "é",
        "t" * 129,
        None,
        5,
        ["t"],
    ],
)
async def test_a_tenant_that_is_not_a_name(q: Broker, tenant: Any) -> None:
    with pytest.raises(BadName) as caught:
        q.for_tenant(tenant)
    assert (caught.value.field, caught.value.limit) == ("tenant", 128)


@law("T1")
async def test_names_ids_and_counts_do_not_cross(q: Broker) -> None:
    other = q.for_tenant("other")
    assert (q.tenant, other.tenant) == ("default", "other")
    await q.create_queue("orders", max_attempts=2)
    await q.put_topic("orders")
    published = await q.publish("orders", b"mine", id="once")
    assert await other.queues() == ()
    assert await other.topics() == ()
    assert await other.log_end() == 0
    assert (await other.read_log()).entries == ()
    assert (await other.preview("TRUE")).count == 0
    with pytest.raises(UnknownQueue):
        await other.claim("orders")
    with pytest.raises(UnknownMessage):
        await other.message(published.id)
    twin = await other.publish("orders", b"theirs", id="once")
    assert not twin.duplicate
    assert [item.payload for item in await q.claim("orders", limit=9)] == [b"mine"]
    assert [item.payload for item in await other.claim("orders", limit=9)] == [b"theirs"]
    with pytest.raises(UnknownMessage):
        await q.message(twin.id)


@law("T1")
async def test_receipts_do_not_cross(q: Broker) -> None:
    other = q.for_tenant("other")
    for broker in (q, other):
        await broker.publish("orders", b"")
    (mine,) = await q.claim("orders")
    (theirs,) = await other.claim("orders")
    assert mine.receipt != theirs.receipt
    with pytest.raises(StaleReceipt):
        await other.ack(mine)
    assert (await other.stats("orders")).in_flight == 1
    assert (await q.ack(mine)).ok


async def test_a_tenant_has_one_view(q: Broker) -> None:
    other = q.for_tenant("other")
    assert other.for_tenant("default") is q
    assert q.for_tenant("other") is other
    assert q.for_tenant("default") is q
    assert other.for_tenant("third") is q.for_tenant("third")
    assert other.engine is q.engine


@pytest.mark.parametrize("closer", ["default", "other"])
async def test_closing_one_view_closes_all(options: BrokerOptions, closer: str) -> None:
    q = await penstock.open("memory://", options=options)
    views = [q, q.for_tenant("other")]
    async with q.for_tenant(closer):
        pass
    for view in views:
        with pytest.raises(StoreClosed):
            await view.log_end()
        await view.close()
