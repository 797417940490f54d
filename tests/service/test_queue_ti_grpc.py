"""queue-ti's own clients, unchanged, over real channels to a server process."""

from __future__ import annotations

import ast
import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from queueti import (
    AdminOptions,
    AsyncAdminClient,
    BatchOptions,
    ConnectOptions,
    ConsumerOptions,
    Message,
    PublishOptions,
    TopicConfig,
    connect,
)
from queueti.pb import queue_pb2 as pb
from queueti.pb.queue_pb2_grpc import QueueServiceStub

from penstock.client import connect as connect_natively
from penstock.testing.laws import law
from tests.service.certificates import self_signed
from tests.service.serving import Serve, Served, unused_port

INSECURE = ConnectOptions(insecure=True)
PAGE = Path(__file__).parents[2] / "docs" / "doors" / "queue-ti.md"
PASSWORD = "correct horse battery"
KILLS = 3


class Ti:
    """A server with the door, and the port of its gRPC service."""

    def __init__(self, server: Served, port: int) -> None:
        self.server = server
        self.address = f"127.0.0.1:{port}"
        self.port = port


@pytest.fixture(scope="module")
def ti(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ti]:
    """A server without auth."""
    yield from served(tmp_path_factory.mktemp("open"))


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ti]:
    """A server with auth."""
    yield from served(tmp_path_factory.mktemp("locked"), "--auth")


def served(folder: Path, *flags: str) -> Iterator[Ti]:
    serve, port = Serve(folder), unused_port()
    try:
        yield Ti(serve("--door", "queue-ti", "--queue-ti-grpc-port", str(port), *flags), port)
    finally:
        serve.end()


async def refused(call: Awaitable[Any]) -> str:
    """The code with which an RPC is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.details()
    return caught.value.code().name


# -- the client of queue-ti ----------------------------------------------------------------


async def test_the_sample_of_the_page(ti: Ti) -> None:
    """docs/doors/queue-ti.md, on another port and topic: other tests share the server."""
    [sample] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    code = compile(
        sample.replace("localhost:50051", ti.address).replace('"orders"', '"sampled"'),
        *("queue-ti.md", "exec"),
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    await eval(code, names)
    async with connect_natively(ti.server.url) as q:
        payloads = [entry.payload for entry in (await q.read_log(payloads=True)).entries]
    assert b'{"n": 7}' in payloads


async def test_its_client_produces_and_consumes(ti: Ti) -> None:
    client = await connect(ti.address, INSECURE)
    sent = PublishOptions(metadata={"source": "test"})
    made = [await client.producer().publish("mail", b"%d" % n, sent) for n in range(3)]
    seen: list[tuple[str, bytes, int]] = []
    finished = asyncio.Event()

    async def handle(message: Message) -> None:
        assert message.metadata == {"source": "test"}
        seen.append((message.id, message.payload, message.retry_count))
        if message.payload == b"1" and message.retry_count == 0:
            raise ValueError("not yet")
        if len(seen) == 4:
            finished.set()

    consumer = client.consumer("mail", ConsumerOptions(concurrency=1))
    consuming = asyncio.create_task(consumer.consume(handle))
    async with asyncio.timeout(30):
        await finished.wait()
    assert sorted(seen) == sorted(
        [(made[0], b"0", 0), (made[1], b"1", 0), (made[1], b"1", 1), (made[2], b"2", 0)]
    )
    # A message that comes while the consumer waits arrives too.
    finished.clear()
    seen.clear()
    seen += [("", b"", 0)] * 3
    await client.producer().publish("mail", b"late", sent)
    async with asyncio.timeout(30):
        await finished.wait()
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    await client.close()


async def test_its_client_consumes_batches_in_groups(ti: Ti) -> None:
    client = await connect(ti.address, INSECURE)
    async with AsyncAdminClient(ti.server.url, AdminOptions()) as admin:
        await admin.register_consumer_group("orders", "billing")
        assert await admin.list_consumer_groups("orders") == ["billing"]
        config = TopicConfig("orders", max_retries=1, replayable=True)
        assert (await admin.upsert_topic_config("orders", config)).max_retries == 1
        made = {await client.producer().publish("orders", b"%d" % n) for n in range(5)}
        seen: set[str] = set()
        finished = asyncio.Event()

        async def handle(batch: list[Message]) -> None:
            for message in batch:
                seen.add(message.id)
                await (message.nack("bad") if message.payload == b"4" else message.ack())
            if seen == made:
                finished.set()

        consumer = client.consumer("orders", ConsumerOptions(consumer_group="billing"))
        options = BatchOptions(batch_size=3, consumer_group="billing")
        consuming = asyncio.create_task(consumer.consume_batch(options, handle))
        async with asyncio.timeout(30):
            await finished.wait()
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        stats = {(stat.topic, stat.status): stat.count for stat in await admin.stats()}
        assert stats["orders.dlq", "pending"] == 1
        assert ("orders", "pending") not in stats
        await admin.unregister_consumer_group("orders", "billing")
    await client.close()


# -- every RPC -----------------------------------------------------------------------------


async def test_every_rpc_and_its_codes(ti: Ti) -> None:
    async with grpc.aio.insecure_channel(ti.address) as channel:
        stub = QueueServiceStub(channel)
        invalid, missing = "INVALID_ARGUMENT", "NOT_FOUND"
        assert await refused(stub.Enqueue(pb.EnqueueRequest(payload=b"x"))) == invalid
        assert await refused(stub.Enqueue(pb.EnqueueRequest(topic="t"))) == invalid
        dlq = pb.EnqueueRequest(topic="t.dlq", payload=b"x")
        assert await refused(stub.Enqueue(dlq)) == "INTERNAL"
        made = await stub.Enqueue(
            pb.EnqueueRequest(topic="t", payload=b"\x00\xff", metadata={"a": "b"}, key="k")
        )
        assert await refused(stub.Dequeue(pb.DequeueRequest())) == invalid
        zero = pb.DequeueRequest(topic="t", visibility_timeout_seconds=0)
        assert await refused(stub.Dequeue(zero)) == invalid
        assert await refused(stub.Dequeue(pb.DequeueRequest(topic="none"))) == missing
        found = await stub.Dequeue(pb.DequeueRequest(topic="t", visibility_timeout_seconds=60))
        assert (found.id, found.topic, found.payload) == (made.id, "t", b"\x00\xff")
        assert (dict(found.metadata), found.key) == ({"a": "b"}, "k")
        assert (found.retry_count, found.max_retries) == (0, 3)
        assert found.created_at.seconds > 1_700_000_000
        for count in (0, 1001):
            batch = pb.BatchDequeueRequest(topic="t", count=count)
            assert await refused(stub.BatchDequeue(batch)) == invalid
        empty = await stub.BatchDequeue(pb.BatchDequeueRequest(topic="t", count=5))
        assert list(empty.messages) == []
        for rpc, request in ((stub.Ack, pb.AckRequest), (stub.Nack, pb.NackRequest)):
            assert await refused(rpc(request())) == invalid
            assert await refused(rpc(request(id="nonsense"))) == missing
            assert await refused(rpc(request(id=made.id, consumer_group="g"))) == missing
        await stub.Nack(pb.NackRequest(id=made.id, error="again"))
        assert await refused(stub.Ack(pb.AckRequest(id=made.id))) == missing
        again = await stub.BatchDequeue(pb.BatchDequeueRequest(topic="t", count=5))
        assert [(item.id, item.retry_count) for item in again.messages] == [(made.id, 1)]
        await stub.Ack(pb.AckRequest(id=made.id))
        assert await refused(stub.Ack(pb.AckRequest(id=made.id))) == missing
        assert await refused(stub.Subscribe(pb.SubscribeRequest()).read()) == invalid


async def test_schemas_and_depths_are_codes_too(ti: Ti) -> None:
    ti.server.call("PUT", "/api/topic-schemas/strict", {"schema_json": '"string"'})
    ti.server.call("PUT", "/api/topic-configs/strict", {"max_depth": 1})
    async with grpc.aio.insecure_channel(ti.address) as channel:
        stub = QueueServiceStub(channel)
        bad = pb.EnqueueRequest(topic="strict", payload=b"1")
        assert await refused(stub.Enqueue(bad)) == "INVALID_ARGUMENT"
        good = pb.EnqueueRequest(topic="strict", payload=b'"text"')
        await stub.Enqueue(good)
        assert await refused(stub.Enqueue(good)) == "INTERNAL"


@law("E1")
async def test_the_port_survives_hostile_bytes(ti: Ti) -> None:
    for sent in (b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 9):
        with socket.create_connection(("127.0.0.1", ti.port), timeout=10) as raw:
            raw.sendall(sent)
            raw.settimeout(10)
            raw.recv(100)
    async with grpc.aio.insecure_channel(ti.address) as channel:
        stub = QueueServiceStub(channel)
        large = pb.EnqueueRequest(topic="t", payload=b"x" * (2 << 20))
        assert await refused(stub.Enqueue(large)) == "RESOURCE_EXHAUSTED"
        over = pb.EnqueueRequest(topic="t", payload=b"x" * ((1 << 20) + 1))
        assert await refused(stub.Enqueue(over)) == "INVALID_ARGUMENT"
        raw_call = channel.unary_unary("/queue.QueueService/Enqueue")
        assert await refused(raw_call(b"\xff\xff\xff")) in ("INTERNAL", "UNKNOWN")
        other = channel.unary_unary("/queue.QueueService/Drop")
        assert await refused(other(b"")) == "UNIMPLEMENTED"
        await stub.Enqueue(pb.EnqueueRequest(topic="alive", payload=b"x"))


# -- access --------------------------------------------------------------------------------


def calls(stub: QueueServiceStub, token: str | None) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Every RPC of the service."""
    metadata = None if token is None else (("authorization", token),)
    return {
        "Enqueue": lambda: stub.Enqueue(
            pb.EnqueueRequest(topic="t", payload=b"x"), metadata=metadata
        ),
        "Dequeue": lambda: stub.Dequeue(pb.DequeueRequest(topic="t"), metadata=metadata),
        "BatchDequeue": lambda: stub.BatchDequeue(
            pb.BatchDequeueRequest(topic="t", count=1), metadata=metadata
        ),
        "Ack": lambda: stub.Ack(pb.AckRequest(id="x"), metadata=metadata),
        "Nack": lambda: stub.Nack(pb.NackRequest(id="x"), metadata=metadata),
        "Subscribe": lambda: stub.Subscribe(
            pb.SubscribeRequest(topic="t"), metadata=metadata
        ).read(),
    }


@law("T1")
async def test_every_rpc_needs_a_token(locked: Ti) -> None:
    service = pb.DESCRIPTOR.services_by_name["QueueService"]
    async with grpc.aio.insecure_channel(locked.address) as channel:
        stub = QueueServiceStub(channel)
        assert calls(stub, None).keys() == {method.name for method in service.methods}
        for token in (None, "", "Bearer ", "bearer x", "Bearer psk_x", "Basic eDp5"):
            for name, rpc in calls(stub, token).items():
                assert await refused(rpc()) == "UNAUTHENTICATED", (name, token)


@law("T1")
async def test_a_user_logs_in_and_is_held_to_its_grants(locked: Ti) -> None:
    root = locked.server.told["key"]

    def api(method: str, path: str, body: object, credential: str | None = None) -> Any:
        answer = locked.server.call(method, f"/api{path}", body, credential=credential)
        assert answer.status < 300, answer.body
        return answer.json()

    admin = api("POST", "/auth/login", {"username": "root", "password": root})["token"]
    new = {"username": "ann", "password": PASSWORD}
    user = api("POST", "/users", new, admin)["id"]
    grant = {"consumer_group": "g", "topic_pattern": "t"}
    api("POST", f"/users/{user}/consumer-group-grants", grant, admin)
    token = api("POST", "/auth/login", new)["token"]
    client = await connect(locked.address, ConnectOptions(insecure=True, token=admin))
    made = await client.producer().publish("t", b"x")
    await client.close()
    async with grpc.aio.insecure_channel(locked.address) as channel:
        stub = QueueServiceStub(channel)
        mine = calls(stub, f"Bearer {token}")
        assert await refused(mine["Enqueue"]()) == "PERMISSION_DENIED"
        sent = (("authorization", f"Bearer {token}"),)
        for request in (
            pb.DequeueRequest(topic="u"),
            pb.DequeueRequest(topic="t", consumer_group="h"),
        ):
            assert await refused(stub.Dequeue(request, metadata=sent)) == "PERMISSION_DENIED"
        stream = stub.Subscribe(pb.SubscribeRequest(topic="u"), metadata=sent)
        assert await refused(stream.read()) == "PERMISSION_DENIED"
        found = await stub.Dequeue(pb.DequeueRequest(topic="t"), metadata=sent)
        assert found.id == made
        await stub.Ack(pb.AckRequest(id=made), metadata=sent)
        # A key of Penstock is a token too, with its own grants.
        for rpc in ("Enqueue", "Dequeue"):
            await calls(stub, f"Bearer {root}")[rpc]()


# -- kills ---------------------------------------------------------------------------------


@law("P1", "S2")
async def test_nothing_is_lost_if_the_server_is_killed(serve: Serve) -> None:
    port = unused_port()
    flags = ("--door", "queue-ti", "--queue-ti-grpc-port", str(port))
    sent: list[str] = []
    acked: set[str] = set()
    for _ in range(KILLS):
        server = serve(*flags)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = QueueServiceStub(channel)
            for n in range(5):
                made = await stub.Enqueue(pb.EnqueueRequest(topic="t", payload=b"%d" % n))
                sent.append(made.id)
            held = await stub.BatchDequeue(
                pb.BatchDequeueRequest(topic="t", count=4, visibility_timeout_seconds=1)
            )
            for message in held.messages[:2]:
                await stub.Ack(pb.AckRequest(id=message.id))
                acked.add(message.id)
        server.kill()
    serve(*flags)
    left: set[str] = set()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = QueueServiceStub(channel)
        async with asyncio.timeout(60):
            async for message in stub.Subscribe(pb.SubscribeRequest(topic="t")):
                left.add(message.id)
                await stub.Ack(pb.AckRequest(id=message.id))
                if left | acked == set(sent):
                    break
    assert not left & acked


async def test_the_certificate_of_the_server_is_that_of_the_service(serve: Serve) -> None:
    pair, port = self_signed(serve.folder), unused_port()
    serve(
        *("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)),
        *("--door", "queue-ti", "--queue-ti-grpc-port", str(port)),
    )
    trusted = grpc.ssl_channel_credentials(pair.cert.read_bytes())
    async with grpc.aio.secure_channel(f"localhost:{port}", trusted) as channel:
        await QueueServiceStub(channel).Enqueue(pb.EnqueueRequest(topic="t", payload=b"x"))
    async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:
        plain = QueueServiceStub(channel).Enqueue(pb.EnqueueRequest(topic="t", payload=b"x"))
        assert await refused(plain) == "UNAVAILABLE"


async def test_a_stopping_server_ends_its_streams(serve: Serve) -> None:
    port = unused_port()
    server = serve("--door", "queue-ti", "--queue-ti-grpc-port", str(port))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = QueueServiceStub(channel)
        await stub.Enqueue(pb.EnqueueRequest(topic="t", payload=b"x"))
        stream = stub.Subscribe(pb.SubscribeRequest(topic="t", visibility_timeout_seconds=3600))
        assert (await stream.read()).payload == b"x"
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        assert await refused(stream.read()) == "UNAVAILABLE"
        assert await stopping == 0
    async with connect_natively(serve().url) as q:
        assert (await q.stats("t")).in_flight == 1


async def test_a_port_in_use_stops_the_server_at_startup(serve: Serve, ti: Ti) -> None:
    process, log = serve.begin("--door", "queue-ti", "--queue-ti-grpc-port", str(ti.port))
    assert await asyncio.to_thread(process.wait, 60) == 3
    assert "queue_ti_grpc_port" in log.read_text() or "Cannot listen" in log.read_text()
