"""codeQ: tasks, workers, results, webhooks, administration."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from penstock.model.states import State
from penstock.server.doors.codeq.callbacks import RESULTS
from penstock.server.doors.codeq.subscriptions import MAX_TENANT_SUBSCRIPTIONS, Subscription
from penstock.testing.laws import law
from tests.unit.keepers.receiver import Receiver
from tests.unit.server.conftest import Door
from tests.unit.server.doors.conftest import Open, only

HOOK = {"callbackUrl": "http://x"}
UNKNOWN = "4ad814ab-213e-41e3-a9a3-0025904f6e08"


class Api:
    """Calls codeQ and expects a status."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.broker = door.broker

    async def __call__(self, status: int, method: str, path: str, body: Any = None) -> Any:
        answer = await self.door.call(method, f"/v1/codeq{path}", body)
        assert answer.status == status, (answer.status, answer.body)
        assert answer.headers["x-request-id"]
        if status >= 400:
            assert "error" in answer.json()
        return json.loads(answer.body) if answer.body else None

    async def error(self, status: int, method: str, path: str, body: Any = None) -> str:
        return (await self(status, method, path, body))["error"]

    async def create(self, command: str = "RENDER", **more: Any) -> dict[str, Any]:
        return await self(202, "POST", "/tasks", {"command": command, "payload": {"n": 1}, **more})

    async def claim(self, *commands: str, **more: Any) -> dict[str, Any]:
        body = {"commands": list(commands or ("RENDER",)), **more}
        return await self(200, "POST", "/tasks/claim", body)

    async def task(self, id: str) -> dict[str, Any]:
        return await self(200, "GET", f"/tasks/{id}")


@pytest.fixture
def api(through: Open) -> Api:
    return Api(through("codeq"))


async def test_a_task_is_created_claimed_and_completed(api: Api) -> None:
    made = await api.create(priority=3)
    assert made == {
        "id": made["id"],
        "command": "RENDER",
        "payload": '{"n": 1}',
        "priority": 3,
        "status": "PENDING",
        "lastKnownLocation": "PENDING_LIST",
        "maxAttempts": 5,
        "tenantId": "default",
        "createdAt": made["createdAt"],
        "updatedAt": made["createdAt"],
    }
    path = f"/tasks/{made['id']}"
    assert await api.error(404, "GET", f"{path}/result") == "result not found"
    claimed = await api.claim(leaseSeconds=60)
    assert (claimed["id"], claimed["status"], claimed["attempts"]) == (
        made["id"],
        "IN_PROGRESS",
        1,
    )
    assert (claimed["workerId"], claimed["lastKnownLocation"]) == ("anybody", "INPROG_SET")
    assert claimed["leaseUntil"] > claimed["updatedAt"] >= made["createdAt"]
    assert await api.task(made["id"]) == claimed
    assert await api(204, "POST", "/tasks/claim", {"commands": ["RENDER"]}) is None
    assert await api(200, "POST", f"{path}/heartbeat", {"extendSeconds": 600}) == {"ok": True}
    submitted = {
        "status": "COMPLETED",
        "result": {"ok": [1, None]},
        "artifacts": [
            {"name": "a", "url": "https://example.org/a"},
            {"name": "b", "contentBase64": "eA==", "contentType": "text/plain"},
        ],
    }
    result = await api(200, "POST", f"{path}/result", submitted)
    assert result == {
        "taskId": made["id"],
        "status": "COMPLETED",
        "result": {"ok": [1, None]},
        "artifacts": [
            {"name": "a", "url": "https://example.org/a"},
            {"name": "b", "url": "data:text/plain;base64,eA=="},
        ],
        "completedAt": result["completedAt"],
    }
    assert await api.error(409, "POST", f"{path}/result", submitted) == "not-in-progress"
    both = await api(200, "GET", f"{path}/result?waitSeconds=5")
    assert both["result"] == result
    assert both["task"] == await api.task(made["id"])
    assert (both["task"]["status"], both["task"]["resultKey"]) == (
        "COMPLETED",
        f"codeq/results/{made['id']}",
    )


async def test_a_failed_result_is_a_dead_letter_with_all_its_parts(api: Api) -> None:
    made = await api.create()
    await api.claim()
    submitted = {
        "status": "FAILED",
        "error": "no disk",
        "result": {"done": 3},
        "artifacts": [{"name": "log", "url": "https://example.org/log"}],
    }
    result = await api(200, "POST", f"/tasks/{made['id']}/result", submitted)
    assert (result["status"], result["error"], result["result"]) == (
        "FAILED",
        "no disk",
        {"done": 3},
    )
    both = await api(200, "GET", f"/tasks/{made['id']}/result")
    assert both["result"] == result
    assert (both["task"]["status"], both["task"]["error"]) == ("FAILED", "no disk")
    assert both["task"]["lastKnownLocation"] == "NONE"
    (dead,) = (await api.broker.peek("RENDER", State.FAILED)).items
    assert (dead.error or "").startswith("no disk\n")
    await api.broker.replay("RENDER")
    assert (await api.task(made["id"]))["status"] == "PENDING"


@law("C2")
async def test_a_nacked_task_comes_back_until_its_attempts_are_spent(api: Api) -> None:
    made = await api.create(maxAttempts=2)
    path = f"/tasks/{made['id']}/nack"
    await api.claim()
    # Without a delay the backoff counts: here without jitter, 5 seconds.
    reply = await api(200, "POST", path, {"reason": "later"})
    assert reply == {"status": "requeued", "delaySeconds": 5}
    task = await api.task(made["id"])
    assert (task["lastKnownLocation"], task["error"], task["attempts"]) == (
        "DELAYED_ZSET",
        "later",
        1,
    )
    await api(204, "POST", "/tasks/claim", {"commands": ["RENDER"]})
    api.door.clock.advance(5_000)
    await api.claim()
    assert await api(200, "POST", path, {}) == {"status": "dlq", "delaySeconds": 0}
    both = await api(200, "GET", f"/tasks/{made['id']}/result")
    assert (both["task"]["status"], both["task"]["lastKnownLocation"]) == ("FAILED", "DLQ_SET")
    assert (both["result"]["status"], both["result"]["error"]) == ("FAILED", "MAX_ATTEMPTS")
    assert await api.error(409, "POST", path, {}) == "not-in-progress"
    other = await api.create()
    await api.claim()
    reply = await api(200, "POST", f"/tasks/{other['id']}/nack", {"delaySeconds": 5_000})
    assert reply == {"status": "requeued", "delaySeconds": 900}


@law("S1")
async def test_only_the_worker_that_has_a_task_may_settle_it(through: Open) -> None:
    door = through("codeq", auth=True)
    api = Api(door)
    keys = [await door.keys.create("default", ["admin:*"]) for _ in range(2)]
    first, second = ({"authorization": f"Bearer {key.key}"} for key in keys)
    door.headers = first
    made = await api.create()
    claimed = await api.claim(leaseSeconds=1)
    assert claimed["workerId"] == keys[0].info.id
    done = {"status": "COMPLETED", "result": {}}
    steps: list[tuple[str, Any]] = [
        ("heartbeat", {}),
        ("abandon", None),
        ("nack", {}),
        ("result", done),
    ]
    door.headers = second
    for step, body in steps:
        assert await api.error(403, "POST", f"/tasks/{made['id']}/{step}", body) == "not-owner"
    door.clock.advance(1_000)
    assert (await api.claim())["id"] == made["id"]
    door.headers = first
    for step, body in steps:
        assert await api.error(403, "POST", f"/tasks/{made['id']}/{step}", body) == "not-owner"
    door.headers = second
    await api(200, "POST", f"/tasks/{made['id']}/result", done)


async def test_an_abandoned_task_has_used_no_attempt(api: Api) -> None:
    made = await api.create(maxAttempts=1)
    for _ in range(3):
        assert (await api.claim())["id"] == made["id"]
        reply = await api(200, "POST", f"/tasks/{made['id']}/abandon")
        assert reply == {"status": "requeued"}
    assert "attempts" not in await api.task(made["id"])


async def test_statuses_for_tasks_that_are_not_there_or_not_claimed(api: Api) -> None:
    made = await api.create()
    done = {"status": "COMPLETED", "result": {}}
    for other in (UNKNOWN, "nonsense", made["id"].upper()[:-1]):
        assert await api.error(404, "GET", f"/tasks/{other}") == "task not found"
        assert (
            await api.error(404, "GET", f"/tasks/{other}/result?waitSeconds=9") == "task not found"
        )
        for step, status, body in (
            ("heartbeat", 500, {}),
            ("abandon", 500, None),
            ("nack", 404, {}),
            ("result", 404, done),
        ):
            assert await api.error(status, "POST", f"/tasks/{other}/{step}", body) == "not-found"
    assert await api.error(500, "POST", f"/tasks/{made['id']}/abandon") == "not-in-progress"
    await api.error(403, "POST", f"/tasks/{made['id']}/heartbeat", {})
    await api.error(409, "POST", f"/tasks/{made['id']}/nack", {})


@law("P4")
async def test_an_idempotency_key_names_the_first_task(api: Api) -> None:
    first = await api.create(idempotencyKey="k")
    assert await api.create(idempotencyKey="k", priority=9) == first
    api.door.clock.advance(24 * 3600 * 1000)
    assert (await api.create(idempotencyKey="k"))["id"] != first["id"]


@law("C3", "C4")
async def test_priorities_delays_and_run_times(api: Api) -> None:
    low, high, over = [(await api.create(priority=n))["id"] for n in (0, 5, 99)]
    late = (await api.create(delaySeconds=10, priority=9))["id"]
    at = (await api.create(runAt="2023-11-14T22:13:30Z", delaySeconds=999, priority=9))["id"]
    past = (await api.create(runAt="2001-01-01T00:00:00+02:00"))["id"]
    assert (await api.task(at))["lastKnownLocation"] == "DELAYED_ZSET"
    assert [(await api.claim())["id"] for _ in range(4)] == [over, high, low, past]
    api.door.clock.advance(10_000)
    assert {(await api.claim())["id"] for _ in range(2)} == {late, at}


async def test_several_commands_are_claimed_in_their_order(api: Api) -> None:
    b = await api.create("b/1")
    a = await api.create("A")
    body = {"commands": ["A", "b/1", "A"], "count": 10}
    found = await api(200, "POST", "/tasks/claim/batch", body)
    assert [task["id"] for task in found["tasks"]] == [a["id"], b["id"]]
    assert found["tasks"][1]["command"] == "b/1"
    await api(204, "POST", "/tasks/claim/batch", body)
    for count in (None, 0, 11):
        await api(400, "POST", "/tasks/claim/batch", {"count": count})
    # Without commands, those of codeQ's own default.
    master = await api.create("GENERATE_MASTER")
    assert (await api(200, "POST", "/tasks/claim", {}))["id"] == master["id"]


async def test_batches_answer_item_by_item(api: Api) -> None:
    good = {"command": "RENDER", "payload": 1}
    body = {"tasks": [good, {"command": "RENDER"}, {**good, "webhook": "ftp://x"}, good]}
    made = (await api(200, "POST", "/tasks/batch", body))["results"]
    assert [sorted(item) for item in made] == [["task"], ["error"], ["error"], ["task"]]
    for tasks in ([], [good] * 101, None):
        await api(400, "POST", "/tasks/batch", {"tasks": tasks})
    ids = [made[0]["task"]["id"], made[3]["task"]["id"]]
    await api(200, "POST", "/tasks/claim/batch", {"commands": ["RENDER"], "count": 2})
    results = [
        {"taskId": ids[0], "status": "COMPLETED", "result": {}},
        {"taskId": UNKNOWN, "status": "COMPLETED", "result": {}},
        {"taskId": ids[1], "status": "FAILED"},
    ]
    done = await api(200, "POST", "/tasks/batch/results", {"results": results})
    assert [item["taskId"] for item in done["results"]] == [ids[0], UNKNOWN, ids[1]]
    assert done["results"][0]["result"]["status"] == "COMPLETED"
    assert [item.get("error") for item in done["results"][1:]] == [
        "not-found",
        "error is required for FAILED",
    ]


# -- webhooks ------------------------------------------------------------------------------


@law("S3")
async def test_results_are_posted_signed_and_repeated(through: Open) -> None:
    async with Receiver() as receiver:
        door = through("codeq", codeq_webhook_secret="s3cret")
        api = Api(door)
        codeq = only(door)
        made = await api.create(webhook=receiver.url)
        assert made["webhook"] == receiver.url
        await api.claim()
        await api(
            200,
            "POST",
            f"/tasks/{made['id']}/result",
            {"status": "COMPLETED", "result": {"ok": True}},
        )
        receiver.answers = ["500 No", "200 OK"]
        assert await codeq.callbacks.post_due() == 1
        assert await codeq.callbacks.post_due() == 0
        door.clock.advance(2_000)
        assert await codeq.callbacks.post_due() == 1
        assert (await api.broker.stats(RESULTS)).done == 1
        first, second = await receiver.received(2)
        assert first.body == second.body
        posted = json.loads(second.body)
        assert posted == {
            "taskId": made["id"],
            "eventType": "RENDER",
            "status": "COMPLETED",
            "result": {"ok": True},
            "error": "",
            "artifacts": None,
            "completedAt": posted["completedAt"],
        }
        at = second.headers["x-codeq-timestamp"]
        signed = f"{at}.".encode() + second.body
        expected = hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
        assert second.headers["x-codeq-signature"] == expected


async def test_a_webhook_is_given_up_after_five_tries(api: Api) -> None:
    async with Receiver() as receiver:
        receiver.answers = ["503 No"]
        codeq = only(api.door)
        made = await api.create(webhook=receiver.url, maxAttempts=1)
        await api.claim()
        await api(200, "POST", f"/tasks/{made['id']}/nack", {"reason": "bad"})
        for delay_s in (2, 4, 8, 16, 32):
            assert await codeq.callbacks.post_due() == 1
            api.door.clock.advance(delay_s * 1000)
        assert await codeq.callbacks.post_due() == 0
        assert (await api.broker.stats(RESULTS)).failed == 1
        calls = await receiver.received(5)
        posted = json.loads(calls[-1].body)
        assert (posted["status"], posted["error"], posted["result"]) == ("FAILED", "bad", None)
        assert "x-codeq-signature" not in calls[-1].headers


async def test_subscribers_are_notified_when_there_is_work(api: Api) -> None:
    async with Receiver() as receiver:
        codeq = only(api.door)
        body = {"callbackUrl": receiver.url, "eventTypes": ["RENDER"], "ttlSeconds": 30}
        made = await api(200, "POST", "/workers/subscriptions", body)
        assert made["expiresAt"].endswith("Z")
        assert await codeq.notifier.look() == 0
        await api.create()
        assert await codeq.notifier.look() == 1
        assert await codeq.notifier.look() == 0
        (call,) = await receiver.received(1)
        posted = json.loads(call.body)
        assert posted == {
            "eventType": "RENDER",
            "available": True,
            "queueDepth": 0,
            "claimUrl": "/v1/codeq/tasks/claim",
            "sentAt": posted["sentAt"],
            "notificationId": f"ntf-{made['subscriptionId']}",
        }
        api.door.clock.advance(20_000)
        path = f"/workers/subscriptions/{made['subscriptionId']}/heartbeat"
        renewed = await api(200, "POST", path)
        assert renewed["expiresAt"] > made["expiresAt"]
        api.door.clock.advance(60_000)
        await api(404, "POST", path, {"ttlSeconds": 5})
        await api(404, "POST", "/workers/subscriptions/sub-x/heartbeat")


async def test_groups_and_hashes_share_the_notifications(api: Api) -> None:
    async with Receiver() as receiver:
        codeq = only(api.door)
        for mode, count in (("fanout", 2), ("group", 2), ("hash", 3)):
            for _ in range(count):
                body = {
                    "callbackUrl": receiver.url,
                    "eventTypes": ["RENDER"],
                    "deliveryMode": mode,
                    "groupId": "g" if mode == "group" else None,
                }
                await api(200, "POST", "/workers/subscriptions", body)
        await api.create()
        assert await codeq.notifier.look() == 4
        named = {json.loads(call.body)["notificationId"] for call in await receiver.received(4)}
        assert len(named) == 4
        await api.claim()
        assert await codeq.notifier.look() == 0
        await api.create()
        assert await codeq.notifier.look() == 4
        again = [json.loads(call.body)["notificationId"] for call in await receiver.received(8)]
        assert len(set(again)) == 5  # The group's turn went to its other member.


# -- administration ------------------------------------------------------------------------

POLICY = {
    "priorityTiers": [5, 0],
    "maxAttempts": 3,
    "deadLetterTopicRef": "dead",
    "retentionSeconds": 60,
}


async def test_topic_policies(api: Api) -> None:
    made = await api(201, "PUT", "/admin/topics/render", POLICY)
    assert (made["topicId"], made["tenantId"], made["topicName"], made["version"]) == (
        "default.render",
        "default",
        "render",
        1,
    )
    assert made["policy"] == {**POLICY, "priorityTiers": [0, 5]}
    policy = (await api.broker.queue("render")).policy
    assert (policy.max_attempts, policy.dead_letter_topic, policy.done_retention_s) == (
        3,
        "dead",
        60,
    )
    again = await api(200, "PUT", "/admin/topics/render", {**POLICY, "maxConsumers": 2})
    assert (again["version"], again["createdAt"]) == (2, made["createdAt"])
    assert await api(200, "GET", "/admin/topics/render") == again
    await api(400, "DELETE", "/admin/topics/render")
    await api(204, "DELETE", "/admin/topics/render?deletionPolicy=Delete")
    await api(404, "DELETE", "/admin/topics/render?deletionPolicy=Delete")
    await api(404, "GET", "/admin/topics/render")
    assert await api.broker.queues() == ()


@pytest.mark.parametrize(
    "field, change",
    [
        ("priorityTiers", {"priorityTiers": []}),
        ("priorityTiers", {"priorityTiers": [1, 1]}),
        ("priorityTiers", {"priorityTiers": [11]}),
        ("maxAttempts", {"maxAttempts": 0}),
        ("maxAttempts", {"maxAttempts": None}),
        ("deadLetterTopicRef", {"deadLetterTopicRef": "render"}),
        ("deadLetterTopicRef", {"deadLetterTopicRef": "Dead"}),
        ("retentionSeconds", {"retentionSeconds": -1}),
        ("maxConsumers", {"maxConsumers": 10_001}),
    ],
)
async def test_bad_policies_name_their_field(api: Api, field: str, change: Any) -> None:
    refused = await api(422, "PUT", "/admin/topics/render", {**POLICY, **change})
    assert refused["field"] == field
    assert await api.broker.queues() == ()
    for name in ("Render", "-x", "x" * 64):
        refused = await api(422, "GET", f"/admin/topics/{name}")
        assert refused["field"] == "topicName"
    await api(400, "PUT", "/admin/topics/render", {**POLICY, "unknown": 1})


async def test_queues_are_counted_and_cleaned_up(api: Api) -> None:
    made = [(await api.create(maxAttempts=1))["id"] for _ in range(3)]
    await api.create(delaySeconds=60)
    await api.claim()
    await api(200, "POST", f"/tasks/{made[0]}/nack", {})
    await api.claim()
    counts = await api(200, "GET", "/admin/queues/RENDER")
    assert counts == {"command": "RENDER", "ready": 1, "delayed": 1, "inProgress": 1, "dlq": 1}
    assert (await api(200, "GET", "/admin/queues/NONE"))["ready"] == 0
    assert await api(200, "GET", "/admin/queues") == {
        "RENDER/default/pending": 1,
        "RENDER/default/delayed": 1,
        "RENDER/default/inprog": 1,
        "RENDER/default/dlq": 1,
    }
    await api(200, "POST", f"/tasks/{made[1]}/result", {"status": "COMPLETED", "result": {}})
    cleaned = await api(200, "POST", "/admin/tasks/cleanup")
    assert (cleaned["deleted"], cleaned["limit"]) == (0, 1000)
    body = {"limit": 1, "before": "2023-11-16T00:00:00Z"}
    cleaned = await api(200, "POST", "/admin/tasks/cleanup", body)
    assert cleaned == {"deleted": 1, "limit": 1, "before": "2023-11-16T00:00:00.000Z"}
    api.door.clock.advance(25 * 3600 * 1000)
    cleaned = await api(200, "POST", "/admin/tasks/cleanup", {})
    assert cleaned["deleted"] == 1
    # What is not finished stays.
    assert (await api.broker.stats("RENDER")).depth == 2


@law("E1")
@pytest.mark.parametrize(
    "status, method, path, body",
    [
        (400, "POST", "/tasks", {"payload": 1}),
        (400, "POST", "/tasks", {"command": "A"}),
        (400, "POST", "/tasks", {"command": "A", "payload": None}),
        (400, "POST", "/tasks", {"command": "A", "payload": 1, "delaySeconds": -1}),
        (400, "POST", "/tasks", {"command": "A", "payload": 1, "runAt": "soon"}),
        (400, "POST", "/tasks", {"command": "A", "payload": 1, "runAt": "2026-01-01T00:00:00"}),
        (400, "POST", "/tasks", {"command": "A", "payload": 1, "webhook": "javascript:1"}),
        (400, "POST", "/tasks", {"command": "A", "payload": 1, "webhook": "http://u:p@x/"}),
        (400, "POST", "/tasks", {"command": "A", "payload": 1, "maxAttempts": 10**6}),
        (400, "POST", "/tasks", {"command": "A", "payload": 1, "idempotencyKey": "k" * 600}),
        (400, "POST", "/tasks", {"command": "x" * 300, "payload": 1}),
        (400, "POST", "/tasks", "[" * 50_000),
        (400, "POST", "/tasks", b'{"command":"A","payload":"\xff"}'),
        (400, "POST", "/tasks/claim", {"commands": ["x" * 300]}),
        (400, "POST", "/tasks/claim", {"commands": [f"C{n}" for n in range(101)]}),
        (400, "POST", "/tasks/claim", b""),
        (400, "POST", "/workers/subscriptions", {"callbackUrl": "x"}),
        (400, "POST", "/workers/subscriptions", {**HOOK, "deliveryMode": "y"}),
        (
            400,
            "POST",
            "/workers/subscriptions",
            {"callbackUrl": "http://a", "deliveryMode": "group"},
        ),
        (400, "POST", "/admin/tasks/cleanup", {"before": "x"}),
        (404, "GET", "/nothing", None),
        (405, "PUT", "/tasks", None),
    ],
)
async def test_bad_calls_get_an_error_and_change_nothing(
    api: Api, status: int, method: str, path: str, body: Any
) -> None:
    await api(status, method, path, body)
    assert await api.broker.log_end() == 0
    assert all(not info.name.startswith("penstock") for info in await api.broker.queues())


async def test_native_programs_and_codeq_share_their_work(api: Api) -> None:
    made = await api.create()
    (delivery,) = await api.broker.claim("RENDER", consumer="native")
    assert delivery.payload == b'{"n": 1}'
    assert (await api.task(made["id"]))["workerId"] == "native"
    await api.broker.ack(delivery, {"seen": 1})
    result = (await api(200, "GET", f"/tasks/{made['id']}/result"))["result"]
    assert result["result"] == {"seen": 1}
    await api.broker.publish("RENDER", {"from": "elsewhere"})
    claimed = await api.claim()
    assert (claimed["payload"], "maxAttempts" in claimed) == ('{"from":"elsewhere"}', False)


async def test_request_ids_and_the_cluster(api: Api) -> None:
    sent = {"x-request-id": "mine-1"}
    answer = await api.door.call("GET", "/v1/codeq/raft/status", headers=sent)
    assert answer.json() == {"enabled": False, "numGroups": 0}
    assert answer.headers["x-request-id"] == "mine-1"
    answer = await api.door.call("GET", "/v1/codeq/nothing", headers={"x-request-id": "a b"})
    assert answer.headers["x-request-id"] != "a b"


async def test_a_full_queue_is_429_with_its_scope(api: Api) -> None:
    await api.create()
    await api.broker.update_queue("RENDER", max_depth=1)
    refused = await api(429, "POST", "/tasks", {"command": "RENDER", "payload": 1})
    assert (refused["scope"], refused["operation"]) == ("producer", "create_task")
    assert refused["retryAfterSeconds"] >= 1


async def test_a_task_that_was_removed_is_not_found(api: Api) -> None:
    """The log still has its message, but nothing says how the task ended."""
    failed, cancelled = await api.create(maxAttempts=1), await api.create("OTHER")
    await api.claim()
    await api(200, "POST", f"/tasks/{failed['id']}/nack", {"reason": "broken"})
    assert (await api.task(failed["id"]))["status"] == "FAILED"
    api.door.clock.advance(25 * 3600 * 1000)
    assert (await api(200, "POST", "/admin/tasks/cleanup"))["deleted"] == 1
    await api.broker.purge("OTHER", State.AVAILABLE)
    for task in (failed, cancelled):
        assert await api.error(404, "GET", f"/tasks/{task['id']}") == "task not found"
        assert await api.error(404, "GET", f"/tasks/{task['id']}/result") == "task not found"


async def test_one_tenant_cannot_use_all_subscriptions(api: Api) -> None:
    for _ in range(MAX_TENANT_SUBSCRIPTIONS):
        await api(200, "POST", "/workers/subscriptions", HOOK)
    text = await api.error(409, "POST", "/workers/subscriptions", HOOK)
    assert text == "There are too many subscriptions."
    subscriptions = only(api.door).subscriptions
    other = Subscription(id="", url="http://x", commands=("X",), mode="fanout", expires_at=0)
    assert (await subscriptions.add("acme", other, None)).id
    # They end, and make room.
    api.door.clock.advance(60_000)
    await api(200, "POST", "/workers/subscriptions", HOOK)
