"""MQ: its six routes exactly, on the queues that everybody else sees."""

from __future__ import annotations

import pytest

from penstock.broker import Broker
from penstock.model.states import State
from penstock.server.doors.mq.door import ROUTES
from penstock.testing.laws import law
from tests.unit.server.conftest import Door
from tests.unit.server.doors.conftest import Open


@pytest.fixture
def mq(through: Open) -> Door:
    return through("mq")


async def test_queues_are_created_and_deleted_as_often_as_one_likes(mq: Door) -> None:
    assert (await mq.call("GET", "/mq/jobs")).status == 404
    for _ in range(2):
        answer = await mq.call("PUT", "/mq/jobs", b"ignored")
        assert (answer.status, answer.body) == (201, b"")
    assert (await mq.call("GET", "/mq/jobs")).status == 200
    await mq.call("POST", "/mq/jobs/messages", b"gone")
    for _ in range(2):
        assert (await mq.call("DELETE", "/mq/jobs")).status == 200
    assert (await mq.call("GET", "/mq/jobs")).status == 404
    await mq.call("PUT", "/mq/jobs")
    assert (await mq.call("GET", "/mq/jobs/messages")).status == 204


@law("P3")
async def test_a_message_comes_back_with_the_same_id_until_it_is_deleted(mq: Door) -> None:
    await mq.call("PUT", "/mq/jobs")
    posted = await mq.call("POST", "/mq/jobs/messages", b"\x00\xffraw")
    assert (posted.status, posted.body) == (201, b"")
    for _ in range(7):  # More often than a policy of Penstock allows by default.
        first = await mq.call("GET", "/mq/jobs/messages")
        assert (first.status, first.body) == (200, b"\x00\xffraw")
        assert first.headers["x-message-id"] == posted.headers["x-message-id"]
        assert (await mq.call("GET", "/mq/jobs/messages")).status == 204
        mq.clock.advance(10_000)
    path = f"/mq/jobs/messages/{posted.headers['x-message-id']}"
    assert (await mq.call("DELETE", path)).status == 202
    mq.clock.advance(10_000)
    assert (await mq.call("GET", "/mq/jobs/messages")).status == 204


@pytest.mark.parametrize("fetched", [False, True])
async def test_a_message_is_deleted_at_any_time(mq: Door, broker: Broker, fetched: bool) -> None:
    await mq.call("PUT", "/mq/jobs")
    posted = await mq.call("POST", "/mq/jobs/messages", b"x")
    if fetched:
        await mq.call("GET", "/mq/jobs/messages")
    for _ in range(2):
        answer = await mq.call("DELETE", f"/mq/jobs/messages/{posted.headers['x-message-id']}")
        assert (answer.status, answer.body) == (202, b"")
    stats = await broker.stats("jobs")
    assert (stats.depth, stats.acks) == (0, int(fetched))


@law("P1")
async def test_what_was_posted_before_the_queue_is_delivered_when_it_is_created(mq: Door) -> None:
    await mq.call("POST", "/mq/other/messages", b"elsewhere")
    for body in (b"1", b"2"):
        assert (await mq.call("POST", "/mq/jobs/messages", body)).status == 201
    assert (await mq.call("GET", "/mq/jobs")).status == 404
    assert (await mq.call("GET", "/mq/jobs/messages")).status == 204
    await mq.call("PUT", "/mq/jobs")
    found = [(await mq.call("GET", "/mq/jobs/messages")).body for _ in range(3)]
    assert found == [b"1", b"2", b""]
    # A queue that is deleted and created again begins empty.
    await mq.call("DELETE", "/mq/jobs")
    await mq.call("PUT", "/mq/jobs")
    assert (await mq.call("GET", "/mq/jobs/messages")).status == 204


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "/mq/queue001"),
        ("GET", "/mq/Jobs"),
        ("GET", "/mq/"),
        ("PUT", "/mq/a/b"),
        ("POST", "/mq/jobs"),
        ("PATCH", "/mq/jobs"),
        ("DELETE", "/mq/jobs/messages"),
        ("GET", "/mq/jobs/messages/1"),
        ("DELETE", "/mq/jobs/messages/UPPER"),
        ("DELETE", "/mq/jobs/messages/a/b"),
        ("GET", "/mq/" + "a" * 3_000),
        ("GET", "/mq/é"),
    ],
)
async def test_everything_else_is_404_without_a_body(mq: Door, method: str, path: str) -> None:
    answer = await mq.call(method, path)
    # A name that fits the pattern but is too long is bad input.
    assert answer.status == (400 if len(path) > 3_000 else 404)
    assert answer.body == b""


async def test_unknown_ids_are_accepted(mq: Door, broker: Broker) -> None:
    await mq.call("PUT", "/mq/jobs")
    await mq.call("PUT", "/mq/other")
    posted = await mq.call("POST", "/mq/jobs/messages", b"x")
    text = posted.headers["x-message-id"]
    for other in ("4ad814ab-213e-11e3-a9a3-0025904f6e08", "0", "-", text[:-1], "f" * 5_000):
        assert (await mq.call("DELETE", f"/mq/jobs/messages/{other}")).status == 202
    # The id of another queue's message deletes nothing.
    assert (await mq.call("DELETE", f"/mq/other/messages/{text}")).status == 202
    assert (await mq.call("DELETE", f"/mq/nothing/messages/{text}")).status == 202
    assert (await broker.stats("jobs")).available == 1


async def test_refusals_have_statuses_only(mq: Door) -> None:
    await mq.call("PUT", "/mq/jobs")
    large = await mq.call("POST", "/mq/jobs/messages", b"x" * (mq.service.payload_bytes + 1))
    assert (large.status, large.body) == (400, b"")
    await mq.broker.update_queue("jobs", max_depth=1)
    await mq.call("POST", "/mq/jobs/messages", b"1")
    full = await mq.call("POST", "/mq/jobs/messages", b"2")
    assert (full.status, full.body, full.headers["retry-after"]) == (503, b"", "10")


async def test_messages_are_seen_natively_and_the_other_way_round(mq: Door) -> None:
    await mq.call("PUT", "/mq/jobs")
    posted = await mq.call("POST", "/mq/jobs/messages", b"through MQ")
    (native,) = (await mq.broker.peek("jobs", State.AVAILABLE, payloads=True)).items
    assert (native.payload, native.message.topic) == (b"through MQ", "jobs")
    await mq.call("DELETE", f"/mq/jobs/messages/{posted.headers['x-message-id']}")
    await mq.broker.publish("jobs", b"natively")
    assert (await mq.call("GET", "/mq/jobs/messages")).body == b"natively"


@law("T1")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.verb)
async def test_every_route_needs_its_grant(through: Open, route) -> None:
    mq = through("mq", auth=True)
    path = route.path.format(queue="jobs", id="4ad814ab-213e-11e3-a9a3-0025904f6e08")
    refused = await mq.call(route.method, path, b"x")
    assert (refused.status, refused.body) == (401, b"")
    key = await mq.keys.create("default", ["admin:others", "publish:others", "consume:others"])
    mq.headers = {"authorization": f"Bearer {key.key}"}
    assert (await mq.call(route.method, path, b"x")).status == 403
    assert await mq.broker.queues() == ()
    assert await mq.broker.log_end() == 0


async def test_names_may_have_digits(mq: Door) -> None:
    """As the documentation of MQ has them: its code refuses them."""
    assert (await mq.call("PUT", "/mq/queue001")).status == 201
    assert (await mq.call("POST", "/mq/queue001/messages", b"x")).status == 201
    assert (await mq.call("GET", "/mq/queue001/messages")).body == b"x"
    for name in ("1", "Queue", "q-1", "q_1", "ü"):
        assert (await mq.call("PUT", f"/mq/{name}")).status == 404
