"""Webhooks: events reach a real HTTP server, signed, at least once, with bounds on the calls."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Backoff, Broker, BrokerOptions, EngineOptions, Nack
from penstock.broker.webhook_events import WEBHOOK_KIND, decode_webhook
from penstock.broker.webhooks import STATE_KIND
from penstock.keepers import Keepers, WebhookCalls
from penstock.keepers import webhook_http as http
from penstock.keepers import webhooks as keeper
from penstock.keepers.queue_watch import REMIND_MS, WatchedState, state_events
from penstock.model.delivery import QueueStats
from penstock.model.message import Offset
from penstock.model.webhooks import Webhook, WebhookOptions, is_public, webhook_queue
from tests.service.certificates import Pair, self_signed
from tests.unit.keepers.receiver import Receiver

PRIVATE = WebhookOptions(allow_private=True, timeout_ms=5_000)
EVENTS = ["message.done", "message.failed"]
HOOK = webhook_queue("hook")
OTHER_SECRET = "whsec_" + "A" * 32

Start = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Opens a store with only the keeper of webhooks, and a queue to watch."""
    opened: list[tuple[Broker, Keepers]] = []

    async def open_one(webhooks: WebhookOptions = PRIVATE) -> Broker:
        options = BrokerOptions(webhooks=webhooks)
        q = await penstock.open("memory://", options=options, keepers=False)
        calls = WebhookCalls(q.engine, options)
        keepers = Keepers(q.engine, q.engine.clock, [calls])
        q._background = keepers
        await q.create_queue("orders", "topic = 'orders'")
        keepers.start()
        opened.append((q, keepers))
        return q

    yield open_one
    for q, _ in opened:
        await q.close()


async def hook(q: Broker, url: str, **more: Any) -> str:
    """Put a webhook whose retries follow at once; returns its secret."""
    more = {"events": EVENTS, **more}
    new = await q.put_webhook("hook", url, **{"queue": "orders", **more})
    await q.update_queue(HOOK, backoff=Backoff(0, 0), max_attempts=3)
    return new.secret or ""


async def outcome(q: Broker, message_id: int) -> tuple[str, str | None]:
    result = await q.result(HOOK, message_id, wait_ms=30_000)
    assert result is not None
    return str(result.status), result.error


async def test_an_event_arrives_signed(start: Start) -> None:
    q = await start()
    async with Receiver() as receiver:
        secret = await hook(q, receiver.url, headers={"Authorization": "Bearer x"})
        sent = await q.test_webhook("hook")
        (call,) = await receiver.received(1)
        assert await outcome(q, sent.id) == ("done", None)
    assert call.path == "/hook?a=1"
    assert call.event["event"] == "webhook.test"
    assert call.event["queue"] == "orders"
    assert call.headers["Authorization"] == "Bearer x"
    assert call.headers["content-type"] == "application/json"
    assert call.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert call.headers["webhook-id"] == f"evt_default_{sent.id}"
    assert call.is_signed_with(secret)
    assert not call.is_signed_with(OTHER_SECRET)


@pytest.fixture
def certificate(tmp_path: Path) -> Iterator[Pair]:
    """Of a receiver; a context of the system's authorities made before or during a test is gone."""
    http._tls.cache_clear()
    yield self_signed(tmp_path)
    http._tls.cache_clear()


def receiver_tls(certificate: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    return context


async def test_an_event_arrives_over_tls(
    start: Start, certificate: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))
    q = await start()
    async with Receiver(tls=receiver_tls(certificate)) as receiver:
        secret = await hook(q, receiver.url)
        sent = await q.test_webhook("hook")
        (call,) = await receiver.received(1)
        assert await outcome(q, sent.id) == ("done", None)
    assert call.is_signed_with(secret)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_a_receiver_without_a_valid_certificate_gets_nothing(
    start: Start, certificate: Pair, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """No authority signed it, or it belongs to another address."""
    if host == "127.0.0.2":
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))
    q = await start()
    async with Receiver(tls=receiver_tls(certificate), host=host) as receiver:
        await hook(q, receiver.url)
        sent = await q.test_webhook("hook")
        status, error = await outcome(q, sent.id)
        assert status == "failed"
        assert "certificate verify failed" in str(error)
        assert receiver.calls == []


async def test_a_refused_event_is_retried_under_one_id_and_then_a_dead_letter(
    start: Start,
) -> None:
    q = await start()
    answers = ("500 No", "302 Found\r\nlocation: /other", "503 No")
    async with Receiver(*answers, "204 OK") as receiver:
        await hook(q, receiver.url)
        sent = await q.test_webhook("hook")
        assert await outcome(q, sent.id) == ("failed", f"127.0.0.1:{receiver.port}: HTTP 503")
        assert {call.path for call in receiver.calls} == {"/hook?a=1"}, "no redirect is followed"
        assert len({call.headers["webhook-id"] for call in receiver.calls}) == 1
        assert len(receiver.calls) == 3
        stats = await q.stats(f"{HOOK}.dlq")
        assert stats.available == 1
        await q.replay(HOOK, "failed")
        assert (await outcome(q, sent.id))[0] == "done"


async def test_a_receiver_that_is_gone_is_called_no_more(start: Start) -> None:
    q = await start()
    async with Receiver("410 Gone", "200 OK") as receiver:
        await hook(q, receiver.url)
        sent = await q.test_webhook("hook")
        await receiver.received(1)
        # The keeper claims no more, so the event that it released is there for another consumer.
        (released,) = await q.claim(HOOK, wait_ms=30_000)
        assert released.message.id == sent.id
        await q.release(released)
        disabled = await q.webhook("hook")
        assert not disabled.enabled
        assert disabled.disabled_because == "The receiver answered 410."
        await q.put_webhook("hook", receiver.url, queue="orders", events=EVENTS)
        assert (await outcome(q, sent.id))[0] == "done"
        assert len(receiver.calls) == 2


async def test_calls_in_progress_are_limited(start: Start) -> None:
    options = WebhookOptions(allow_private=True, concurrency=3, webhook_concurrency=2)
    q = await start(options)
    async with Receiver() as receiver:
        receiver.open.clear()
        for name in ("one", "two"):
            await q.put_webhook(name, receiver.url, queue="orders", events=EVENTS)
        sent = [
            (webhook_queue(name), (await q.test_webhook(name)).id)
            for name in ("one", "two")
            for _ in range(5)
        ]
        await receiver.received(3)
        first = await q.stats(webhook_queue("one"))
        second = await q.stats(webhook_queue("two"))
        receiver.open.set()
        for queue, message_id in sent:
            result = await q.result(queue, message_id, wait_ms=30_000)
            assert result is not None
            assert result.status == "done"
    assert receiver.most_active == 3
    assert max(first.in_flight, second.in_flight) == 2


async def test_closing_releases_the_events_of_calls_in_progress(start: Start) -> None:
    q = await start()
    async with Receiver() as receiver:
        receiver.open.clear()
        await hook(q, receiver.url)
        sent = await q.test_webhook("hook")
        await receiver.received(1)
        assert q._background is not None
        await q._background.stop()
        receiver.open.set()
        (waiting,) = (await q.peek(HOOK, "available")).items
        assert (waiting.message.id, waiting.attempts, waiting.released) == (sent.id, 1, 1)


async def test_no_call_goes_to_a_private_address(start: Start) -> None:
    q = await start(WebhookOptions())
    async with Receiver() as receiver:
        with pytest.raises(penstock.errors.BadInput) as refused:
            await hook(q, receiver.url)
        assert refused.value.field == "url"
        assert await q.webhooks() == ()
        # A name is looked up at the time of the call.
        await hook(q, f"http://localhost:{receiver.port}/")
        sent = await q.test_webhook("hook")
        status, error = await outcome(q, sent.id)
        assert status == "failed"
        assert error is not None
        assert "no public address" in error
        assert receiver.calls == []


async def test_the_connection_goes_to_an_address_that_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    connected: list[str] = []

    def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        found = ["10.0.0.1", "::ffff:127.0.0.1", "93.184.216.34", "169.254.169.254"]
        return [(0, 0, 0, "", (address, port)) for address in found]

    async def connect(host: str, port: int, **_: object) -> None:
        connected.append(host)
        raise OSError("not in a test")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    webhook = Webhook(id="x", url="http://rebinding.example/", queue="q", events=("message.done",))
    with pytest.raises(http.CallFailed):
        await http.post(webhook, {}, b"{}", WebhookOptions())
    assert (asked, connected) == (["rebinding.example"], ["93.184.216.34"])


async def test_a_name_server_that_does_not_answer_holds_up_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop's own threads stay free: a store in files needs them for its commits."""
    answered = threading.Event()

    def look_up(*_: object, **__: object) -> list[tuple[object, ...]]:
        answered.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    webhook = Webhook(id="x", url="http://slow.example/", queue="q", events=("message.done",))
    # As many as a loop can have.
    options = WebhookOptions(timeout_ms=60_000)
    calls = [asyncio.ensure_future(http.post(webhook, {}, b"", options)) for _ in range(64)]
    try:
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(int), 30) == 0
    finally:
        answered.set()
        await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize(
    "reply, delay_ms", [("503 No\r\nRetry-After: 7", 7_000), ("503 No\r\nretry-after: x", None)]
)
async def test_a_receiver_says_when_to_try_again(reply: str, delay_ms: int | None) -> None:
    async with Receiver(reply) as receiver:
        webhook = Webhook(id="x", url=receiver.url, queue="q", events=("message.done",))
        answer = await http.post(webhook, {}, b"{}", PRIVATE)
    assert (answer.status, answer.retry_after_ms, answer.ok) == (503, delay_ms, False)


@pytest.mark.parametrize("retry_after_ms, delay_ms", [(None, None), (0, 5_000), (9_000, 9_000)])
async def test_a_receiver_cannot_shorten_the_backoff(
    retry_after_ms: int | None, delay_ms: int | None
) -> None:
    async def post(*_: object) -> http.Reply:
        return http.Reply(429, retry_after_ms)

    options = BrokerOptions(engine=EngineOptions(jitter=lambda ceiling_ms: ceiling_ms))
    async with await penstock.open("memory://", options=options, keepers=False) as q:
        await q.create_queue("orders", "topic = 'orders'")
        await q.put_webhook("hook", "https://example.com/", queue="orders", events=EVENTS)
        await q.test_webhook("hook")
        (delivery,) = await q.claim(HOOK)
        ((name, value),) = await q.engine.list_documents(WEBHOOK_KIND)
        calls = WebhookCalls(q.engine, options, post)
        nack = await calls.call("default", decode_webhook(name, value), delivery)
    assert isinstance(nack, Nack)
    assert nack.delay_ms == delay_ms


async def test_a_silent_receiver_costs_one_timeout() -> None:
    async with Receiver() as receiver:
        receiver.open.clear()
        webhook = Webhook(id="x", url=receiver.url, queue="q", events=("message.done",))
        options = WebhookOptions(allow_private=True, timeout_ms=20)
        with pytest.raises(http.CallFailed, match="no reply within 20 ms"):
            await http.post(webhook, {}, b"{}", options)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "2001:0:a00:1::1",
        "fec0::1",
        "::93.184.216.34",
        "64:ff9b:1::5db8:d822",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ip_address(address))


# -- the ends of deliveries --------------------------------------------------------------


async def test_the_ends_of_deliveries_arrive_by_what_the_webhook_asks_for(start: Start) -> None:
    q = await start()
    await q.create_queue("other", "topic = 'orders'", events=["done"])
    async with Receiver() as every, Receiver() as dead:
        await hook(q, every.url, events=["message.done", "message.failed", "message.expired"])
        await q.put_webhook("dead", dead.url, queue="orders", events=["message.dead_lettered"])
        await q.publish_batch("orders", [penstock.NewMessage(b"") for _ in range(3)])
        done, failed, gone = await q.claim("orders", limit=3)
        await q.ack(done)
        await q.reject(failed, "bad")
        await q.update_queue("orders", dead_letters=False)
        await q.reject(gone, "worse")
        for delivery in await q.claim("other", limit=3):
            await q.ack(delivery)
        calls = await every.received(3)
        assert {(call.event["event"], call.event["message_id"]) for call in calls} == {
            ("message.done", done.message.id),
            ("message.failed", failed.message.id),
            ("message.failed", gone.message.id),
        }
        (kept,) = await dead.received(1)
        assert (kept.event["message_id"], kept.event["error"]) == (failed.message.id, "bad")


async def test_a_queue_that_a_publish_created_again_reports_from_the_next_pass_on(
    start: Start,
) -> None:
    q = await start()
    assert q._background is not None
    await q._background.stop()
    await hook(q, "https://example.com/")
    await q.delete_queue("orders")
    await q.publish("orders", b"")
    assert (await q.queue("orders")).policy.events == ()
    server = WebhookCalls(q.engine, q.options)
    await server.run()
    await server.close()
    assert (await q.queue("orders")).policy.events == ("done", "failed")


# -- the state of a queue ----------------------------------------------------------------


def counted(available: int, depth: int | None = None) -> QueueStats:
    delayed = 0 if depth is None else depth - available
    return QueueStats(
        available=available,
        delayed=delayed,
        in_flight_by_consumer={},
        watermark=Offset(0),
        lag=0,
    )


def test_an_event_for_the_first_delivery_and_a_reminder_if_none_is_claimed() -> None:
    webhook = Webhook(id="x", url="", queue="q", events=("queue.nonempty",))

    def look(state: WatchedState, available: int, now: int, idle_ms: int) -> tuple[Any, list[str]]:
        return state_events(webhook, state, counted(available), now, idle_ms)

    state, events = look(WatchedState(), 0, 1_000, 0)
    assert events == []
    state, events = look(state, 5, 2_000, 0)
    assert events == ["queue.nonempty"]
    state, events = look(state, 9, 3_000, 1_000)
    assert events == []
    state, events = look(state, 9, 2_000 + REMIND_MS, 500)
    assert events == [], "somebody claims"
    state, events = look(state, 9, 2_500 + REMIND_MS, REMIND_MS)
    assert events == ["queue.nonempty"]
    state, events = look(state, 0, 3_000 + REMIND_MS, 0)
    state, events = look(state, 1, 4_000 + REMIND_MS, 0)
    assert events == ["queue.nonempty"]
    assert state.number == 3


def test_the_depth_fires_once_until_it_has_fallen() -> None:
    webhook = Webhook(id="x", url="", queue="q", events=("queue.depth",), threshold=10)
    state = WatchedState()
    fired = []
    for depth in (10, 11, 12, 9, 11, 8, 10, 11):
        state, events = state_events(webhook, state, counted(0, depth), 0, 0)
        fired.append(len(events))
    assert fired == [0, 1, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("at_once", [1, 100])
async def test_each_queue_of_a_pattern_has_a_state_of_its_own(
    start: Start, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """If they are too many to look at in one pass, they take turns."""
    monkeypatch.setattr(keeper, "QUEUES_AT_ONCE", at_once)
    q = await start()
    await q.create_queue("orders-eu", "topic = 'orders-eu'")
    await q.create_queue("bills", "topic = 'bills'")
    async with Receiver() as receiver:
        watched: Any = {"events": ["queue.nonempty", "queue.depth"], "threshold": 1}
        await q.put_webhook("hook", receiver.url, queue="orders*", **watched)
        assert q._background is not None
        await q._background.stop()
        server = WebhookCalls(q.engine, q.options)

        async def look() -> None:
            for _ in range(3 if at_once == 1 else 1):
                await server.run()

        for topic in ("orders", "bills", "bills"):
            await q.publish(topic, b"")
        await look()
        await q.publish("orders-eu", b"")
        await q.publish("orders-eu", b"")
        await look()
        calls = await receiver.received(3)
        assert sorted((call.event["queue"], call.event["event"]) for call in calls) == [
            ("orders", "queue.nonempty"),
            ("orders-eu", "queue.depth"),
            ("orders-eu", "queue.nonempty"),
        ]
        (delivery,) = await q.claim("orders")
        await q.ack(delivery)
        await look()
        await q.publish("orders", b"")
        await look()
        assert len(await receiver.received(4)) == 4
        await q.delete_queue("orders-eu")
        await server.run()
        states = [name for name, _ in await q.engine.list_documents(STATE_KIND)]
        assert states == ["default/hook/orders"], "nothing is kept about a queue that is gone"
        await q.delete_webhook("hook")
        assert await q.engine.list_documents(STATE_KIND) == ()
        await server.close()


async def test_a_queue_that_a_publish_created_is_found_by_a_pattern(start: Start) -> None:
    q = await start()
    assert q._background is not None
    await q._background.stop()
    await hook(q, "https://example.com/", queue="n*")
    await q.put_topic("now", penstock.TopicPolicy(queue_defaults={"events": ["failed"]}))
    await q.publish("now", b"")
    (delivery,) = await q.claim("now")
    await q.reject(delivery)
    assert (await q.stats(HOOK)).available == 1, "it reports from its first delivery on"
    await q.publish("new", b"")
    await q.publish("other", b"")
    server = WebhookCalls(q.engine, q.options)
    await server.run()
    await server.close()
    assert (await q.queue("new")).policy.events == ("done", "failed")
    assert (await q.queue("other")).policy.events == ()
    assert (await q.queue("orders")).policy.events == ()


async def test_two_servers_send_one_event(start: Start) -> None:
    q = await start()
    async with Receiver() as receiver:
        await hook(q, receiver.url, events=["queue.nonempty", "queue.depth"], threshold=1)
        assert q._background is not None
        await q._background.stop()
        servers = [WebhookCalls(q.engine, q.options) for _ in range(2)]
        await asyncio.gather(*(server.run() for server in servers))
        await q.publish("orders", b"")
        await q.publish("orders", b"")
        await asyncio.gather(*(server.run() for server in servers))
        await asyncio.gather(*(server.run() for server in servers))
        calls = await receiver.received(2)
        for server in servers:
            await server.close()
    assert sorted(call.event["event"] for call in calls) == ["queue.depth", "queue.nonempty"]
    assert {call.event["available"] for call in calls} == {2}
    log = await q.read_log()
    assert [entry.message.topic for entry in log.entries].count("penstock.events") == 2
