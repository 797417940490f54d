"""The native door: every path does what docs/http.md says, in JSON and in MessagePack."""

from __future__ import annotations

import base64

import msgspec
import pytest

from penstock.broker import Broker
from penstock.errors import StoreBusy
from penstock.model.delivery import Ack, Delivery, Nack
from penstock.model.message import NewMessage, Outgoing
from penstock.testing.laws import law
from penstock.wire.bodies import ClaimBody, ClaimReply, PublishBody, SettleBody
from penstock.wire.codecs import ARROW_STREAM, BATCH_JSON, BATCH_MSGPACK, MSGPACK

PUBLISH = "/v1/topics/orders/messages"
CLAIM = "/v1/queues/orders/claims"
SETTLE = "/v1/queues/orders/settlements"
PACKED = {"content-type": MSGPACK, "accept": MSGPACK}


@law("P3")
async def test_a_raw_body_is_one_message_byte_by_byte(door):
    body = bytes(range(256))
    reply = await door.call("POST", PUBLISH, body, {"content-type": "image/png"})
    assert reply.status == 201
    assert reply.json() == {
        "messages": [{"id": 0, "offset": 0, "duplicate": False, "replaced": False, "queues": 1}],
        "durability": "memory",
        "repeated": False,
    }
    [delivery] = (await door.call("POST", CLAIM, {})).json()["deliveries"]
    assert base64.b64decode(delivery["payload_base64"]) == body
    assert delivery["message"]["content_type"] == "image/png"
    assert (await door.call("GET", "/v1/messages/0/payload")).body == body


async def test_options_of_a_raw_body_come_in_headers(door):
    headers = {
        "content-type": "application/json",
        "penstock-id": "one",
        "penstock-key": "k",
        "penstock-partition-key": "customer-7",
        "penstock-priority": "9",
        "penstock-delay-ms": "500",
        "penstock-ttl-ms": "5000",
        "penstock-headers": '{"country": "DE", "amount": 250, "rate": 1.5, "vip": true}',
    }
    await door.call("POST", PUBLISH, '{"a": 1}', headers)
    again = await door.call("POST", PUBLISH, '{"a": 1}', headers)
    assert again.json()["messages"][0]["duplicate"] is True
    found = (await door.call("GET", "/v1/messages/0")).json()
    now = door.clock.now()
    assert found["payload"] == {"a": 1}
    assert found["message"]["headers"] == {
        "country": "DE",
        "amount": 250,
        "rate": 1.5,
        "vip": True,
    }
    assert found["message"]["partition_key"] == "customer-7"
    assert found["message"]["priority"] == 9
    assert found["message"]["deliver_at"] == now + 500
    assert found["message"]["expires_at"] == now + 5000
    assert found["deliveries"][0]["state"] == "delayed"


@pytest.mark.parametrize("media", ["text/plain", "application/vnd.penstock.batch+json"])
async def test_a_publish_need_not_create_a_queue(door, media):
    body = {"messages": [{"payload": 1}]} if media != "text/plain" else "x"
    headers = {"content-type": media}
    reply = await door.call("POST", "/v1/topics/new/messages?auto_create=false", body, headers)
    assert (reply.status, reply.json()["messages"][0]["queues"]) == (201, 0)
    reply = await door.call("POST", "/v1/topics/new/messages", body, headers)
    assert reply.json()["messages"][0]["queues"] == 1


async def test_a_message_need_not_create_a_queue(door):
    path = "/v1/topics/new/messages"
    reply = await door.call("POST", path, "x", {"penstock-auto-create": "false"})
    assert reply.json()["messages"][0]["queues"] == 0
    batch = {"messages": [{"payload": 1, "auto_create": False}, {"payload": 2}]}
    media = {"content-type": "application/vnd.penstock.batch+json"}
    reply = await door.call("POST", path, batch, media)
    assert [message["queues"] for message in reply.json()["messages"]] == [0, 1]
    reply = await door.call("POST", path, "x", {"penstock-auto-create": "no"})
    assert (reply.status, reply.json()["field"]) == (400, "Penstock-Auto-Create")


async def test_a_batch_in_json_shows_payloads_as_people_write_them(door):
    batch = {
        "messages": [
            {"payload": {"n": [1, 2.5, None]}},
            {"payload_text": "grüezi"},
            {"payload_base64": base64.b64encode(b"\x00\xff").decode()},
        ]
    }
    reply = await door.call(
        "POST", PUBLISH, msgspec.json.encode(batch), {"content-type": BATCH_JSON}
    )
    assert [item["id"] for item in reply.json()["messages"]] == [0, 1, 2]
    first, second, third = (await door.call("POST", CLAIM, {"limit": 10})).json()["deliveries"]
    assert first["payload"] == {"n": [1, 2.5, None]}
    assert second["payload_text"] == "grüezi"
    assert base64.b64decode(third["payload_base64"]) == b"\x00\xff"


async def test_what_only_claims_to_be_json_does_not_spoil_the_reply(door):
    await door.call("POST", PUBLISH, b"{broken", {"content-type": "application/json"})
    [delivery] = (await door.call("POST", CLAIM, {})).json()["deliveries"]
    assert base64.b64decode(delivery["payload_base64"]) == b"{broken"


async def test_messagepack_carries_the_whole_cycle(door):
    body = msgspec.msgpack.encode(PublishBody([NewMessage(b"\xff" * 10, {"n": 1}, "id-1")]))
    reply = await door.call(
        "POST", PUBLISH, body, {"content-type": BATCH_MSGPACK, "accept": MSGPACK}
    )
    assert reply.headers["content-type"] == MSGPACK
    claimed = await door.call("POST", CLAIM, msgspec.msgpack.encode(ClaimBody(5)), PACKED)
    [delivery] = msgspec.msgpack.decode(claimed.body, type=ClaimReply).deliveries
    assert isinstance(delivery, Delivery)
    assert delivery.payload == b"\xff" * 10
    settled = await door.call(
        "POST",
        SETTLE,
        msgspec.msgpack.encode(
            SettleBody(
                [Ack(delivery.receipt, b"result")], [Outgoing("bills", [NewMessage(b"bill")])]
            )
        ),
        PACKED,
    )
    assert settled.msgpack()["outcomes"][0]["verdict"] == "ok"
    assert len(settled.msgpack()["published"]) == 1
    result = await door.call(
        "GET", "/v1/messages/0/result?queue=orders", headers={"accept": MSGPACK}
    )
    assert result.msgpack()["result"]["result"] == b"result"


@law("S1")
async def test_a_settle_of_which_nothing_took_effect_is_a_conflict_with_outcomes(door):
    await door.call("POST", PUBLISH, b"x")
    [delivery] = (await door.call("POST", CLAIM, {})).json()["deliveries"]
    good = {"receipt": delivery["receipt"], "verb": "nack", "error": "no"}
    stale = {"receipt": "0-0-1-1", "verb": "ack"}
    mixed = await door.call("POST", SETTLE, {"settlements": [good, stale]})
    assert mixed.status == 200
    assert [item["verdict"] for item in mixed.json()["outcomes"]] == ["ok", "stale"]
    refused = await door.call("POST", SETTLE, {"settlements": [good, stale]})
    assert refused.status == 409
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:penstock:problem:stale-receipt"
    assert refused.json()["law"] == "S1"
    assert [item["verdict"] for item in refused.json()["outcomes"]] == ["stale", "stale"]


async def test_queues_are_put_patched_listed_and_deleted(door):
    put = await door.call(
        "PUT",
        "/v1/queues/billing",
        {"filter": "topic = 'orders' AND amount >= 100", "backoff": {"base_ms": 5, "max_ms": 50}},
    )
    assert put.status == 200
    assert put.json()["policy"]["backoff"] == {"base_ms": 5, "max_ms": 50}
    patched = await door.call("PATCH", "/v1/queues/billing", {"max_attempts": 2})
    assert patched.json()["policy"]["max_attempts"] == 2
    assert patched.json()["policy"]["filter"].startswith("topic")
    assert [one["name"] for one in (await door.call("GET", "/v1/queues")).json()["queues"]] == [
        "billing"
    ]
    await door.call("PATCH", "/v1/queues/billing", {"labels": {"team": "a", "tier": "="}})
    for label, names in (("team=a", 1), ("team=a,tier==", 1), ("team=b", 0), ("team=", 0)):
        listed = await door.call("GET", f"/v1/queues?label={label}")
        assert len(listed.json()["queues"]) == names
    for label in ("team", "team=a,team=a", "team=a,", "a%20b=c"):
        assert (await door.call("GET", f"/v1/queues?label={label}")).status == 400
    assert (await door.call("GET", "/v1/queues/billing/stats")).json()["available"] == 0
    assert (await door.call("POST", "/v1/queues/billing/pause")).json()["policy"]["paused"] is True
    assert (await door.call("POST", "/v1/queues/billing/resume")).status == 200
    assert (await door.call("DELETE", "/v1/queues/billing")).status == 204
    gone = await door.call("GET", "/v1/queues/billing")
    assert gone.status == 404
    assert gone.json()["type"] == "urn:penstock:problem:unknown-queue"


async def test_a_dry_run_counts_and_samples_history_and_changes_nothing(door):
    for amount in (50, 150, 250):
        await door.call("POST", PUBLISH, b"x", {"penstock-headers": f'{{"amount": {amount}}}'})
    reply = await door.call(
        "PUT", "/v1/queues/big?start=earliest&dry_run=true", {"filter": "amount >= 100"}
    )
    assert reply.json()["preview"]["count"] == 2
    assert len(reply.json()["preview"]["sample"]) == 2
    assert (await door.call("GET", "/v1/queues/big")).status == 404
    await door.call("PUT", "/v1/queues/big?start=earliest", {"filter": "amount >= 100"})
    routed = await door.call("POST", "/v1/queues/big/routes")
    assert routed.json()["assigned"] == 2


async def test_a_router_outside_assigns(door):
    for amount in (50, 150, 250):
        await door.call("POST", PUBLISH, b"x", {"penstock-headers": f'{{"amount": {amount}}}'})
    await door.call("PUT", "/v1/queues/big?start=earliest", {"filter": "amount >= 100"})
    path = "/v1/queues/big/assignments"
    found = {"filter": "amount >= 100", "start": 0, "end": 2, "offsets": [1]}
    for body in (found, msgspec.msgpack.encode(found)):
        media = {} if isinstance(body, dict) else {"content-type": "application/msgpack"}
        reply = await door.call("POST", path, body, media)
        assert (reply.status, reply.json()["cursor"]) == (200, 2), reply.body
    assert (await door.call("GET", "/v1/queues/big/stats")).json()["available"] == 1
    stale = await door.call("POST", path, found | {"filter": "amount >= 1"})
    assert (stale.status, stale.json()["field"]) == (409, "filter")
    wrong = await door.call("POST", path, found | {"offsets": [2]})
    assert (wrong.status, wrong.json()["field"]) == (400, "offsets")
    assert (await door.call("POST", path)).status == 400


async def test_deliveries_are_browsed_replayed_and_purged_by_filter(door):
    for amount in (1, 2, 3):
        await door.call("POST", PUBLISH, b"x", {"penstock-headers": f'{{"amount": {amount}}}'})
    claimed = (await door.call("POST", CLAIM, {"limit": 3})).json()["deliveries"]
    rejections = [{"receipt": one["receipt"], "verb": "reject", "error": "bad"} for one in claimed]
    await door.call("POST", SETTLE, {"settlements": rejections})
    page = await door.call(
        "GET", "/v1/queues/orders/deliveries?state=failed&where=amount%20%3E%201&payloads=true"
    )
    assert [one["message"]["id"] for one in page.json()["items"]] == [1, 2]
    assert page.json()["items"][0]["error"] == "bad"
    dry = await door.call(
        "POST", "/v1/queues/orders/replays", {"where": "amount = 2", "dry_run": True}
    )
    assert dry.json()["count"] == 1
    assert (await door.call("POST", "/v1/queues/orders/replays", {"where": "amount = 2"})).json()[
        "count"
    ] == 1
    purged = await door.call("POST", "/v1/queues/orders/purges", {"state": "failed"})
    assert purged.json() == {"count": 2, "more": False}
    explained = await door.call("GET", "/v1/messages/1/explain?queue=orders")
    assert explained.json()["deliverable"] is True
    history = (await door.call("GET", "/v1/messages/1/history")).json()["events"]
    assert "replay" in [event["transition"] for event in history]
    by_queue = (await door.call("GET", "/v1/queues/orders/history")).json()
    assert {entry["message_id"] for entry in by_queue["entries"]} == {1}


async def test_the_log_is_read_in_pages_and_as_arrow(door):
    import pyarrow as pa

    for n in range(5):
        await door.call("POST", PUBLISH, b"x" * n, {"penstock-headers": f'{{"n": {n}}}'})
    page = (await door.call("GET", "/v1/log?from=1&to=4&payloads=true")).json()
    assert [entry["message"]["offset"] for entry in page["entries"]] == [1, 2, 3]
    assert page["next_offset"] == 4
    assert (await door.call("GET", "/v1/log/end")).json() == {"offset": 5}
    arrow = await door.call("GET", "/v1/log?from=1&format=arrow&payloads=true")
    assert arrow.headers["content-type"] == ARROW_STREAM
    table = pa.ipc.open_stream(arrow.body).read_all()
    assert table.column("offset").to_pylist() == [1, 2, 3, 4]
    assert table.column("payload").to_pylist() == [b"x", b"xx", b"xxx", b"xxxx"]
    assert (await door.call("GET", "/v1/log?from=9&to=3")).status == 400
    identity = (await door.call("GET", "/v1/store")).json()
    archived = {"through": 3, "store": identity}
    assert (await door.call("POST", "/v1/log/archived", archived)).status == 204
    assert (await door.call("POST", "/v1/log/archived", {"through": 3})).status == 400
    archived["store"] = {**identity, "epoch": "0" * 32}
    refused = await door.call("POST", "/v1/log/archived", archived)
    assert (refused.status, refused.json()["law"]) == (409, "A1")


async def test_an_arrow_stream_is_published_whole(door):
    import pyarrow as pa

    table = pa.table(
        {
            "payload": pa.array([b"a", b"b"], pa.binary()),
            "priority": pa.array([9, None], pa.int32()),
            "headers": pa.array(['{"n": 1}', None]),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    reply = await door.call("POST", PUBLISH, body, {"content-type": ARROW_STREAM})
    assert reply.status == 201
    assert (await door.broker.message(0)).message.headers == {"n": 1}
    assert (await door.broker.message(0)).message.priority == 9
    assert (await door.broker.message(1)).message.priority == 4
    for broken in (b"", b"nonsense", body[: len(body) // 2]):
        refused = await door.call("POST", PUBLISH, broken, {"content-type": ARROW_STREAM})
        assert refused.status == 400
    assert await door.broker.log_end() == 2
    await batch_ms_counts(door, body, ARROW_STREAM, "?batch_id=b&batch_ms=86400000")
    refused = await door.call(
        "POST", f"{PUBLISH}?batch_id=c&batch_ms=0", body, {"content-type": ARROW_STREAM}
    )
    assert (refused.status, refused.json()["field"]) == (400, "batch_ms")


@law("P4")
@pytest.mark.parametrize("media", [BATCH_JSON, BATCH_MSGPACK])
async def test_a_batch_says_for_how_long_it_is_remembered(door, media):
    payload = {"payload_text": "x"} if media == BATCH_JSON else {"payload": b"x"}
    encode = msgspec.json.encode if media == BATCH_JSON else msgspec.msgpack.encode
    body = {"messages": [payload], "batch_id": "b", "batch_ms": 24 * 3600 * 1000}
    await batch_ms_counts(door, encode(body), media)
    refused = await door.call("POST", PUBLISH, encode({**body, "batch_ms": 0}), kind_of(media))
    assert (refused.status, refused.json()["field"]) == (400, "batch_ms")


async def batch_ms_counts(door, body: bytes, media: str, query: str = "") -> None:
    """The topic remembers nothing by itself, this batch is remembered for a day."""
    await door.call("PUT", "/v1/topics/orders", {"dedup_window_ms": 0})
    replies = []
    for wait_ms in (0, 24 * 3600 * 1000 - 1, 1):
        door.clock.advance(wait_ms)
        replies.append((await door.call("POST", PUBLISH + query, body, kind_of(media))).json())
    first, again, later = replies
    assert (first["repeated"], again["repeated"], later["repeated"]) == (False, True, False)
    assert again["messages"] == first["messages"] != later["messages"]


def kind_of(media: str) -> dict[str, str]:
    return {"content-type": media}


async def test_topics_are_registered_read_and_forgotten(door):
    path = "/v1/topics/orders"
    assert (await door.call("GET", path)).status == 404
    assert (await door.call("PUT", path, {"default_ttl_ms": 1000})).status == 200
    assert (await door.call("GET", path)).json()["policy"]["default_ttl_ms"] == 1000
    assert len((await door.call("GET", "/v1/topics")).json()["topics"]) == 1
    assert (await door.call("PUT", path, {"default_tll_ms": 1})).json()["field"] == "default_tll_ms"
    assert (await door.call("DELETE", path)).status == 204


async def test_consumers_of_an_ordered_queue_join_and_leave(door):
    await door.call("PUT", "/v1/queues/orders", {"ordering": "partition"})
    await door.call("POST", PUBLISH, b"x", {"penstock-partition-key": "p"})
    joined = await door.call("POST", "/v1/queues/orders/consumers", {"consumer": "w1"})
    assert list(joined.json()["partitions"]) == ["p"]
    assert (await door.call("DELETE", "/v1/queues/orders/consumers/w1")).status == 204


async def test_trace_context_travels_in_message_headers(door):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await door.call("POST", PUBLISH, b"x", {"traceparent": parent, "tracestate": "a=b"})
    headers = (await door.broker.message(0)).message.headers
    assert headers == {"traceparent": parent, "tracestate": "a=b"}
    batch = msgspec.msgpack.encode(
        PublishBody([NewMessage(b"own", {"traceparent": "mine"}), NewMessage(b"none")])
    )
    await door.call("POST", PUBLISH, batch, {"content-type": BATCH_MSGPACK, "traceparent": parent})
    assert (await door.broker.message(1)).message.headers["traceparent"] == "mine"
    assert (await door.broker.message(2)).message.headers["traceparent"] == parent


@law("E1")
@pytest.mark.parametrize(
    "method, target, body, headers, status, field",
    [
        ("POST", "/v1/topics/bad%20name/messages", b"x", {}, 400, "topic"),
        ("POST", "/v1/topics/orders.dlq/messages", b"x", {}, 400, "topic"),
        ("POST", PUBLISH, b"x", {"penstock-priority": "11"}, 400, "priority"),
        ("POST", PUBLISH, b"x", {"penstock-priority": "high"}, 400, "Penstock-Priority"),
        ("POST", PUBLISH, b"x", {"penstock-delay": "1"}, 400, "Penstock-Delay"),
        ("POST", PUBLISH, b"x", {"penstock-id": "1", "penstock-prio": "9"}, 400, "Penstock-Prio"),
        ("POST", PUBLISH, b"x", {"penstock-headers": "{"}, 400, "Penstock-Headers"),
        ("POST", PUBLISH, b"x", {"penstock-headers": '{"a": [1]}'}, 400, "Penstock-Headers"),
        ("POST", PUBLISH, b"x" * (1024 * 1024 + 1), {}, 413, "payload"),
        ("POST", PUBLISH, b"{", {"content-type": BATCH_JSON}, 400, "body"),
        ("POST", PUBLISH, b'{"messages": [{}]}', {"content-type": BATCH_JSON}, 400, "payload"),
        ("POST", PUBLISH, b"\xc1", {"content-type": BATCH_MSGPACK}, 400, "body"),
        ("POST", PUBLISH + "?durability=hope", b"x", {}, 400, "durability"),
        ("POST", PUBLISH + "?nonsense=1", b"x", {}, 400, "nonsense"),
        ("POST", CLAIM, {"limit": 0}, {}, 400, "limit"),
        ("POST", CLAIM, {"wait_ms": 30_001}, {}, 400, "wait_ms"),
        ("POST", CLAIM, {"wait_ms": -1}, {}, 400, "wait_ms"),
        ("POST", CLAIM, {"limits": 1}, {}, 400, "limits"),
        ("POST", "/v1/claims", {}, {}, 400, "queues"),
        ("GET", "/v1/messages/0/result", None, {}, 400, "queue"),
        ("PUT", "/v1/topics/orders", {"dedup_scope": "queue"}, {}, 400, "dedup_scope"),
        ("PUT", "/v1/topics/orders", {"queue_defaults": 5}, {}, 400, "queue_defaults"),
        (
            "POST",
            SETTLE,
            {"settlements": [{"verb": "ack", "receipt": "r", "delay_ms": 5}]},
            {},
            400,
            "settlements[0].delay_ms",
        ),
        ("POST", CLAIM, b"<xml/>", {"content-type": "text/xml"}, 415, "Content-Type"),
        ("POST", "/v1/queues/none/claims", {}, {}, 404, "queue"),
        ("POST", SETTLE, {"settlements": []}, {}, 400, "settlements"),
        (
            "POST",
            SETTLE,
            {"settlements": [{"verb": "eat", "receipt": "r"}]},
            {},
            400,
            "settlements[0].verb",
        ),
        ("PUT", "/v1/queues/q", {"filter": "amount >"}, {}, 400, "filter"),
        ("PUT", "/v1/queues/q", {"max_attempts": 0}, {}, 400, "max_attempts"),
        ("PUT", "/v1/queues/q", {"max_atempts": 1}, {}, 400, "max_atempts"),
        ("PUT", "/v1/queues/q", {"name": "x"}, {}, 400, "name"),
        ("PUT", "/v1/queues/q?start=tomorrow", {}, {}, 400, "start"),
        ("PUT", "/v1/queues/q?start=offset:x", {}, {}, 400, "start"),
        ("PUT", "/v1/queues/q?dry_run=perhaps", {}, {}, 400, "dry_run"),
        ("GET", "/v1/queues/orders/deliveries?limit=101&payloads=true", None, {}, 400, "limit"),
        ("GET", "/v1/queues/orders/deliveries?where=a%20%3D", None, {}, 400, "where"),
        ("GET", "/v1/messages/minus", None, {}, 400, "id"),
        ("GET", "/v1/messages/99", None, {}, 404, "id"),
        ("GET", "/v1/log?from=-1", None, {}, 400, "start"),
        ("GET", "/v1/log?format=xml", None, {}, 400, "format"),
        ("GET", "/v1/nowhere", None, {}, 404, None),
        ("GET", "/v1/queues/", None, {}, 404, None),
        ("DELETE", "/v1/queues", None, {}, 405, None),
        ("GET", "/v1/queues", None, {"accept": "image/png"}, 406, "Accept"),
    ],
)
async def test_bad_input_gets_a_problem_that_names_the_field(
    door, method, target, body, headers, status, field
):
    await door.call("PUT", "/v1/queues/orders", {})
    from urllib.parse import unquote

    path, mark, query = target.partition("?")
    reply = await door.call(method, unquote(path) + mark + query, body, headers)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert problem["status"] == status
    assert problem["type"].startswith("urn:penstock:problem:")
    assert problem["detail"]
    assert problem["advice"]
    assert problem["request_id"] == reply.headers["penstock-request-id"]
    assert problem.get("field") == field
    assert await door.broker.log_end() == 0


async def test_a_full_queue_says_when_to_come_back(door):
    await door.call("PUT", "/v1/queues/orders", {"max_depth": 1})
    assert (await door.call("POST", PUBLISH, b"x")).status == 201
    full = await door.call("POST", PUBLISH, b"x")
    assert full.status == 429
    assert int(full.headers["retry-after"]) >= 1
    assert full.json()["queue"] == "orders"


async def test_a_caller_may_bring_a_request_id_of_its_own(door):
    reply = await door.call("GET", "/healthz", headers={"penstock-request-id": "abc-1"})
    assert reply.headers["penstock-request-id"] == "abc-1"
    forged = await door.call("GET", "/healthz", headers={"penstock-request-id": "a b\tc"})
    assert forged.headers["penstock-request-id"] != "a b\tc"


@pytest.mark.parametrize("error, status", [(StoreBusy("busy"), 503), (KeyError("bug"), 500)])
async def test_the_log_has_the_trace_of_a_caller(door, monkeypatch, caplog, error, status):
    async def fail(self):
        raise error

    monkeypatch.setattr(Broker, "log_end", fail)
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    for parent in (f"00-{trace}-{span}-01", f"00-{trace}-{span}-01-more", "\n"):
        reply = await door.call("GET", "/v1/log/end", headers={"traceparent": parent})
        assert reply.status == status
    traced, *others = (record for record in caplog.records if record.name == "penstock.server")
    assert (traced.trace_id, traced.span_id) == (trace, span)
    assert len(others) == 2
    assert not any(hasattr(record, "trace_id") for record in others)


async def test_nack_over_http_counts_and_delays(door):
    await door.call("POST", PUBLISH, b"x")
    claimed = await door.call("POST", CLAIM, msgspec.msgpack.encode(ClaimBody()), PACKED)
    [delivery] = msgspec.msgpack.decode(claimed.body, type=ClaimReply).deliveries
    body = msgspec.msgpack.encode(SettleBody([Nack(delivery.receipt, "later", 700)]))
    outcome = (await door.call("POST", SETTLE, body, PACKED)).msgpack()["outcomes"][0]
    assert outcome == {
        "receipt": delivery.receipt,
        "verdict": "ok",
        "state": "delayed",
        "until": door.clock.now() + 700,
    }


async def test_a_claim_with_a_selector(door):
    for colour in ("blue", "red"):
        headers = {"penstock-headers": f'{{"colour": "{colour}"}}'}
        await door.call("POST", "/v1/topics/paint/messages", colour, headers=headers)
    body = {"limit": 9, "where": "colour = 'red'"}
    reply = await door.call("POST", "/v1/queues/paint/claims", body)
    found = [one["message"]["headers"]["colour"] for one in reply.json()["deliveries"]]
    assert found == ["red"]
    reply = await door.call("POST", "/v1/claims", {"queues": ["paint"], **body})
    assert reply.json() == {"deliveries": []}
    reply = await door.call("POST", "/v1/queues/paint/claims", {"where": "colour IN (1, x)"})
    problem = reply.json()
    assert (reply.status, problem["field"]) == (400, "where")
    assert (problem["position"], problem["end"]) == (14, 15)
    reply = await door.call(
        "POST", "/v1/queues/paint/settlements", {"settlements": [], "claim": {"where": "TRUE ="}}
    )
    assert (reply.status, reply.json()["field"]) == (400, "where")
    reply = await door.call("GET", "/v1/queues/paint/stream?where=colour%20%3D")
    assert (reply.status, reply.json()["position"]) == (400, 8)


async def test_a_claim_of_several_queues(door):
    for name in ("a", "b"):
        await door.call("PUT", f"/v1/queues/{name}", {"filter": f"topic = '{name}'"})
        await door.call("POST", f"/v1/topics/{name}/messages", name)
    reply = await door.call("POST", "/v1/claims", {"queues": ["b", "a"], "limit": 9})
    assert [one["queue"] for one in reply.json()["deliveries"]] == ["b", "a"]
    reply = await door.call("POST", "/v1/claims", {"queues": ["a", "b"], "order": "fair"})
    assert reply.json() == {"deliveries": []}


@law("E1")
@pytest.mark.parametrize(
    "body, status, field",
    [
        ({"queues": []}, 400, "queues"),
        ({"queues": ["a", "a"]}, 400, "queues"),
        ({"queues": ["a"], "order": "random"}, 400, None),
        ({}, 400, None),
        ({"queues": ["missing", "b"]}, 404, None),
    ],
)
async def test_a_bad_claim_of_several_queues(door, body, status, field):
    reply = await door.call("POST", "/v1/claims", body)
    assert reply.status == status
    if field is not None:
        assert reply.json()["field"] == field
