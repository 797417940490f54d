"""Sharing requests and connections, credentials, TLS, traces: what a program relies on."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    use_span,
)

from penstock import Ack, NewMessage, Outgoing
from penstock.broker import Broker
from penstock.client import Client, connect
from penstock.client.ids import Ids
from penstock.errors import BadInput, StaleReceipt, Unauthenticated, Unreachable
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from penstock.wire.bodies import PublishBody
from tests.unit.client.conftest import QUICK, application
from tests.unit.client.hosting import Fault, Host

pytestmark = pytest.mark.timeout(60)

SPAN = NonRecordingSpan(
    SpanContext(
        int("1" * 32, 16),
        int("2" * 16, 16),
        is_remote=False,
        trace_flags=TraceFlags(1),
        trace_state=TraceState([("vendor", "7")]),
    )
)


def bodies(host: Host) -> list[PublishBody]:
    decoder = msgspec.msgpack.Decoder(PublishBody)
    return [decoder.decode(seen.body) for seen in host.requests if "/messages" in seen.path]


def published(host: Host) -> list[list[NewMessage]]:
    return [body.messages for body in bodies(host)]


# -- batching ----------------------------------------------------------------------------


async def test_concurrent_publishes_share_requests(q: Client, host: Host, broker: Broker) -> None:
    async def produce(task: int) -> None:
        for n in range(10):
            await q.publish("t", b"%d.%d" % (task, n))

    await asyncio.gather(*(produce(task) for task in range(64)))
    assert await broker.log_end() == 640
    assert len(host.requests) < 64


async def test_a_lone_publish_is_a_request_of_its_own(q: Client, host: Host) -> None:
    for n in range(3):
        await q.publish("t", b"%d" % n)
    assert [len(batch) for batch in published(host)] == [1, 1, 1]


@law("P2")
async def test_a_batch_stays_one_request(q: Client, host: Host) -> None:
    await asyncio.gather(
        q.publish("t", b"single"),
        q.publish_batch("t", [NewMessage(b"1"), NewMessage(b"2")]),
        q.publish("t", b"another"),
    )
    assert sorted(len(batch) for batch in published(host)) == [2, 2]


@law("E1")
async def test_a_bad_message_is_its_own_callers_business(q: Client, broker: Broker) -> None:
    answers = await asyncio.gather(
        q.publish("t", b"good"),
        q.publish("t", b"bad", priority=12),
        q.publish("t", b"unsendable", headers={"x": object()}),  # type: ignore[dict-item]
        q.publish("t", b"also good"),
        return_exceptions=True,
    )
    assert [isinstance(answer, BadInput) for answer in answers] == [False, True, True, False]
    assert await broker.log_end() == 2


@law("S1")
async def test_settlements_share_requests_and_each_gets_its_own_outcome(
    q: Client, host: Host, broker: Broker
) -> None:
    await q.create_queue("jobs")
    await q.publish_batch("t", [NewMessage(b"")] * 20)
    deliveries = await q.claim("jobs", limit=20)
    await broker.ack(deliveries[7])
    await broker.release(deliveries[8])
    answers = await asyncio.gather(
        *(q.ack(item) for item in deliveries[:15]),
        *(q.nack(item, "later") for item in deliveries[15:19]),
        q.reject(deliveries[19], "no"),
        return_exceptions=True,
    )
    assert [n for n, answer in enumerate(answers) if isinstance(answer, StaleReceipt)] == [8]
    assert len([seen for seen in host.requests if "/settlements" in seen.path]) == 1
    stats = await broker.stats("jobs")
    assert (stats.done, stats.failed, stats.delayed, stats.available) == (14, 1, 4, 1)


async def test_settlements_wait_for_the_settle_in_progress(host: Host, broker: Broker) -> None:
    """The linger is a minute, so they are sent because the first settle has returned."""
    may_settle = asyncio.Event()
    served = host.app

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if "/settlements" in scope["path"]:
            await may_settle.wait()
        await served(scope, receive, send)

    host.app = slow
    await broker.create_queue("jobs")
    await broker.publish_batch("t", [NewMessage(b"")] * 3)
    async with connect(host.url, options=replace(QUICK, linger_ms=60_000)) as q:
        first, *others = await q.claim("jobs", limit=3)
        acks = [asyncio.ensure_future(q.ack(first))]
        await host.arrivals(1, "/settlements")
        for delivery in others:
            acks.append(asyncio.ensure_future(q.ack(delivery)))
            await asyncio.sleep(0)
        may_settle.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*acks)
    assert len(await host.arrivals(1, "/settlements")) == 2


async def test_what_the_caller_changes_afterwards_is_not_sent(q: Client, host: Host) -> None:
    headers: dict[str, str | int | float | bool] = {"n": 1}
    publishing = asyncio.ensure_future(q.publish("t", b"x", headers=headers))
    await asyncio.sleep(0)
    headers["n"] = 2
    await publishing
    assert published(host)[0][0].headers == {"n": 1}


# -- ids ---------------------------------------------------------------------------------


@law("P4")
async def test_every_publish_has_an_id_of_its_own(q: Client, host: Host) -> None:
    await q.publish("t", b"1")
    await q.publish("t", b"2", id="mine")
    await q.publish_batch("t", [NewMessage(b"3"), NewMessage(b"4", id="4")])
    await q.publish_batch("t", [NewMessage(b"5")], batch_id="its own", batch_ms=7)
    ids = [body.batch_id for body in bodies(host)]
    assert [body.batch_ms for body in bodies(host)] == [None, None, None, 7]
    assert None not in ids
    assert len(set(ids)) == 4
    assert ids[3] == "its own"
    # A record a request, not one a message: the messages are as the program made them.
    sent = [item.id for batch in published(host) for item in batch]
    assert sent == [None, "mine", None, "4", None]


@law("P4")
async def test_a_repetition_has_the_same_id(q: Client, host: Host) -> None:
    host.fault(Fault.LOSE, times=2)
    await q.publish("t", b"x")
    ids = [body.batch_id for body in bodies(host)]
    assert len(ids) == 3
    assert len(set(ids)) == 1


@law("P4")
def test_two_clients_share_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = iter(["a", "b", "c"])
    one, two = Ids(lambda: next(prefixes)), Ids(lambda: next(prefixes))
    drawn = [one.next(), one.next(), two.next()]
    # A forked child has the same object, and must not go on with its parent's ids.
    monkeypatch.setattr("os.getpid", lambda: -1)
    drawn.append(one.next())
    assert len(set(drawn)) == 4
    assert drawn[3].startswith("c")


# -- connections -------------------------------------------------------------------------


async def test_connections_are_kept(q: Client, host: Host) -> None:
    await q.create_queue("jobs")
    for _ in range(10):
        await q.publish("t", b"x")
        await q.ack((await q.claim("jobs"))[0])
    assert host.connections_made == 1


async def test_whoever_waits_keeps_nobody_from_publishing(host: Host, broker: Broker) -> None:
    await broker.create_queue("jobs")
    async with connect(host.url, options=replace(QUICK, max_connections=1)) as q:
        waiting = asyncio.create_task(q.claim("jobs", wait_ms=20_000))
        await host.arrivals(1, "/claims")
        async with asyncio.timeout(60):
            await q.publish("t", b"x")
            assert len(await waiting) == 1


async def test_consuming_over_http(q: Client, broker: Broker) -> None:
    await q.create_queue("jobs", max_attempts=1)
    await q.publish_batch("t", [NewMessage(b"%d" % n) for n in range(5)])
    seen = []
    async with asyncio.timeout(20), q.consume("jobs", consumer="me") as leases:
        async for lease in leases:
            async with lease:
                seen.append(lease.payload)
                if lease.payload == b"3":
                    raise ValueError("three")
            if len(seen) == 5:
                break
    stats = await broker.stats("jobs")
    assert (stats.done, stats.failed, stats.in_flight) == (4, 1, 0)


# -- credentials -------------------------------------------------------------------------


async def test_a_credential_is_sent_with_every_call(host: Host) -> None:
    async with connect(host.url, credential="psk_1", options=QUICK) as q:
        await q.queues()
        await q.publish("t", b"x")
    async with connect(host.url.replace("://", "://:psk_2@"), options=QUICK) as q:
        await q.queues()
    async with connect(host.url, options=QUICK) as q:
        await q.queues()
    sent = [seen.headers.get("Authorization") for seen in host.requests]
    assert sent == ["Bearer psk_1", "Bearer psk_1", "Bearer psk_2", None]


@law("T1")
async def test_a_server_that_asks_for_credentials(broker: Broker, clock: FakeClock) -> None:
    host = Host(application(broker, auth=True))
    await host.start()
    async with connect(host.url, options=QUICK) as q:
        with pytest.raises(Unauthenticated):
            await q.publish("t", b"x")
    assert len(host.requests) == 1
    await host.stop()


# -- TLS ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "cert.pem", folder / "key.pem"


async def test_tls(broker: Broker, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    host = Host(application(broker))
    await host.start(tls)
    url = f"https://localhost:{host.port}"
    async with connect(url, ca=str(cert), options=QUICK) as q:
        await q.publish("t", b"x" * 300_000)
    trusting = ssl.create_default_context(cafile=cert)
    async with connect(url, ca=trusting, options=QUICK) as q:
        assert await q.log_end() == 1
    # A stranger's certificate does not become good by waiting: it is told at once.
    async with connect(url, options=QUICK) as q, asyncio.timeout(60):
        with pytest.raises(Unreachable, match="certificate"):
            await q.log_end()
    assert len(host.requests) == 2
    await host.stop()


# -- transactions ------------------------------------------------------------------------


@law("E1")
async def test_a_server_cannot_publish_in_a_transaction_of_its_caller(
    q: Client, broker: Broker
) -> None:
    for publish in (
        q.publish("t", b"", connection=object()),
        q.publish_batch("t", [NewMessage(b"")], connection=object()),
    ):
        with pytest.raises(BadInput) as caught:
            await publish
        assert caught.value.field == "connection"
    assert (await broker.read_log()).entries == ()


async def test_a_server_that_asks_for_a_certificate(
    broker: Broker, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(cert)
    host = Host(application(broker))
    await host.start(tls)
    url = f"https://localhost:{host.port}"
    async with connect(url, ca=str(cert), cert=str(cert), key=str(key), options=QUICK) as q:
        assert await q.log_end() == 0
    once = replace(QUICK, retries=0)
    async with connect(url, ca=str(cert), options=once) as q:
        with pytest.raises(Unreachable):
            await q.log_end()
    await host.stop()


# -- traces ------------------------------------------------------------------------------


async def test_a_message_carries_the_trace_that_it_was_published_in(
    q: Client, host: Host, broker: Broker
) -> None:
    await q.create_queue("jobs", "topic = 't'")
    with use_span(SPAN):
        await asyncio.gather(
            q.publish("t", b"1", headers={"n": 1}),
            q.publish("t", b"2", headers={"traceparent": "own"}),
        )
        await q.publish_batch("t", [NewMessage(b"3")])
        (delivery,) = await q.claim("jobs")
        outgoing = [Outgoing("u", [NewMessage(b"4")])]
        await q.settle("jobs", [Ack(delivery.receipt)], publish=outgoing)
    await q.publish("t", b"5")
    headers = [entry.message.headers for entry in (await broker.read_log()).entries]
    trace = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "tracestate": "vendor=7"}
    assert headers == [{**trace, "n": 1}, {"traceparent": "own"}, trace, trace, {}]
