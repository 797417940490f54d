"""queue-ti over HTTP: messages, topics, groups, the message log."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.errors import MissingExtra
from penstock.model.states import State
from penstock.server.doors import load_doors
from penstock.testing.laws import law
from tests.unit.server.conftest import Answer, Door
from tests.unit.server.doors.conftest import Open, only

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
    ],
}


class Api:
    """Calls queue-ti and expects a status."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.broker = door.broker

    async def __call__(self, status: int, method: str, path: str, body: Any = None) -> Any:
        answer = await self.door.call(method, f"/api{path}", body)
        assert answer.status == status, (answer.status, answer.body)
        if status >= 400:
            assert list(answer.json()) == ["error"], answer.body
            return answer.json()["error"]
        return json.loads(answer.body) if answer.body else None

    async def enqueue(self, topic: str = "orders", payload: str = "x", **more: Any) -> str:
        body = {"topic": topic, "payload": payload, **more}
        return (await self(201, "POST", "/messages", body))["id"]

    async def dequeue(self, topic: str = "orders", **more: Any) -> list[dict[str, Any]]:
        found = await self(200, "POST", "/messages/dequeue", {"topic": topic, **more})
        return found["messages"]

    async def listed(self, topic: str, query: str = "") -> list[dict[str, Any]]:
        return (await self(200, "GET", f"/messages?topic={topic}{query}"))["items"]


@pytest.fixture
def api(through: Open) -> Api:
    return Api(through("queue-ti"))


async def test_a_message_is_enqueued_dequeued_and_nacked_into_the_dlq(api: Api) -> None:
    made = await api.enqueue(payload='{"n":1}', metadata={"source": "web"}, key="k")
    (first,) = await api.dequeue(count=10)
    assert first == {
        "id": made,
        "topic": "orders",
        "key": "k",
        "payload": '{"n":1}',
        "metadata": {"source": "web"},
        "status": "processing",
        "retry_count": 0,
        "max_retries": 3,
        "expires_at": first["expires_at"],
        "created_at": first["created_at"],
    }
    assert first["created_at"].endswith("Z")
    assert await api.dequeue() == []
    await api(204, "POST", f"/messages/{made}/nack", {"error": "boom"})
    (again,) = await api.dequeue()
    assert again["retry_count"] == 1
    await api(204, "POST", f"/messages/{made}/nack")
    (third,) = await api.dequeue()
    assert third["retry_count"] == 2
    await api(204, "POST", f"/messages/{made}/nack", {"error": "for good"})
    assert await api.dequeue() == []
    (dead,) = await api.listed("orders.dlq")
    assert (dead["id"], dead["topic"], dead["status"]) == (made, "orders.dlq", "pending")
    assert (dead["original_topic"], dead["last_error"]) == ("orders", "for good")
    assert (dead["retry_count"], dead["max_retries"]) == (0, 0)
    assert dead["dlq_moved_at"]
    await api(204, "POST", f"/messages/{made}/requeue")
    await api(404, "POST", f"/messages/{made}/requeue")
    (back,) = await api.dequeue()
    assert (back["id"], back["retry_count"]) == (made, 0)


@law("S1")
async def test_nacking_needs_a_message_that_is_processed(api: Api) -> None:
    made = await api.enqueue()
    other = await api.enqueue("other")
    for path in (made, "4ad814ab-213e-41e3-a9a3-0025904f6e08", "nonsense"):
        await api(404, "POST", f"/messages/{path}/nack", {})
    await api.dequeue(visibility_timeout_seconds=5)
    # A body that cannot be read counts as none.
    answer = await api.door.call("POST", f"/api/messages/{made}/nack", b"{")
    assert answer.status == 204
    await api(404, "POST", f"/messages/{made}/nack")
    await api(404, "POST", f"/messages/{other}/nack", {"consumer_group": "g"})


async def test_a_pending_message_of_a_key_is_overwritten(api: Api) -> None:
    made = await api.enqueue(payload="old", key="k", metadata={"v": "1"})
    assert await api.enqueue(payload="new", key="k", metadata={"v": "2"}) == made
    (found,) = await api.dequeue(count=2)
    assert (found["payload"], found["metadata"]) == ("new", {"v": "2"})
    assert await api.enqueue(payload="third", key="k") != made


@law("Q1")
async def test_every_group_gets_every_message(api: Api) -> None:
    before = await api.enqueue(payload="before")
    for group in ("billing", "mail/eu"):
        await api(201, "POST", "/topics/orders/consumer-groups", {"consumer_group": group})
        error = await api(409, "POST", "/topics/orders/consumer-groups", {"consumer_group": group})
        assert error == "consumer group already registered"
    found = await api(200, "GET", "/topics/orders/consumer-groups")
    assert found == {"items": ["billing", "mail/eu"]}
    after = await api.enqueue(payload="after")
    for group in ("billing", "mail/eu"):
        taken = await api.dequeue(count=5, consumer_group=group)
        assert [item["id"] for item in taken] == [before, after]
    # The messages of a topic with groups are theirs.
    assert [item["id"] for item in await api.dequeue(count=5)] == [before]
    assert await api.dequeue(consumer_group="unknown") == []
    await api(404, "POST", f"/messages/{after}/nack", {})
    await api(204, "POST", f"/messages/{after}/nack", {"consumer_group": "billing"})
    (again,) = await api.dequeue(count=5, consumer_group="billing")
    assert again["id"] == after
    await api(204, "DELETE", "/topics/orders/consumer-groups/billing")
    await api(404, "DELETE", "/topics/orders/consumer-groups/billing")
    assert (await api.broker.queue("orders")).policy.filter.endswith("FALSE")
    await api.broker.delete_queue((await api.broker.queues())[1].name)


async def test_names_that_two_topics_would_share_are_refused(api: Api) -> None:
    await api(201, "POST", "/topics/orders/consumer-groups", {"consumer_group": "eu"})
    body = {"topic": "orders.eu", "payload": "x"}
    assert "consumer group" in await api(409, "POST", "/messages", body)
    await api.enqueue("bills.eu")
    await api(409, "POST", "/topics/bills/consumer-groups", {"consumer_group": "eu"})


async def test_a_topic_is_configured(api: Api) -> None:
    config: dict[str, Any] = {
        "max_retries": 1,
        "message_ttl_seconds": 60,
        "max_depth": 2,
        "replayable": True,
        "replay_window_seconds": 3600,
        "throughput_limit": 100,
    }
    stored = await api(200, "PUT", "/topic-configs/orders", config)
    assert stored == {"topic": "orders", **config}
    assert await api(200, "GET", "/topic-configs") == {"items": [stored]}
    made = await api.enqueue()
    await api.enqueue()
    await api(429, "POST", "/messages", {"topic": "orders", "payload": "x"})
    (first,) = await api.dequeue()
    assert (first["id"], first["max_retries"]) == (made, 1)
    await api(204, "POST", f"/messages/{made}/nack")
    assert [item["id"] for item in await api.listed("orders.dlq")] == [made]
    api.door.clock.advance(60_000)
    assert await api.dequeue() == []
    assert [item["status"] for item in await api.listed("orders")] == ["expired"]
    await api(204, "DELETE", "/topic-configs/orders")
    await api(404, "DELETE", "/topic-configs/orders")
    assert (await api.broker.queue("orders")).policy.max_depth is None
    assert await api(200, "GET", "/topic-configs") == {"items": []}
    # A window without replay is dropped; a message without a ttl lives forever.
    again: dict[str, Any] = {"replay_window_seconds": 5, "message_ttl_seconds": 0}
    stored = await api(200, "PUT", "/topic-configs/orders", again)
    assert stored == {"topic": "orders", "message_ttl_seconds": 0, "replayable": False}
    await api.enqueue()
    (found,) = await api.dequeue()
    assert "expires_at" not in found


@pytest.mark.parametrize(
    "path, body",
    [
        ("/topic-configs/orders.dlq", {}),
        ("/topic-configs/orders", {"throughput_limit": -1}),
        ("/topic-configs/orders", {"max_retries": "three"}),
        ("/topic-configs/orders", {"max_depth": 2**70}),
        ("/topic-configs/orders", {"message_ttl_seconds": 10**12}),
        ("/topic-configs/" + "x" * 200, {}),
        ("/topic-schemas/orders", {}),
        ("/topic-schemas/orders", {"schema_json": "{"}),
        ("/topic-schemas/orders", {"schema_json": '{"type":"unknown"}'}),
        ("/topic-schemas/orders", {"schema_json": "[" * 5_000}),
        ("/admin/delete-reaper/schedule", {}),
    ],
)
async def test_bad_settings_change_nothing(api: Api, path: str, body: Any) -> None:
    await api(400, "PUT", path, body)
    assert await api.broker.queues() == ()
    assert await api.broker.topics() == ()


async def test_payloads_are_checked_against_an_avro_schema(api: Api) -> None:
    path = "/topic-schemas/orders"
    text = json.dumps(SCHEMA)
    first = await api(200, "PUT", path, {"schema_json": text})
    assert (first["topic"], first["schema_json"], first["version"]) == ("orders", text, 1)
    good = {"id": 1, "lines": ["a"]}
    for payload in (good, {**good, "note": "n"}, {**good, "note": None}):
        await api.enqueue(payload=json.dumps(payload))
    bad: list[Any] = [
        {"id": 1},
        {**good, "id": "1"},
        {**good, "id": 2**40},
        [],
        {**good, "note": 1},
    ]
    for wrong in bad:
        body = {"topic": "orders", "payload": json.dumps(wrong)}
        assert "does not match topic schema" in await api(422, "POST", "/messages", body)
    await api(422, "POST", "/messages", {"topic": "orders", "payload": "no JSON"})
    second = await api(200, "PUT", path, {"schema_json": '"string"'})
    assert second["version"] == 2
    await api.enqueue(payload='"text"')
    assert await api(200, "GET", "/topic-schemas") == {"items": [second]}
    assert await api(200, "GET", path) == second
    for _ in range(2):
        await api(204, "DELETE", path)
    await api(404, "GET", path)
    await api.enqueue(payload="anything")


async def test_messages_are_listed_by_offset(api: Api) -> None:
    made = [await api.enqueue(payload=str(n)) for n in range(5)]
    await api.dequeue(count=2)
    await api.enqueue("other")
    page = await api(200, "GET", "/messages?topic=orders&limit=2&offset=2")
    assert (page["total"], page["limit"], page["offset"]) == (5, 2, 2)
    assert [item["id"] for item in page["items"]] == [made[4], made[0]]
    assert [item["status"] for item in page["items"]] == ["pending", "processing"]
    for query, limit, offset in (
        ("limit=0&offset=-3", 1, 0),
        ("limit=1000", 200, 0),
        ("limit=x&offset=y", 50, 0),
        ("limit=999999999999999999999", 50, 0),
    ):
        page = await api(200, "GET", f"/messages?topic=orders&{query}")
        assert (page["limit"], page["offset"]) == (limit, offset)
    assert (await api(200, "GET", "/messages"))["total"] == 6
    assert await api.listed("nothing") == []


async def test_stats_count_by_topic_and_status(api: Api) -> None:
    await api(201, "POST", "/topics/orders/consumer-groups", {"consumer_group": "g"})
    made = await api.enqueue()
    await api.enqueue()
    await api.broker.publish("native", b"x")
    for _ in range(3):
        await api.dequeue(consumer_group="g")
        await api(204, "POST", f"/messages/{made}/nack", {"consumer_group": "g"})
    await api.dequeue(consumer_group="g")
    assert (await api(200, "GET", "/stats"))["topics"] == [
        {"topic": "native", "status": "pending", "count": 1},
        {"topic": "orders", "status": "processing", "count": 1},
        {"topic": "orders.dlq", "status": "pending", "count": 1},
    ]


async def test_purge_takes_statuses(api: Api) -> None:
    for _ in range(3):
        await api.enqueue()
    await api.dequeue()
    path = "/topics/orders/purge"
    assert "invalid status" in await api(400, "POST", path, {"statuses": ["failed"]})
    assert await api(200, "POST", path, {"statuses": ["processing"]}) == {"deleted": 1}
    assert await api(200, "POST", path, {"statuses": ["pending"]}) == {"deleted": 2}
    await api.enqueue()
    await api.enqueue()
    await api.dequeue()
    assert await api(200, "POST", path, {}) == {"deleted": 2}
    assert await api(200, "POST", "/topics/orders.dlq/purge", {}) == {"deleted": 0}


async def test_messages_are_deleted_by_key(api: Api) -> None:
    await api.enqueue(key="it's")
    await api.dequeue()
    await api.enqueue(key="it's")
    await api.enqueue(key="other")
    assert await api(200, "DELETE", "/topics/orders/messages/by-key/it's") == {"deleted": 2}
    assert [item["key"] for item in await api.listed("orders")] == ["other"]


async def test_acked_messages_are_logged_replayed_and_trimmed(api: Api) -> None:
    await api(422, "POST", "/topics/orders/replay", {})
    await api(200, "PUT", "/topic-configs/orders", {"replayable": True})
    made = [await api.enqueue(payload=str(n), key=f"k{n}") for n in range(2)]
    for delivery in await api.broker.claim("orders", limit=2):
        await api.broker.ack(delivery)
        api.door.clock.advance(1000)
    log = await api(200, "GET", "/topics/orders/message-log?limit=1&offset=1")
    (item,) = log["items"]
    assert (log["total"], item["id"], item["payload"], item["key"]) == (2, made[1], "MQ==", "k1")
    assert item["acked_at"] > item["created_at"]
    before = item["acked_at"]
    assert await api(400, "DELETE", "/topics/orders/message-log")
    assert await api(400, "DELETE", "/topics/orders/message-log?before=yesterday")
    trimmed = await api(200, "DELETE", f"/topics/orders/message-log?before={before}")
    assert trimmed == {"deleted": 1}
    assert "time" in await api(422, "POST", "/topics/orders/replay", {"from_time": "soon"})
    done = await api(200, "POST", "/topics/orders/replay")
    assert done == {"topic": "orders", "enqueued": 1, "from_time": ""}
    assert [item["id"] for item in await api.dequeue(count=5)] == [made[1]]
    window = {"replayable": True, "replay_window_seconds": 1}
    await api(200, "PUT", "/topic-configs/orders", window)
    api.door.clock.advance(10_000)
    old = {"from_time": before}
    assert "window" in await api(422, "POST", "/topics/orders/replay", old)
    api.door.clock.advance(20_000)
    (delivery,) = await api.broker.claim("orders")
    await api.broker.ack(delivery)
    api.door.clock.advance(20_000)
    assert await api(200, "POST", "/admin/archive-reaper/run") == {"deleted": 1}


async def test_reapers_expire_and_delete(api: Api) -> None:
    await api(200, "PUT", "/topic-configs/orders", {"message_ttl_seconds": 1})
    await api.enqueue()
    api.door.clock.advance(1000)
    assert await api(200, "POST", "/admin/expiry-reaper/run") == {"expired": 1}
    assert await api(200, "POST", "/admin/delete-reaper/run") == {"deleted": 1}
    path = "/admin/delete-reaper/schedule"
    assert await api(200, "GET", path) == {"schedule": "", "active": False}
    assert await api(422, "PUT", path, {"schedule": "every day"})
    wanted = {"schedule": "0 3 * * *", "active": True}
    assert await api(200, "PUT", path, {"schedule": "0 3 * * *"}) == wanted
    assert await api(200, "GET", path) == wanted
    assert await api(200, "PUT", path, {"schedule": ""}) == {"schedule": "", "active": False}


async def test_the_delete_reaper_runs_what_is_due(through: Open) -> None:
    door = through("queue-ti")
    api = Api(door)
    await api(200, "PUT", "/topic-configs/orders", {"message_ttl_seconds": 1})
    await api.enqueue()
    door.clock.advance(1000)
    await api(200, "POST", "/admin/expiry-reaper/run")
    await api(200, "PUT", "/admin/delete-reaper/schedule", {"schedule": "*/5 * * * *"})
    queue_ti = only(door)
    now = door.clock.now()
    assert await queue_ti.reaper.run_due(now, now) == 0
    assert await queue_ti.reaper.run_due(now, now + 300_000) == 1
    assert await queue_ti.reaper.run_due(now, now + 300_000) == 0


@law("E1")
@pytest.mark.parametrize(
    "status, method, path, body",
    [
        (400, "POST", "/messages", {"payload": "x"}),
        (400, "POST", "/messages", {"topic": "orders"}),
        (400, "POST", "/messages", {"topic": 5, "payload": "x"}),
        (400, "POST", "/messages", {"topic": "orders", "payload": "x", "metadata": {"a": 1}}),
        (400, "POST", "/messages", {"topic": "x" * 500, "payload": "x"}),
        (400, "POST", "/messages", {"topic": "o", "payload": "x", "key": "k" * 600}),
        (400, "POST", "/messages", {"topic": "o", "payload": "x", "metadata": {"a": "b" * 20_000}}),
        (400, "POST", "/messages", "[" * 100_000),
        (400, "POST", "/messages", "null"),
        (400, "POST", "/messages", b"\xff"),
        (500, "POST", "/messages", {"topic": "orders.dlq", "payload": "x"}),
        (400, "POST", "/messages/dequeue", {}),
        (400, "POST", "/messages/dequeue", {"topic": "orders", "count": 0}),
        (400, "POST", "/messages/dequeue", {"topic": "orders", "count": 1001}),
        (400, "POST", "/messages/dequeue", {"topic": "orders", "visibility_timeout_seconds": 0}),
        (400, "POST", "/messages/dequeue", {"topic": "orders", "consumer_group": "g" * 300}),
        (400, "POST", "/topics/orders/consumer-groups", {}),
        (400, "POST", "/topics/orders.dlq/consumer-groups", {"consumer_group": "g"}),
        (400, "GET", "/messages?" + "&".join(f"a{n}=1" for n in range(40)), None),
        (404, "GET", "/nothing", None),
        (405, "PATCH", "/messages", None),
    ],
)
async def test_bad_calls_get_an_error_and_change_nothing(
    api: Api, status: int, method: str, path: str, body: Any
) -> None:
    if isinstance(body, str | bytes):
        headers = {"content-type": "application/json"}
        answer: Answer = await api.door.call(method, f"/api{path}", body, headers)
        assert answer.status == status
        assert list(answer.json()) == ["error"]
    else:
        await api(status, method, path, body)
    assert await api.broker.log_end() == 0


async def test_a_body_of_another_type_is_refused(api: Api) -> None:
    body = b'{"topic":"orders","payload":"x"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = await api.door.call("POST", "/api/messages", body, {"content-type": kind})
        assert answer.status == 400


async def test_a_native_topic_that_looks_escaped_hides_nothing(api: Api) -> None:
    await api.broker.publish("esc.zz", b"x")
    await api.enqueue()
    found = (await api(200, "GET", "/messages"))["items"]
    assert {item["topic"] for item in found} == {"esc.zz", "orders"}
    assert len((await api(200, "GET", "/stats"))["topics"]) == 2


def test_the_door_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("penstock.server.doors.queue_ti")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingExtra, match=r"penstock\[grpc\]"):
        load_doors("queue-ti")


async def test_native_messages_are_read_and_the_other_way_round(api: Api, broker: Broker) -> None:
    await broker.publish("orders", b"\xff", headers={"n": 1, "f": 1.5, "yes": True})
    (found,) = await api.dequeue()
    assert (found["payload"], found["metadata"]) == (
        "\ufffd",
        {"n": "1", "f": "1.5", "yes": "true"},
    )
    await api.enqueue("a/b", "text", metadata={"who": "me"})
    (native,) = (await broker.peek("esc.a_2Fb", State.AVAILABLE, payloads=True)).items
    assert (native.payload, native.message.headers) == (b"text", {"who": "me"})


async def test_a_dead_letter_that_is_processed_counts_once(api: Api) -> None:
    await api(200, "PUT", "/topic-configs/orders", {"max_retries": 1})
    for number in range(3):
        await api.enqueue(payload=str(number), key="k" if number else None)
        for item in await api.dequeue():
            await api(204, "POST", f"/messages/{item['id']}/nack")
    taken = await api.dequeue("orders.dlq", count=2)
    found = await api(200, "GET", "/messages?topic=orders.dlq")
    shown = [(item["payload"], item["status"]) for item in found["items"]]
    assert shown == [("2", "pending"), ("0", "processing"), ("1", "processing")]
    assert found["total"] == 3
    assert (await api(200, "GET", "/messages"))["total"] == 3
    assert (await api(200, "GET", "/stats"))["topics"] == [
        {"topic": "orders.dlq", "status": "pending", "count": 1},
        {"topic": "orders.dlq", "status": "processing", "count": 2},
    ]
    deleted = await api(200, "DELETE", "/topics/orders.dlq/messages/by-key/k")
    assert deleted == {"deleted": 2}
    await api(404, "POST", f"/messages/{taken[1]['id']}/nack")
    assert (await api(200, "GET", "/messages?topic=orders.dlq"))["total"] == 1
