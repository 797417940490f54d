"""The verbs on webhooks: what they store, which events queues report, and refusals (E1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock import Broker, NewMessage, PenstockError, errors
from penstock.broker.webhook_events import ADDED_KIND, WEBHOOK_KIND
from penstock.model.webhooks import MAX_WEBHOOKS, to_secret, webhook_queue
from penstock.testing.laws import law

URL = "https://hooks.example.com/x"
SECRET = "whsec_" + "A" * 40


async def put(q: Broker, id: str = "ops", **fields: Any) -> Any:
    fields = {"url": URL, "queue": "orders", "events": ["message.done"], **fields}
    return await q.put_webhook(id, fields.pop("url"), **fields)


@pytest.fixture(autouse=True)
async def orders(q: Broker) -> None:
    await q.create_queue("orders", "topic = 'orders'")


async def events(q: Broker, queue: str = "orders") -> tuple[str, ...]:
    return (await q.queue(queue)).policy.events


async def test_the_secret_is_shown_once(q: Broker) -> None:
    new = await put(q, headers={"authorization": "Bearer x"})
    assert len(to_secret(new.secret)) == 32
    assert new.webhook.headers == {"authorization": "***"}
    shown = await q.webhook("ops")
    assert shown == new.webhook
    assert await q.webhooks() == (shown,)
    assert not hasattr(shown, "secret")
    again = await put(q, description="the same, so its secret stays")
    assert again.secret is None
    assert again.webhook.created_at == shown.created_at
    assert (await put(q, "own", secret=SECRET)).secret is None


async def test_a_webhook_has_a_queue_that_goes_with_it(q: Broker) -> None:
    await put(q)
    queue = webhook_queue("ops")
    await q.update_queue(queue, max_attempts=2)
    await put(q, events=["message.failed"])
    policy = (await q.queue(queue)).policy
    assert policy.max_attempts == 2, "what an operator has changed stays"
    assert "message.failed" in policy.filter
    await q.delete_webhook("ops")
    with pytest.raises(errors.UnknownQueue):
        await q.queue(queue)
    for call in (q.webhook("ops"), q.delete_webhook("ops"), q.test_webhook("ops")):
        with pytest.raises(errors.UnknownWebhook):
            await call


async def test_a_queue_reports_what_its_webhooks_need(q: Broker) -> None:
    await put(q)
    await put(q, "two", events=["message.done", "message.dead_lettered"])
    assert await events(q) == ("done", "failed")
    await q.put_queue("orders", "topic = 'orders'", max_attempts=2)
    assert await events(q) == ("done", "failed"), "no call takes them away"
    await q.create_queue("orders", "topic = 'orders'", max_attempts=2)
    await q.delete_webhook("two")
    assert await events(q) == ("done",)
    await q.delete_webhook("ops")
    assert await events(q) == ()


async def test_events_that_an_operator_has_set_stay(q: Broker) -> None:
    await q.update_queue("orders", events=["expired", "done"])
    await put(q, events=["message.done", "message.failed"])
    assert await events(q) == ("done", "failed", "expired")
    await q.delete_webhook("ops")
    assert await events(q) == ("done", "expired")


async def test_an_operator_sets_events_that_a_webhook_needs_too(q: Broker) -> None:
    await put(q, events=["message.done", "message.failed"])
    await q.update_queue("orders", events=["done"])
    assert await events(q) == ("done", "failed")
    await q.update_queue("orders", max_attempts=3)
    await q.publish("orders", b"")
    with pytest.raises(errors.QueueNotEmpty):
        await q.put_queue("orders", ordering="partition")
    await q.delete_webhook("ops")
    assert await events(q) == ("done",), "the operator has set it"
    await put(q)
    await q.put_queue("orders", "topic = 'orders'")
    assert await events(q) == ("done",)
    await q.delete_webhook("ops")
    assert await events(q) == (), "the operator has removed it"


async def test_a_replaced_webhook_leaves_no_events_behind(q: Broker) -> None:
    await q.create_queue("bills", "topic = 'bills'", events=["done"])
    await put(q)
    await put(q, events=["message.failed"])
    assert await events(q) == ("failed",)
    await put(q, "two", events=["message.failed"])
    await put(q, queue="bills", events=["message.expired"])
    assert await events(q) == ("failed",), "the other webhook needs it"
    assert await events(q, "bills") == ("done", "expired")
    await put(q, "two", queue="bills")
    assert await events(q) == ()
    for webhook in ("ops", "two"):
        await q.delete_webhook(webhook)
    assert await events(q, "bills") == ("done",)


async def test_a_pattern_names_several_queues(q: Broker) -> None:
    await q.create_queue("orders_eu", "topic = 'orders'", events=["expired"])
    await q.create_queue("bills", "topic = 'bills'")
    await put(q, queue="orders*", events=["message.failed"])
    assert await events(q) == ("failed",)
    assert await events(q, "orders_eu") == ("failed", "expired")
    assert await events(q, "bills") == ()
    await q.create_queue("orders-us", "topic = 'orders'")
    assert await events(q, "orders-us") == ("failed",), "a queue that is created later"
    await put(q, "all", queue="*", events=["message.done"])
    assert await events(q, "bills") == ("done",)
    assert await events(q, "orders_eu") == ("done", "failed", "expired")
    await q.delete_webhook("ops")
    assert await events(q) == ("done",)
    await q.delete_webhook("all")
    assert await events(q, "orders_eu") == ("expired",), "the operator has set it"
    for queue in ("orders", "orders-us", "bills"):
        assert await events(q, queue) == ()


async def test_a_pattern_takes_the_events_of_its_queues_only(q: Broker) -> None:
    for name in ("a_b", "axb", "a_bc", "b"):
        await q.create_queue(name, f"topic = '{name}'", events=["done"])
    await put(q, "one", queue="a_*", events=["message.done"])
    await put(q, "two", queue="*b", events=["message.done"])
    await put(q, "three", queue="*", events=["message.done"])
    taken: dict[str, list[str]] = {}
    for name in ("a_b", "axb", "a_bc", "b"):
        await q.publish(name, b"")
        (delivery,) = await q.claim(name)
        await q.ack(delivery)
    for hook in ("one", "two", "three"):
        found = await q.claim(webhook_queue(hook), limit=10)
        taken[hook] = [str(item.message.headers["queue"]) for item in found]
    assert taken == {
        "one": ["a_b", "a_bc"],
        "two": ["a_b", "axb", "b"],
        "three": ["a_b", "axb", "a_bc", "b"],
    }


async def test_a_pattern_leaves_the_queues_of_penstock_alone(q: Broker) -> None:
    await put(q, queue="*")
    await put(q, "two", queue="*")
    for hook in ("ops", "two"):
        assert await events(q, webhook_queue(hook)) == ()


async def test_a_refused_change_of_a_queue_changes_nothing_about_its_events(q: Broker) -> None:
    await q.update_queue("orders", events=["done"])
    await put(q)
    await q.publish("orders", b"")
    with pytest.raises(errors.QueueNotEmpty):
        await q.put_queue("orders", "topic = 'orders'", ordering="partition")
    with pytest.raises(errors.QueueNotEmpty):
        await q.update_queue("orders", events=[], ordering="partition")
    with pytest.raises(errors.QueueExists):
        await q.create_queue("orders", "topic = 'orders'", max_attempts=2)
    await q.ensure_queue("orders", "topic = 'orders'", max_attempts=2)
    await q.delete_webhook("ops")
    assert await events(q) == ("done",), "the operator has set it"


async def test_a_queue_that_is_created_again_keeps_no_events_of_webhooks(q: Broker) -> None:
    await q.update_queue("orders", events=["done"])
    await put(q)
    await q.delete_queue("orders")
    await q.create_queue("orders", "topic = 'orders'")
    assert await events(q) == ("done",)
    await q.delete_webhook("ops")
    assert await events(q) == ()


async def test_events_that_an_earlier_version_has_added_are_removed(q: Broker) -> None:
    """It noted them in the webhook, not per queue."""
    await put(q)
    ((name, value),) = await q.engine.list_documents(WEBHOOK_KIND)
    old = {**msgspec.json.decode(value), "added": ["done"]}
    await q.engine.put_document(WEBHOOK_KIND, name, msgspec.json.encode(old))
    for note, _ in await q.engine.list_documents(ADDED_KIND):
        await q.engine.delete_document(ADDED_KIND, note)
    await put(q, events=["message.failed"])
    assert await events(q) == ("failed",)
    await q.delete_webhook("ops")
    assert await events(q) == ()
    assert await q.engine.list_documents(ADDED_KIND) == ()


@law("T1")
async def test_webhooks_belong_to_a_tenant(q: Broker) -> None:
    other = q.for_tenant("other")
    await put(q)
    assert await other.webhooks() == ()
    with pytest.raises(errors.UnknownWebhook):
        await other.webhook("ops")
    await other.create_queue("orders")
    assert await events(other) == ()
    await put(q, queue="*")
    assert await events(other) == ()


@law("E1")
@pytest.mark.parametrize(
    "field, fields",
    [
        ("id", {"id": "a b"}),
        ("id", {"id": "x" * 65}),
        ("url", {"url": "ftp://example.com/"}),
        ("url", {"url": "https:///x"}),
        ("url", {"url": "https://user:pw@example.com/"}),
        ("url", {"url": "https://example.com/#x"}),
        ("url", {"url": "https://exämple.com/"}),
        ("url", {"url": "https://example.com/\r\nx: y"}),
        ("url", {"url": "https://example.com:99999/"}),
        ("url", {"url": "https://[::1/"}),
        ("url", {"url": "https://example.com/" + "x" * 2048}),
        ("url", {"url": "http://10.0.0.1/"}),
        ("url", {"url": "http://[::ffff:127.0.0.1]/"}),
        ("url", {"url": 5}),
        ("queue", {"queue": "nobody"}),
        ("queue", {"queue": "orders.dlq"}),
        ("queue", {"queue": "penstock.webhook.ops"}),
        ("queue", {"queue": "penstock.*"}),
        ("queue", {"queue": "orders*.dlq"}),
        ("queue", {"queue": "orders%"}),
        ("queue", {"queue": "-*"}),
        ("queue", {"queue": "*" + "x" * 128}),
        ("queue", {"queue": ["orders", "bills"]}),
        ("events", {"events": []}),
        ("events", {"events": "message.done"}),
        ("events", {"events": ["message.lost"]}),
        ("events", {"events": ["message.done", "message.done"]}),
        ("threshold", {"threshold": 5}),
        ("threshold", {"events": ["queue.depth"]}),
        ("threshold", {"events": ["queue.depth"], "threshold": -1}),
        ("headers", {"headers": {"webhook-id": "x"}}),
        ("headers", {"headers": {"Content-Length": "5"}}),
        ("headers", {"headers": {"x": "a\r\nb: c"}}),
        ("headers", {"headers": {"x y": "a"}}),
        ("headers", {"headers": {"x": "a" * 1025}}),
        ("headers", {"headers": dict.fromkeys(map(str, range(17)), "x")}),
        ("headers", {"headers": 5}),
        ("description", {"description": "x" * 201}),
        ("enabled", {"enabled": 1}),
        ("secret", {"secret": "hunter2"}),
        ("secret", {"secret": "whsec_AAAA"}),
    ],
)
async def test_bad_webhooks_are_refused(q: Broker, field: str, fields: dict[str, Any]) -> None:
    before = await q.queues()
    with pytest.raises(PenstockError) as refused:
        await put(q, **fields)
    assert isinstance(refused.value, errors.BadInput | errors.UnknownQueue)
    assert refused.value.field == field
    assert await q.webhooks() == ()
    assert await q.queues() == before


@law("E1")
async def test_a_tenant_has_a_limited_number_of_webhooks(q: Broker) -> None:
    for number in range(MAX_WEBHOOKS):
        await put(q, f"w{number}")
    with pytest.raises(errors.Conflict) as refused:
        await put(q, "more")
    assert refused.value.limit == MAX_WEBHOOKS
    await put(q, "w0", events=["message.failed"])


@law("E1")
async def test_reserved_names_are_refused(q: Broker) -> None:
    await put(q)
    queue = webhook_queue("ops")
    for call in (
        q.publish("penstock.events", b""),
        q.publish_batch("penstock.events", [NewMessage(b"")]),
        q.put_topic("penstock.events"),
        q.create_queue("penstock.mine"),
        q.ensure_queue("penstock.mine"),
        q.put_queue(queue),
        q.delete_queue(queue),
        q.update_queue("orders", dead_letter_topic="penstock.events"),
    ):
        with pytest.raises(errors.BadName):
            await call
    with pytest.raises(errors.BadPolicy) as refused:
        await q.update_queue("orders", events=["claimed"])  # type: ignore[list-item]
    assert refused.value.field == "events"
