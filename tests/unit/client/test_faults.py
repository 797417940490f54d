"""What a program sees when the network or the server fails: nothing, or the truth."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec.structs import replace
from pyarrow.ipc import open_stream

from penstock import Ack, Extend, Nack, NewMessage, Outgoing, Release
from penstock.broker import Broker
from penstock.client import Client, ClientOptions, connect
from penstock.errors import (
    BadReply,
    Busy,
    QueueFull,
    StaleReceipt,
    StoreClosed,
    UnknownQueue,
    Unreachable,
)
from penstock.model.delivery import Settlement
from penstock.model.message import NewMessage as New
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.client.conftest import QUICK
from tests.unit.client.hosting import Answer, Fault, Host, problem

IMPATIENT = replace(QUICK, timeout_ms=150)
IMPATIENT_IN_BULK = replace(IMPATIENT, bulk_timeout_ms=100)
NOTHING_IS_REPEATED = replace(QUICK, retries=0)

pytestmark = pytest.mark.timeout(60)

each_loss = pytest.mark.parametrize("fault", [Fault.DROP, Fault.LOSE, Fault.CUT, Fault.HANG])


async def payloads(broker: Broker) -> list[bytes | None]:
    return [entry.payload for entry in (await broker.read_log(payloads=True)).entries]


# -- older servers -----------------------------------------------------------------------


async def test_options_that_are_not_used_are_not_sent(q: Client, host: Host) -> None:
    """An older server refuses fields that it does not know."""
    await q.publish("orders", b"1")
    (delivery,) = await q.claim("orders")
    await q.settle("orders", [Ack(delivery.receipt)])
    *_, claim, settle = [msgspec.msgpack.decode(seen.body) for seen in host.requests]
    assert claim == {}
    assert set(settle) <= {"settlements", "publish"}


# -- bulk reads --------------------------------------------------------------------------


@each_loss
@pytest.mark.parametrize("size", [1, 50_000])
async def test_an_arrow_stream_that_was_cut_is_asked_for_again(
    host: Host, broker: Broker, fault: Fault, size: int
) -> None:
    await broker.publish_batch("t", [NewMessage(b"%d" % n * size) for n in range(10)])
    async with connect(host.url, options=IMPATIENT_IN_BULK) as q:
        host.fault(fault, "/log", times=2)
        body = await q.arrow("/v1/log", (("from", 3), ("payloads", True), ("to", None)))
    assert open_stream(body).read_all().column("payload").to_pylist() == [
        b"%d" % n * size for n in range(3, 10)
    ]


# -- publish -----------------------------------------------------------------------------


@law("P4")
@each_loss
async def test_a_publish_whose_answer_was_lost_is_stored_once(
    host: Host, broker: Broker, fault: Fault
) -> None:
    async with connect(host.url, options=IMPATIENT) as q:
        host.fault(fault, "/messages", times=2)
        single = await q.publish("t", b"single")
        host.fault(fault, "/messages", times=2)
        batch = await q.publish_batch("t", [NewMessage(b"one"), NewMessage(b"two")])
    assert await payloads(broker) == [b"single", b"one", b"two"]
    # The caller published each once, and is told so.
    assert not any(item.duplicate for item in (single, *batch.messages))
    stored = [entry.message.id for entry in (await broker.read_log()).entries]
    assert [single.id, *(item.id for item in batch.messages)] == stored


@law("P4")
async def test_a_repeated_publish_is_answered_as_it_was_the_first_time(
    q: Client, host: Host, broker: Broker
) -> None:
    await q.publish_batch("t", [NewMessage(b"a", id="a"), NewMessage(b"k", key="k")])
    host.fault(Fault.LOSE)
    batch = [NewMessage(b"new", id="b"), NewMessage(b"again", id="a"), NewMessage(b"K", key="k")]
    reply = await q.publish_batch("t", batch)
    assert [(item.duplicate, item.replaced) for item in reply.messages] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert not reply.repeated
    assert await payloads(broker) == [b"a", b"k", b"new", b"K"]


@law("P4")
async def test_the_programs_own_batch_id_is_answered_as_the_server_knows_it(
    q: Client, host: Host, broker: Broker
) -> None:
    assert not (await q.publish_batch("t", [NewMessage(b"x")], batch_id="mine")).repeated
    assert (await q.publish_batch("t", [NewMessage(b"x")], batch_id="mine")).repeated
    assert await payloads(broker) == [b"x"]


@law("P2")
@each_loss
async def test_without_ids_a_publish_that_may_be_stored_is_not_repeated(
    host: Host, broker: Broker, fault: Fault
) -> None:
    async with connect(host.url, options=replace(IMPATIENT, idempotent=False)) as q:
        host.fault(fault)
        with pytest.raises(Unreachable, match="outcome is unknown"):
            await q.publish("t", b"x")
        assert len(await payloads(broker)) == (0 if fault is Fault.DROP else 1)
        # The program's own ids do as well.
        host.fault(fault, times=2)
        assert len((await q.publish_batch("t", [NewMessage(b"y")], batch_id="b")).messages) == 1
        await q.publish("t", b"z", id="mine")
        stored = await payloads(broker)
        assert (stored.count(b"y"), stored.count(b"z")) == (1, 1)


async def test_without_ids_what_was_refused_for_now_is_repeated(host: Host) -> None:
    async with connect(host.url, options=replace(QUICK, idempotent=False)) as q:
        host.fault(problem(Busy("stopping", retry_after_ms=1)))
        assert not (await q.publish("t", b"x")).duplicate


async def test_a_full_queue_is_told_at_once_or_waited_for(host: Host, broker: Broker) -> None:
    await broker.create_queue("small", max_depth=1)
    await broker.publish("t", b"first")
    async with connect(host.url, options=QUICK) as q:
        with pytest.raises(QueueFull) as caught:
            await q.publish("t", b"second")
        assert caught.value.queue == "small"
        assert len(host.requests) == 1
    async with connect(host.url, options=replace(QUICK, retry_when_full=True)) as q:
        publishing = asyncio.create_task(q.publish("t", b"second"))
        await host.arrivals(2, "/messages")
        await broker.ack((await broker.claim("small"))[0])
        async with asyncio.timeout(60):
            await publishing
    assert await payloads(broker) == [b"first", b"second"]


# -- claim -------------------------------------------------------------------------------


@law("C5")
async def test_a_claim_whose_answer_was_lost_is_repeated_and_its_grants_come_back(
    q: Client, host: Host, broker: Broker, clock: FakeClock
) -> None:
    await q.create_queue("jobs")
    for n in range(2):
        await q.publish("t", b"%d" % n)
    host.fault(Fault.LOSE, "/claims")
    (second,) = await q.claim("jobs", lease_ms=1000)
    assert second.payload == b"1"
    clock.advance(1001)
    (first,) = await q.claim("jobs")
    assert (first.payload, first.attempts) == (b"0", 2)


async def test_whoever_stops_waiting_for_a_claim_is_given_nothing(
    q: Client, host: Host, broker: Broker
) -> None:
    await q.create_queue("jobs")
    waiting = asyncio.create_task(q.claim("jobs", wait_ms=20_000))
    await host.arrivals(1, "/claims")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(60):
        while host.app.service.waits:  # noqa: ASYNC110  (the server has nobody to tell)
            await asyncio.sleep(0.001)
    await broker.publish("t", b"x")
    (delivery,) = await q.claim("jobs", wait_ms=5_000)
    assert delivery.attempts == 1


# -- settle ------------------------------------------------------------------------------


@each_loss
async def test_an_ack_whose_answer_was_lost_succeeds(
    host: Host, broker: Broker, fault: Fault
) -> None:
    async with connect(host.url, options=IMPATIENT) as q:
        await q.create_queue("jobs")
        await q.publish("t", b"x")
        (delivery,) = await q.claim("jobs")
        host.fault(fault, "/settlements")
        assert (await q.ack(delivery, b"result")).ok
    stats = await broker.stats("jobs")
    assert (stats.done, stats.acks) == (1, 1)


async def test_an_extend_whose_answer_was_lost_succeeds(q: Client, host: Host) -> None:
    await q.create_queue("jobs")
    await q.publish("t", b"x")
    (delivery,) = await q.claim("jobs")
    host.fault(Fault.LOSE, "/settlements")
    assert (await q.extend(delivery, 60_000)).until == delivery.claimed_at + 60_000


@law("S1")
async def test_a_nack_whose_answer_was_lost_is_over_and_says_so(
    q: Client, host: Host, broker: Broker
) -> None:
    await q.create_queue("jobs")
    await q.publish("t", b"x")
    (delivery,) = await q.claim("jobs")
    host.fault(Fault.LOSE, "/settlements")
    with pytest.raises(StaleReceipt):
        await q.nack(delivery, "broken")
    assert (await broker.stats("jobs")).nacks == 1


@law("P4")
async def test_settle_with_publish_whose_answer_was_lost_publishes_once(
    q: Client, host: Host, broker: Broker
) -> None:
    await q.create_queue("jobs", "topic = 't'")
    await q.publish("t", b"in")
    (delivery,) = await q.claim("jobs")
    host.fault(Fault.LOSE, "/settlements")
    reply = await q.settle(
        "jobs", [Ack(delivery.receipt)], publish=[Outgoing("u", [New(b"out"), New(b"put")])]
    )
    assert reply.outcomes[0].ok
    assert [item.duplicate for item in reply.published] == [False, False]
    assert await payloads(broker) == [b"in", b"out", b"put"]


@law("P4")
async def test_a_nack_with_publish_whose_answer_was_lost_is_done_once(
    q: Client, host: Host, broker: Broker
) -> None:
    """The server gives the first answer again, although the claim is over."""
    await q.create_queue("jobs", "topic = 't'")
    await q.publish("t", b"in")
    (delivery,) = await q.claim("jobs")
    host.fault(Fault.LOSE, "/settlements")
    reply = await q.settle(
        "jobs", [Nack(delivery.receipt)], publish=[Outgoing("u", [NewMessage(b"out")])]
    )
    assert reply.outcomes[0].ok
    assert not reply.repeated
    assert await payloads(broker) == [b"in", b"out"]


async def test_a_settle_tells_what_the_repetition_found(q: Client, host: Host) -> None:
    await q.create_queue("jobs")
    await q.publish_batch("t", [NewMessage(b"")] * 3)
    one, two, three = await q.claim("jobs", limit=3)
    host.fault(Fault.LOSE, "/settlements")
    settlements: list[Settlement] = [
        Ack(one.receipt),
        Release(two.receipt),
        Extend(three.receipt, 5_000),
    ]
    reply = await q.settle("jobs", settlements)
    assert [outcome.ok for outcome in reply.outcomes] == [True, False, True]


# -- the other verbs ---------------------------------------------------------------------


async def test_a_delete_whose_answer_was_lost_has_done_what_was_asked(
    q: Client, host: Host
) -> None:
    await q.create_queue("jobs")
    host.fault(Fault.LOSE, "/queues/jobs")
    await q.delete_queue("jobs")
    with pytest.raises(UnknownQueue):
        await q.delete_queue("jobs")


async def test_what_would_be_done_twice_is_not_repeated(
    q: Client, host: Host, broker: Broker
) -> None:
    await q.create_queue("jobs")
    await q.publish_batch("t", [NewMessage(b"")] * 4)
    host.fault(Fault.LOSE, "/purges")
    with pytest.raises(Unreachable):
        await q.purge("jobs", "available", limit=1)
    assert (await broker.stats("jobs")).available == 3
    for delivery in await q.claim("jobs", limit=2):
        await q.reject(delivery)
    host.fault(Fault.LOSE, "/replays")
    with pytest.raises(Unreachable):
        await q.replay("jobs", limit=1)
    assert (await broker.stats("jobs")).failed == 1
    # With an id of its own it is safe, and repeated.
    host.fault(Fault.LOSE, "/replays")
    await q.replay("jobs", limit=1, replay_id="r")
    assert (await broker.stats("jobs")).failed == 0


# -- the server --------------------------------------------------------------------------


async def test_a_restart_of_the_server_is_not_seen(host: Host, broker: Broker) -> None:
    failures = 0
    failed = asyncio.Event()

    def jitter(ceiling_ms: int) -> int:
        """Asked before every repetition."""
        nonlocal failures
        failures += 1
        if failures >= 3:
            failed.set()
        return ceiling_ms

    await broker.create_queue("jobs")
    await broker.publish("t", b"before")
    async with connect(host.url, options=replace(QUICK, jitter=jitter)) as q:
        (first,) = await q.claim("jobs", wait_ms=20_000)
        await host.stop()
        calls = asyncio.gather(
            q.publish("t", b"while it was away"), q.ack(first), q.claim("jobs", wait_ms=20_000)
        )
        async with asyncio.timeout(60):
            await failed.wait()
        await host.start()
        async with asyncio.timeout(60):
            published, outcome, claimed = await calls
    assert not published.duplicate
    assert outcome.ok
    assert [delivery.payload for delivery in claimed] == [b"while it was away"]


async def test_a_server_that_stays_away_is_unreachable() -> None:
    """Port 1 of this machine: nobody listens."""
    options = replace(QUICK, retry_ms=100)
    async with connect("http://127.0.0.1:1", options=options) as q:
        async with asyncio.timeout(60):
            with pytest.raises(Unreachable, match="nothing was sent") as caught:
                await q.publish("t", b"x")
        assert "127.0.0.1:1" in caught.value.detail
        assert caught.value.__cause__ is not None


async def test_a_name_that_nobody_has_is_unreachable() -> None:
    async with connect("http://nobody.invalid", options=NOTHING_IS_REPEATED) as q:
        with pytest.raises(Unreachable):
            await q.queues()


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_proxys_error_page_is_waited_out(q: Client, host: Host, status: int) -> None:
    host.fault(Answer(status), times=3)
    assert await q.queues() == ()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200),
        Answer(200, b""),
        Answer(200, b"\x81\xa6queues", "application/msgpack"),
        Answer(204, b""),
        Answer(404),
        Answer(500),
        Answer(302, b"", headers=(("Location", "/elsewhere"),)),
        Answer(418, b"{}", "application/problem+json"),
        Answer(400, b'{"type": "urn:penstock:problem:from-the-future", "detail": "hm"}'),
        Fault.GARBAGE,
    ],
)
async def test_what_is_not_penstock_is_a_bad_reply(
    q: Client, host: Host, answer: Answer | Fault
) -> None:
    host.fault(answer)
    with pytest.raises(BadReply):
        await q.queues()
    assert len(host.requests) == 1
    # The connection, or the next one, is good.
    assert await q.queues() == ()


@pytest.mark.parametrize(
    "path, body",
    [
        ("/messages", b"\x82\xa8messages\x90\xaadurability\xa5fsync"),
        ("/settlements", b"\x83\xa8outcomes\x90\xa9published\x90\xaadurability\xa5fsync"),
    ],
)
async def test_an_answer_that_does_not_fit_is_a_bad_reply(
    q: Client, host: Host, path: str, body: bytes
) -> None:
    await q.create_queue("jobs")
    await q.publish("t", b"x")
    (delivery,) = await q.claim("jobs")
    host.fault(Answer(200, body, "application/msgpack"), path)
    call = q.publish("t", b"y") if path == "/messages" else q.ack(delivery)
    with pytest.raises(BadReply, match="0 answers to 1"):
        await call


# -- closing -----------------------------------------------------------------------------


async def test_closing_sends_what_waits(host: Host, broker: Broker) -> None:
    q = await connect(host.url, options=replace(QUICK, max_under_way=1, linger_ms=60_000))
    first = asyncio.create_task(q.publish("t", b"first"))
    await host.arrivals(1)
    second = asyncio.create_task(q.publish("t", b"second"))
    await asyncio.sleep(0)
    await q.close()
    await asyncio.gather(first, second)
    assert await payloads(broker) == [b"first", b"second"]
    for call in (q.publish("t", b"x"), q.queues(), q.publish_batch("t", [NewMessage(b"")])):
        with pytest.raises(StoreClosed):
            await call
    await q.close()


async def test_closing_does_not_wait_for_those_who_wait(host: Host, broker: Broker) -> None:
    await broker.create_queue("empty")
    q = await connect(host.url, options=QUICK)
    waiting = asyncio.create_task(q.claim("empty", wait_ms=30_000))
    await host.arrivals(1)
    async with asyncio.timeout(20):
        await q.close()
        with pytest.raises(StoreClosed):
            await waiting


async def test_closing_gives_up_on_a_server_that_does_not_answer(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.client.DRAIN_MS", 50)
    q = await connect(host.url, options=ClientOptions(timeout_ms=60_000))
    host.fault(Fault.HANG, times=2)
    calls = [asyncio.create_task(q.publish("t", b"x")), asyncio.create_task(q.log_end())]
    await host.arrivals(2)
    async with asyncio.timeout(60):
        await q.close()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreClosed, StoreClosed]
