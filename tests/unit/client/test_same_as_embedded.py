"""The same program against a store in this process and over HTTP: the same answers and errors.

Both stores have the same clock and the same jitter, so that ids, times and receipts are equal
too, and whole answers can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

import penstock
from penstock import Ack, Extend, Nack, NewMessage, Outgoing, Release, Start, TopicPolicy
from penstock.api import QueueApi
from penstock.broker import Broker
from penstock.client import Client, ClientOptions, connect
from penstock.errors import PenstockError
from penstock.model.delivery import Delivery, Receipt, Reject, Settlement
from penstock.model.identity import StoreIdentity
from penstock.model.queue import Backoff
from penstock.model.runs import Run, RunValue
from penstock.model.settling_exceptions import SettlingException
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.client.conftest import QUICK, application, open_broker
from tests.unit.client.hosting import Host

Program: TypeAlias = Callable[[QueueApi, FakeClock], AsyncIterator[object]]


async def tried(call: Awaitable[object]) -> object:
    """What it answers, or everything about the error."""
    try:
        return await call
    except PenstockError as error:
        limits = (error.field, error.limit)
        return type(error), error.detail, *limits, getattr(error, "position", None)


async def played(program: Program, verbs: QueueApi, clock: FakeClock) -> list[object]:
    return [step async for step in program(verbs, clock)]


@pytest.fixture
async def embedded() -> AsyncIterator[tuple[Broker, FakeClock]]:
    clock = FakeClock()
    async with await open_broker(clock) as broker:
        yield broker, clock


@pytest.fixture
async def connected() -> AsyncIterator[tuple[Client, FakeClock]]:
    clock = FakeClock()
    async with await open_broker(clock) as broker:
        host = Host(application(broker))
        await host.start()
        async with connect(host.url, options=QUICK) as client:
            yield client, clock
        await host.stop()


# -- the programs ------------------------------------------------------------------------


async def queues_and_topics(q: QueueApi, clock: FakeClock) -> AsyncIterator[object]:
    yield await q.create_queue("billing", "topic = 'orders' AND amount >= 100", max_attempts=3)
    yield await q.create_queue("all", start="earliest", description="everything")
    yield await q.create_queue("late", start=Start("offset", 2), backoff=Backoff(base_ms=5))
    yield await q.create_queue("later", start=Start("time", 1), ordering="partition")
    yield await q.update_queue("billing", max_depth=10, throughput_limit=None)
    yield await q.update_queue("billing", dead_letters=False)
    yield await q.update_queue("billing", retry_position="back")
    yield await tried(q.update_queue("billing", retry_position="front"))
    yield await tried(q.update_queue("billing", dead_letters=0))  # type: ignore[arg-type]
    yield await q.update_queue("billing", dead_letter_topic="dead", dead_letter_expired=True)
    yield await tried(q.update_queue("billing", dead_letter_topic="a b"))
    yield await q.queue("billing")
    yield await q.queue("billing.dlq")
    yield await q.queues()
    yield await q.update_queue("late", max_depth=0, labels={"team": "billing", "a": "="})
    yield await q.queues(labels={"a": "="})
    yield await tried(q.queues(labels={"": ""}))
    yield await tried(q.update_queue("late", labels={"team": "a,b"}))
    await q.pause("billing")
    yield (await q.queue("billing")).policy.paused
    await q.resume("billing")
    await q.delete_queue("all")
    await q.put_topic("orders", TopicPolicy(default_ttl_ms=1000))
    await q.put_topic("timed", TopicPolicy(default_ttl_ms=timedelta(seconds=2)))
    yield await q.topic("timed")
    await q.put_topic("plain")
    yield await q.topic("orders")
    yield await q.topic("unknown")
    yield await q.topics()
    await q.delete_topic("plain")
    yield await tried(q.delete_topic("plain"))
    yield await tried(q.delete_queue("all"))
    yield await tried(q.queue("all"))
    yield await tried(q.update_queue("all", paused=True))


async def editing_filters(q: QueueApi, clock: FakeClock) -> AsyncIterator[object]:
    for text in ("topic = 'a' AND b > 1", "a IN (1, b)", "a =\n  'ü", "", "x" * 40_000, "\udc00"):
        yield await tried(q.validate_filter(text))
        yield await tried(q.complete_filter(text, len(text), headers=("amount", "ünit")))
    yield await tried(q.validate_filter(7))  # type: ignore[arg-type]
    yield await tried(q.complete_filter(7, 0))  # type: ignore[arg-type]
    yield await tried(q.complete_filter("am", 3))
    yield await tried(q.complete_filter("am", True))
    yield await tried(q.complete_filter("am", 2, headers=["h"] * 1_001))
    yield await tried(q.complete_filter("am", 2, headers=[b"h"]))  # type: ignore[list-item]
    yield await q.complete_filter("am > 1", 2, headers=["amount"])


async def settling_and_claiming(q: QueueApi, clock: FakeClock) -> AsyncIterator[object]:
    await q.create_queue("jobs", max_attempts=2)
    await q.publish_batch("t", [NewMessage(str(number).encode()) for number in range(6)])
    one, two = await q.claim("jobs", limit=2)
    settlements: list[Settlement] = [Ack(one.receipt, {"n": 1}), Nack(two.receipt, "no", 50)]
    reply = await q.settle_and_claim("jobs", settlements, limit=2)
    yield reply
    yield await q.result("jobs", one.message.id)
    yield await tried(q.settle("jobs", [Ack(one.receipt, object())]))
    receipts = [delivery.receipt for delivery in reply.deliveries]
    publish = [Outgoing("u", [NewMessage(b"next")])]
    yield await q.settle_and_claim("jobs", [Ack(receipts[0])], publish=publish, consumer="me")
    yield await q.settle_and_claim("jobs", [Ack(receipts[0])], publish=publish, limit=10)
    yield await q.settle_and_claim("jobs", [Ack(Receipt("stale"))], where="topic = 'u'")
    yield await tried(q.settle_and_claim("jobs", [Ack(Receipt("stale"))], where="topic ="))
    stale: list[Settlement | SettlingException] = [Ack(Receipt("stale"))]
    yield await tried(q.settle_and_claim("nowhere", stale))
    yield await tried(q.settle_and_claim("jobs", []))
    yield await tried(q.settle_and_claim("jobs", stale, limit=0))
    yield await tried(q.settle_and_claim("jobs", stale, lease_ms=0))
    yield await tried(q.settle_and_claim("jobs", stale, wait_ms=-1))
    yield await tried(q.settle_and_claim("jobs", stale, consumer="a b"))


async def the_flow(q: QueueApi, clock: FakeClock) -> AsyncIterator[object]:
    await q.create_queue("jobs", max_attempts=2)
    yield await q.publish("t", b"raw", headers={"n": 1, "x": 1.5, "b": True, "s": "ü"})
    yield await q.publish("t", "text", headers=MappingProxyType({"kind": "proxy"}))
    yield await q.publish("t", {"a": [1, None]}, priority=9, partition_key="p", delay_ms=50)
    yield await q.publish("t", b"id", id="mine")
    yield await q.publish("t", b"id again", id="mine")
    yield await q.publish("t", b"key", key="k")
    yield await q.publish("t", b"key again", key="k")
    yield await q.publish("u", b"0", max_attempts=3)
    yield await q.publish_batch("u", [NewMessage(b"1", max_attempts=2)])
    yield await q.publish_batch("u", [NewMessage(b"1", ttl_ms=500), NewMessage(b"2", id="2")])
    yield await q.publish_batch("u", (NewMessage(b"3"),), durability="os", batch_id="b")
    yield await q.publish_batch("u", (NewMessage(b"3"),), durability="os", batch_id="b")
    yield await q.publish("unwanted", b"1", auto_create=False)
    yield await q.publish_batch("unwanted", [NewMessage(b"2")], auto_create=False)
    for _ in range(2):
        yield await q.publish_batch("u", [NewMessage(b"4")], batch_id="c", batch_ms=5)
        clock.advance(4)
    clock.advance(1)
    yield await q.publish_batch("u", [NewMessage(b"4")], batch_id="c", batch_ms=5)
    claimed = await q.claim("jobs", limit=5, consumer="me", lease_ms=10_000)
    yield claimed
    yield await q.ack(claimed[0], b"result")
    yield await q.ack(claimed[0], b"result")
    yield await q.nack(claimed[1], "later", delay_ms=10)
    yield await q.reject(claimed[2], "never")
    yield await q.extend(claimed[3], 20_000)
    yield await q.extend(claimed[3])
    yield await tried(q.release(claimed[4], -1))
    yield await q.release(claimed[4], 700)
    yield await tried(q.release(claimed[4]))
    clock.advance(700)
    both: list[Settlement] = [Ack(claimed[3].receipt), Nack(claimed[3].receipt)]
    yield await q.settle("jobs", both)
    yield (await q.settle("jobs", [Nack(claimed[3].receipt)])).outcomes
    yield await q.result("jobs", claimed[0].message.id)
    yield await q.result("jobs", claimed[1].message.id)
    yield await q.result("jobs", claimed[2].message.id)
    yield await q.find("t", id="mine")
    yield await q.find("t", key="k")
    yield await q.find("t", key="k ü/&?")
    yield await q.find("t", id="nobody's", start=5)
    await q.put_topic("scoped", TopicPolicy(dedup_scope="partition_key"))
    yield await q.publish("scoped", b"", id="mine", partition_key="a")
    for partition_key in ("a", "b", "", None):
        yield await q.find("scoped", id="mine", partition_key=partition_key)
    yield await q.purge("jobs", "done", ids=[claimed[0].message.id, 10**6])
    yield await q.cancel(claimed[2].message.id, queue="jobs")
    yield await q.cancel(claimed[2].message.id)
    yield await tried(q.result("jobs", claimed[2].message.id))
    clock.advance(100)
    again = await q.claim("jobs", limit=10)
    yield again
    outgoing = [Outgoing("v", [NewMessage(b"x"), NewMessage(b"y", headers={"z": 1})])]
    both = [Ack(again[0].receipt), Release(again[1].receipt)]
    yield await q.settle("jobs", both)
    yield await q.settle("jobs", [Ack(again[2].receipt)], publish=outgoing)
    stale: list[Settlement] = [Reject(again[3].receipt), Extend(again[0].receipt, 5)]
    yield (await q.settle("jobs", stale, publish=outgoing)).outcomes
    raised = [
        penstock.Reject("never", receipt=again[3].receipt),
        penstock.Retry("later", receipt=again[1].receipt, delay_ms=7),
    ]
    yield await q.settle("jobs", raised)
    yield await tried(q.settle("jobs", [penstock.Retry("later")]))
    yield await q.claim("jobs", limit=1, wait_ms=0)
    yield await q.claim(["jobs", "jobs.dlq"], limit=1, order="fair")
    await q.publish_batch("jobs", [NewMessage(b"%d" % n, headers={"n": n}) for n in range(4)])
    yield await q.claim("jobs", limit=1, where="n\n>= 2")
    yield await q.claim(["jobs", "jobs.dlq"], limit=2, where="n = 3 OR n = 0")
    yield await q.stats("jobs")
    yield await q.stats("jobs.dlq")
    dead = await q.claim("jobs.dlq", limit=9)
    assert {(one.original_queue, one.failed_at is None) for one in dead} == {("jobs", False)}
    yield dead
    for one in dead:
        await q.release(one)


async def looking_and_bulk(q: QueueApi, clock: FakeClock) -> AsyncIterator[object]:
    await q.create_queue("jobs", max_attempts=1)
    for n in range(6):
        await q.publish("t", b"%d" % n, headers={"n": n})
    claimed = await q.claim("jobs", limit=4)
    await q.nack(claimed[0], "broken")
    await q.reject(claimed[1], "no")
    await q.ack(claimed[2], b"fine")
    yield await q.peek("jobs")
    yield await q.peek("jobs", "available", where="n > 4", payloads=True, limit=1000)
    page = await q.peek("jobs", limit=1)
    yield page
    yield await q.peek("jobs", limit=1, cursor=page.cursor)
    yield await q.message(claimed[0].message.id)
    yield await q.history(claimed[0].message.id)
    yield await q.queue_history("jobs", 0, limit=10)
    yield await q.explain("jobs", claimed[0].message.id)
    yield await q.explain("jobs", claimed[3].message.id)
    yield await q.read_log()
    yield await q.read_log(2, limit=2, payloads=True)
    yield await q.log_end()
    yield await q.log_start()
    yield await q.log_trimmed()
    yield await q.log_splits(1, 99, 2)
    yield await q.preview("n >= 3")
    yield await q.preview("n >= 3\n  AND topic = 'ü+&=%'", start=1)
    yield await q.replay("jobs", dry_run=True)
    yield await q.replay("jobs", dry_run=True, ids=[0, 1])
    yield await q.replay("jobs", "failed", where="n = 0", replay_id="r", limit=10)
    yield await q.replay("jobs", "failed", where="n = 0", replay_id="r", rate=5)
    yield await q.replay("jobs", "log", dry_run=True, ttl_ms=4_000)
    yield await q.purge("jobs", "failed", where="n = 1")
    yield await q.purge("jobs", "done")
    await q.create_queue("history", start="earliest")
    yield await q.route("history", 4)
    yield await q.assign("history", filter="TRUE", start=2, end=5, offsets=[2, 3, 4])
    yield await tried(q.assign("history", filter="n = 1", start=2, end=5, offsets=[2]))
    yield await tried(q.assign("history", filter="TRUE", start=6, end=7, offsets=[]))
    yield await q.route("history")
    yield await q.queue_log("history", 0, limit=3)
    yield await q.batch_log("t", "none/1 ü", 1)
    yield await q.begin_write("jobs", "w/1", "first")
    yield await q.begin_write("jobs", "w/1", "second")
    yield await q.finish_write("jobs", "w/1", "first", 7)
    yield await tried(q.finish_write("jobs", "w/2", "first", 7))
    await q.archived(1, await q.identity())
    yield await tried(q.archived(10**9, await q.identity()))
    yield await q.server_settings()
    yield await q.sweep()


async def ordered(q: QueueApi, clock: FakeClock) -> AsyncIterator[object]:
    await q.create_queue("lines", ordering="partition")
    for n in range(4):
        await q.publish("t", b"%d" % n, partition_key=f"p{n % 2}")
    yield await q.join("lines", "one")
    yield await q.join("lines", "two")
    yield await q.claim("lines", consumer="one", limit=10)
    await q.leave("lines", "one")
    await q.leave("lines", "nobody")
    yield await q.stats("lines")
    await q.create_queue("plain")
    yield await tried(q.join("plain", "one"))


async def pipeline_runs(q: QueueApi, clock: FakeClock) -> AsyncIterator[object]:
    run = Run(id="r1", job="archive", state="running", started_at=7, updated_at=7)
    yield await q.run("r1")
    await q.put_run(run)
    yield await q.run("r1")
    over = {"state": "failed", "finished_at": 8, "error": "ü" * 9_000 + "\ud800"}
    values: dict[str, RunValue] = {"n": 1, "share": 1.0, "big": 2**63 - 1, "word": "ü"}
    await q.put_run(replace(run, **over, progress=values, summary=values, report="r1.html"))
    await q.put_run(Run(id="r2", job="report", state="running", started_at=9, updated_at=9))
    yield await q.run("r1")
    yield await q.runs()
    yield await q.runs("archive")
    yield await q.runs("archive", 1)
    yield await q.runs("nobody")
    yield await q.report()
    for page in ("<p>eins</p>", "<p>größer</p>"):
        await q.put_report(page)
        clock.advance(5)
    yield await q.report()


async def webhooks(q: QueueApi, clock: FakeClock) -> AsyncIterator[object]:
    del clock
    url, secret = "https://example.com/hook", "whsec_" + "A" * 40
    await q.create_queue("jobs", "topic = 'jobs'")
    bad: Any = q
    calls = [
        q.put_webhook("w", url, queue="jobs", events=["message.done"], secret=secret),
        q.put_webhook(
            "deep",
            url,
            queue="jobs",
            events=["queue.depth", "message.failed"],
            threshold=5,
            headers={"x": "y"},
            description="d",
            enabled=False,
            secret=secret,
        ),
        q.put_webhook("all", url, queue="j*", events=["message.expired"], secret=secret),
        q.webhook("w"),
        q.webhooks(),
        q.queue("jobs"),
        q.queue("penstock.webhook.all"),
        q.queue("penstock.webhook.deep"),
        q.test_webhook("w"),
        q.delete_webhook("deep"),
        q.queue("jobs"),
        q.webhooks(),
        q.webhook("deep"),
        q.delete_webhook("deep"),
        q.test_webhook("deep"),
        bad.webhook("no name"),
        bad.put_webhook("w", url, queue="none", events=["message.done"]),
        bad.put_webhook("w", url, queue="*.dlq", events=["message.done"]),
        bad.put_webhook("w", url, queue=["jobs"], events=["message.done"]),
        bad.put_webhook("w", url, queue="jobs", events=["message.lost"]),
        bad.put_webhook("w", url, queue="jobs", events="message.done"),
        bad.put_webhook("w", "http://10.0.0.1/", queue="jobs", events=["message.done"]),
        bad.put_webhook("w", 5, queue="jobs", events=["message.done"]),
        bad.put_webhook("w", url, queue="jobs", events=["message.done"], headers=5),
        bad.put_webhook("w", url, queue="jobs", events=["message.done"], threshold="x"),
        bad.put_webhook("w", url, queue="jobs", events=["message.done"], secret="x"),
        q.publish("penstock.events", b""),
        q.delete_queue("penstock.webhook.w"),
    ]
    for call in calls:
        yield await tried(call)


async def refusals(q: QueueApi, clock: FakeClock) -> AsyncIterator[object]:
    """E1: bad input gets the same typed error, and the same words, whichever way it came."""
    bad: Any = q
    await q.create_queue("jobs", max_depth=3)
    (first,) = (await q.publish_batch("t", [NewMessage(b"x")])).messages
    delivery = (await q.claim("jobs"))[0]
    run: Any = Run(id="r1", job="archive", state="running", started_at=7, updated_at=7)
    wrong = Delivery("jo bs", delivery.receipt, delivery.message, b"", 1, 0, 0)
    calls: list[Awaitable[object]] = [
        bad.create_queue("bad name"),
        bad.create_queue("x.dlq"),
        bad.create_queue("y", "not ( a filter"),
        bad.create_queue("y", 7),
        bad.create_queue("y", max_attempts=0),
        bad.create_queue("y", max_attempts="many"),
        bad.create_queue("y", colour="blue"),
        bad.create_queue("y", colour=object()),
        bad.create_queue("y", backoff=7j),
        bad.create_queue("y", ordering="sideways"),
        bad.create_queue("y", start="yesterday"),
        bad.create_queue("y", start=Start("offset", -1)),
        bad.create_queue("y", max_depth=2**70),
        bad.update_queue("jobs", max_attempts=-1),
        bad.update_queue("none", max_attempts=1),
        bad.delete_queue("none"),
        bad.delete_queue(7),
        bad.pause("none"),
        bad.put_topic("t", TopicPolicy(schema_type="xml", schema="")),
        bad.put_topic("t", {"default_ttl_ms": 1}),
        bad.put_topic("t t"),
        bad.publish("a b", b""),
        bad.publish("t.dlq", b""),
        bad.publish("t", object()),
        bad.publish("t", "\ud800"),
        bad.publish("t", b"", headers={"a": object()}),
        bad.publish("t", b"", headers={"a": 2**80}),
        bad.publish("t", b"", headers={"": 1}),
        bad.publish("t", b"", headers={7: 1}),
        bad.publish("t", b"", headers=7),
        bad.publish("t", b"", headers={"a": "\ud800"}),
        bad.publish("t", b"", headers={f"h{n}": n for n in range(65)}),
        bad.publish("t", b"", headers={"h": "x" * 20_000}),
        bad.publish("t", b"", id=""),
        bad.publish("t", b"", id=7),
        bad.publish("t", b"", id="x" * 513),
        bad.publish("t", b"", key=b"k"),
        bad.publish("t", b"", priority=10),
        bad.publish("t", b"", priority="high"),
        bad.publish("t", b"", priority=True),
        bad.publish("t", b"", delay_ms=-1),
        bad.publish("t", b"", delay_ms=1, deliver_at=1),
        bad.publish("t", b"", ttl_ms=0),
        bad.publish("t", b"", max_attempts=0),
        bad.create_queue("t", message_ttl_ms=0),
        bad.publish("t", b"", durability="hope"),
        bad.publish("t", b"", durability=7),
        bad.publish("t", b"x" * (1024 * 1024 + 1)),
        bad.publish_batch("t", []),
        bad.publish_batch("t", [b"x"]),
        bad.publish_batch("t", "messages"),
        bad.publish_batch("t", [NewMessage(b"x")], batch_id=""),
        bad.publish_batch("t", [NewMessage(b"x")], batch_id=7),
        bad.publish_batch("t", [NewMessage(b"x")], batch_id="x" * 513),
        bad.publish_batch("t", [NewMessage(b"x")], batch_id="b", batch_ms=0),
        bad.publish_batch("t", [NewMessage(b"x")], batch_id="b", batch_ms=2**70),
        bad.publish_batch("t", [NewMessage(b"x")], batch_id="b", batch_ms="long"),
        bad.publish_batch("t", [NewMessage(b"x")], batch_ms=5),
        bad.publish_batch("t", [NewMessage(b"x")], auto_create=0),
        bad.publish("t", b"x", auto_create=None),
        bad.publish_batch("t", [NewMessage(object())]),
        bad.publish_batch("t", [NewMessage(b"x")] * 10_001),
        bad.publish_batch("t", [NewMessage(b"x")] * 4),
        bad.claim(["t", "t"]),
        bad.claim([]),
        bad.claim(["t", "missing"]),
        bad.claim("t", order="random"),
        bad.claim("none"),
        bad.claim("jobs", where="n IN (1, x)"),
        bad.claim(["jobs"], where="n =", wait_ms=5),
        bad.claim("jobs", where=7),
        bad.claim("jobs", where="n = 1 " * 10_000),
        bad.claim("jobs", limit=0),
        bad.claim("jobs", limit=1_001),
        bad.claim("jobs", consumer="a b"),
        bad.claim("jobs", lease_ms=-1),
        bad.claim("jobs", wait_ms=30_001),
        bad.claim("jobs", wait_ms="long"),
        bad.settle("jobs", []),
        bad.settle("jobs", [7]),
        bad.settle("jobs", "acks"),
        bad.settle("jobs", [Ack(7)]),  # type: ignore[arg-type]
        bad.settle("jobs", [Ack(delivery.receipt, "text")]),
        bad.settle("jobs", [Extend(delivery.receipt, 0)]),
        bad.settle("jobs", [Nack(delivery.receipt, delay_ms=-1)]),
        bad.settle("jobs", [Nack(delivery.receipt, object())]),  # type: ignore[arg-type]
        bad.settle("jobs", [Ack(delivery.receipt)], publish=[7]),
        bad.settle("jobs", [Ack(delivery.receipt)], publish=[Outgoing("a b", [NewMessage(b"")])]),
        bad.settle("jobs", [Ack(delivery.receipt)], publish=[Outgoing("t", [])]),
        bad.settle("none", [Ack(delivery.receipt)]),
        bad.ack(wrong),
        bad.ack(delivery, "text"),
        bad.nack(delivery, b"bytes"),
        bad.extend(delivery, 0),
        bad.extend(delivery, None),
        bad.join("none", "c"),
        bad.leave("jobs", "c c"),
        bad.route("jobs", 0),
        bad.assign("jobs", filter="TRUE", start=0, end=-1, offsets=[]),
        bad.assign("jobs", filter="TRUE", start=0, end=3, offsets=[2, 1]),
        bad.assign("jobs", filter=7, start=0, end=3, offsets=[]),
        bad.assign("jobs.dlq", filter="TRUE", start=0, end=3, offsets=[]),
        bad.replay("jobs", "everything"),
        bad.replay("jobs", where="nonsense("),
        bad.replay("jobs", rate=0),
        bad.replay("jobs", ttl_ms=0),
        bad.replay("jobs.dlq", "done", ttl_ms=1),
        bad.replay("jobs", ids=["one"]),
        bad.replay("jobs", replay_id=""),
        bad.purge("jobs", "sideways"),
        bad.purge("jobs", "in_flight"),
        bad.purge("jobs", "done", where=7),
        bad.peek("jobs", "sideways"),
        bad.peek("jobs", limit=0),
        bad.peek("jobs", cursor="zz"),
        bad.peek("jobs", cursor=7),
        bad.peek("jobs", where="n > "),
        bad.put_report(7),
        bad.put_report(""),
        bad.put_report("\ud800"),
        bad.put_report("x" * (4 * 2**20 + 1)),
        bad.put_run(7),
        bad.put_run(replace(run, id="a/b")),
        bad.put_run(replace(run, job=7)),
        bad.put_run(replace(run, state="lost")),
        bad.put_run(replace(run, updated_at="now")),
        bad.put_run(replace(run, finished_at=1)),
        bad.put_run(replace(run, progress={"n": object()})),
        bad.put_run(replace(run, summary={"n": 2**64})),
        bad.put_run(replace(run, error=b"bytes")),
        bad.put_run(replace(run, report="x" * 5_000)),
        bad.run("a b"),
        bad.runs("a b"),
        bad.runs(limit=0),
        bad.sweep(0),
        bad.queue_log("jobs", -1),
        bad.queue_log("jobs", 0, limit=0),
        bad.batch_log("no topic", "b", 0),
        bad.batch_log("t", "", 0),
        bad.begin_write("jobs", "", "r"),
        bad.begin_write("no topic", "w", "r"),
        bad.finish_write("jobs", "w", "r", -1),
        bad.finish_write("jobs", "w", 7, 1),
        bad.archived(-1, StoreIdentity("0" * 32, "0" * 32)),
        bad.archived("all", StoreIdentity("0" * 32, "0" * 32)),
        bad.archived(1, None),
        bad.archived(1, StoreIdentity("1", "2")),
        bad.read_log(-1),
        bad.read_log(limit=0),
        bad.read_log(limit=10_001),
        bad.log_splits(-1, 3, 1),
        bad.log_splits(3, 1, 1),
        bad.log_splits(1, 3, 0),
        bad.preview("n >"),
        bad.preview(7),
        bad.preview("x" * 5000),
        bad.preview("n = 1", start="x"),
        bad.message(-1),
        bad.message("7"),
        bad.message(12345),
        bad.find("t"),
        bad.find("t", id="a", key="k"),
        bad.find("no topic", id="a"),
        bad.find("t", key=""),
        bad.find("t", key="k", start=-1),
        bad.find("t", key="k", partition_key="p"),
        bad.find("t", id="a", partition_key="x" * 2_000),
        bad.purge("jobs", "done", ids=7),
        bad.purge("jobs", "done", ids=[0] * 100_001),
        bad.cancel(-1),
        bad.cancel("x"),
        bad.cancel(12345),
        bad.cancel(first.id, queue="none"),
        bad.cancel(first.id, queue="no name"),
        bad.result("none", first.id),
        bad.result("jobs", 12345),
        bad.result("jobs", first.id, wait_ms=-1),
        bad.history(12345),
        bad.queue_history("jobs", -1),
        bad.queue_history("jobs", limit=0),
        bad.stats("none"),
        bad.explain("jobs", 12345),
        bad.explain("none", first.id),
    ]
    for call in calls:
        yield await tried(call)
    # Nothing of it changed anything.
    yield await q.stats("jobs")
    yield await q.read_log()
    yield await q.runs()


PROGRAMS: list[Program] = [
    queues_and_topics,
    editing_filters,
    settling_and_claiming,
    the_flow,
    looking_and_bulk,
    ordered,
    pipeline_runs,
    webhooks,
    refusals,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
async def test_http_answers_what_an_embedded_store_answers(
    program: Program,
    embedded: tuple[Broker, FakeClock],
    connected: tuple[Client, FakeClock],
) -> None:
    expected = await played(program, *embedded)
    found = await played(program, *connected)
    different = [
        f"step {step}: {other!r} instead of {one!r}"
        for step, (one, other) in enumerate(zip(expected, found, strict=True))
        if other != one
    ]
    assert found
    assert different == []


def test_the_client_has_the_verbs() -> None:
    """mypy holds it; at run time there is at least every name."""

    def holds(client: Client) -> QueueApi:
        return client

    assert {name for name in vars(QueueApi) if not name.startswith("_")} <= set(dir(Client))
    assert holds is not None


async def test_waiting_claims_and_results(q: Client, broker: Broker, host: Host) -> None:
    await q.create_queue("jobs")
    waiting = asyncio.create_task(q.claim("jobs", wait_ms=20_000))
    await host.arrivals(1, "/claims")
    published = await broker.publish("t", b"now")
    async with asyncio.timeout(60):
        (delivery,) = await waiting
    result = asyncio.create_task(q.result("jobs", published.id, wait_ms=20_000))
    await host.arrivals(1, "/result")
    await broker.ack(delivery, b"done")
    async with asyncio.timeout(60):
        found = await result
    assert found is not None
    assert found.result == b"done"


@law("P3")
async def test_large_bodies_go_through_in_both_directions(q: Client) -> None:
    """P3, with payloads at their limit: no warning, and byte for byte the same."""
    payload = bytes(range(256)) * 4096
    await q.create_queue("big")
    await q.publish_batch("t", [NewMessage(payload)] * 3)
    assert [item.payload for item in await q.claim("big", limit=3)] == [payload] * 3


async def test_a_server_below_a_path(broker: Broker) -> None:
    """Behind a proxy the paths may begin with something."""
    app = application(broker)

    async def below(scope: Any, receive: Any, send: Any) -> None:
        scope["path"] = scope["path"].removeprefix("/queue")
        await app(scope, receive, send)

    host = Host(below)
    await host.start()
    async with connect(f"{host.url}/queue/", options=ClientOptions(retries=0)) as client:
        await client.publish("t", b"x")
    assert [seen.path for seen in host.requests] == ["/queue/v1/topics/t/messages"]
    await host.stop()
