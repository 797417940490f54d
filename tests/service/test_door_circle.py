"""One message through all doors: failed in one, replayed natively, ended in another."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
from queueti.pb import queue_pb2 as pb
from queueti.pb.queue_pb2_grpc import QueueServiceStub

from penstock.client import connect
from penstock.model.message import HeaderValue
from penstock.testing.laws import law
from tests.doors.sqs.scenario import new_client
from tests.service.serving import Serve, Served, unused_port

HEADERS: dict[str, HeaderValue] = {"country": "AT", "amount": 250}


def api(server: Served, status: int, method: str, path: str, body: object = None) -> Any:
    answer = server.call(method, path, body)
    assert answer.status == status, (path, answer.status, answer.body)
    return json.loads(answer.body) if answer.body else None


@law("D1", "P3", "Q1")
async def test_a_message_walks_through_all_doors(serve: Serve) -> None:
    port = unused_port()
    server = serve(
        *("--door", "mq", "--door", "queue-ti", "--door", "codeq", "--door", "sqs"),
        *("--queue-ti-grpc-port", str(port)),
    )
    api(server, 200, "PUT", "/api/topic-configs/orders", {"max_retries": 1})
    async with (
        connect(server.url) as q,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        ti = QueueServiceStub(channel)
        await q.create_queue("austria", "country = 'AT' AND amount > 100")
        sent = await q.publish("orders", {"n": 7}, headers=HEADERS, key="k")

        # queue-ti claims it, with its headers as metadata, and nacks it into its DLQ.
        taken = await ti.Dequeue(pb.DequeueRequest(topic="orders"))
        assert (taken.payload, dict(taken.metadata)) == (
            b'{"n":7}',
            {"country": "AT", "amount": "250"},
        )
        assert taken.key == "k"
        await ti.Nack(pb.NackRequest(id=taken.id, error="no stock"))
        dead = api(server, 200, "GET", "/api/messages?topic=orders.dlq")["items"]
        assert [(item["id"], item["last_error"]) for item in dead] == [(taken.id, "no stock")]

        # Natively it is a dead letter, which is explained and replayed.
        (failed,) = (await q.peek("orders", "failed")).items
        assert (failed.message.id, failed.error) == (sent.id, "no stock")
        assert (await q.replay("orders", where="country = 'AT'")).count == 1

        # codeQ's id is the one of queue-ti; its worker completes the task.
        task = api(server, 200, "POST", "/v1/codeq/tasks/claim", {"commands": ["orders"]})
        assert (task["id"], task["command"], task["payload"]) == (taken.id, "orders", '{"n":7}')
        done = {"status": "COMPLETED", "result": {"shipped": True}}
        api(server, 200, "POST", f"/v1/codeq/tasks/{task['id']}/result", done)
        result = await q.result("orders", sent.id)
        assert result is not None
        assert json.loads(result.result or b"{}")["result"] == {"shipped": True}

        # MQ's users post to the same queue, and queue-ti's users take it from there.
        posted = server.call("POST", "/mq/orders/messages", "raw")
        assert posted.status == 201
        (raw,) = (await ti.BatchDequeue(pb.BatchDequeueRequest(topic="orders", count=5))).messages
        assert raw.payload == b'"raw"'
        await ti.Ack(pb.AckRequest(id=raw.id))

        # boto3 sends with attributes, which are headers for everybody else.
        sqs = new_client(server.url)
        url = (await asyncio.to_thread(sqs.create_queue, QueueName="bills"))["QueueUrl"]
        attributes = {
            "country": {"DataType": "String", "StringValue": "AT"},
            "amount": {"DataType": "Number", "StringValue": "900"},
        }
        await asyncio.to_thread(
            sqs.send_message, QueueUrl=url, MessageBody="bill", MessageAttributes=attributes
        )
        bill = await ti.Dequeue(pb.DequeueRequest(topic="bills"))
        assert (bill.payload, bill.metadata["country"]) == (b"bill", "AT")
        await ti.Ack(pb.AckRequest(id=bill.id))

        # The log has every message once, with its headers, and the filter queue took two.
        entries = (await q.read_log()).entries
        assert [entry.message.headers for entry in entries[:2]] == [HEADERS, {}]
        assert entries[2].message.headers["amount"] == 900
        copies = await q.claim("austria", limit=5)
        assert [copy.message.id for copy in copies] == [sent.id, entries[2].message.id]
        told = [(event.queue, str(event.transition)) for event in await q.history(sent.id)]
        assert [step for queue, step in told if queue.startswith("orders")] == [
            "publish",
            "claim",
            "nack",
            "replay",
            "claim",
            "ack",
        ]
