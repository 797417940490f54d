"""The circle of interoperation: a message of boto3 comes to every door, and back from the lake."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.sql import SparkSession
from queueti.pb import queue_pb2 as pb
from queueti.pb.queue_pb2_grpc import QueueServiceStub

from penstock.client import connect
from penstock.pipeline.context import JobContext, JobOptions, Summary
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.job import run_job
from penstock.pipeline.jobs.replay import replay
from penstock.pipeline.remote import Server
from penstock.testing.laws import law
from tests.doors.sqs.scenario import new_client
from tests.pipeline.lakes import messages
from tests.service.serving import Serve, Served, unused_port

ATTRIBUTES = {
    "country": {"DataType": "String", "StringValue": "AT"},
    "amount": {"DataType": "Number", "StringValue": "250"},
    "stamp": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}
#: What filters see of them.
MIRRORS = {"country": "AT", "amount": 250, "stamp": "AP8="}
BODY = '{"bill": 7}'


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    starting = Serve(tmp_path)
    yield starting
    starting.end()


def mirrored(headers: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name in MIRRORS}


def job(
    server: Served, spark: SparkSession, lake: Path, run: Callable[..., Summary], **options: Any
) -> Summary:
    given = JobOptions(server=Server(server.url), lake=str(lake))
    context = JobContext(given, run="run-1", job=run.__name__, spark=spark)
    try:
        return run_job(lambda context: run(context, **options), context)
    finally:
        context.close()


@law("A1", "D1", "P3", "Q1")
def test_a_message_of_boto3_walks_the_circle(
    serve: Serve, spark: SparkSession, tmp_path: Path
) -> None:
    grpc_port = unused_port()
    doors = ("--door", "sqs,mq,queue-ti,codeq", "--queue-ti-grpc-port", str(grpc_port))
    server = serve(*doors)

    def api(status: int, method: str, path: str, body: object = None) -> Any:
        answer = server.call(method, path, body)
        assert answer.status == status, (path, answer.status, answer.body)
        return answer

    # A producer of SQS sends it; a filter queue takes a copy by the attributes.
    sqs = new_client(server.url)
    url = sqs.create_queue(QueueName="bills")["QueueUrl"]
    filtered = {"filter": "country = 'AT' AND amount > 100"}
    api(200, "PUT", "/v1/queues/austria", filtered)
    sent = sqs.send_message(QueueUrl=url, MessageBody=BODY, MessageAttributes=ATTRIBUTES)

    # `penstock tail` shows it with its attributes as headers.
    tailed = serve.run("tail", "--url", server.url, "--json", "--payloads", "--limit", "1")
    entry = json.loads(tailed.stdout)
    assert (mirrored(entry["message"]["headers"]), entry["message"]["topic"]) == (MIRRORS, "bills")

    async def natively() -> None:
        async with connect(server.url) as q:
            (bill,) = await q.claim("bills")
            (copy,) = await q.claim("austria")
            assert bill.payload == copy.payload == BODY.encode()
            assert bill.message.id == copy.message.id == entry["message"]["id"]
            assert mirrored(dict(bill.message.headers)) == MIRRORS
            await q.reject(bill, "no account")
            assert (await q.replay("bills", where="amount = 250")).count == 1

    # It is claimed natively, fails there, and is replayed: boto3 receives it.
    asyncio.run(natively())
    (received,) = sqs.receive_message(
        QueueUrl=url, MessageAttributeNames=["All"], AttributeNames=["All"]
    )["Messages"]
    assert (received["MessageId"], received["Body"]) == (sent["MessageId"], BODY)
    assert received["MessageAttributes"] == ATTRIBUTES
    sqs.delete_message(QueueUrl=url, ReceiptHandle=received["ReceiptHandle"])

    # Spark archives it, and replays it from the lake into a queue that MQ's users have made.
    lake = tmp_path / "lake"
    assert job(server, spark, lake, archive)["entries"] == 1
    (row,) = messages(spark, lake)
    assert (bytes(row["value"]), row["topic"]) == (BODY.encode(), "bills")
    api(201, "PUT", "/mq/again")
    from_lake = {"source": "lake", "where": "amount = 250", "topic": "again", "replay_id": "r"}
    assert job(server, spark, lake, replay, **from_lake)["replayed"] == 1

    # queue-ti reads it back with the attributes as metadata, over gRPC and HTTP.
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        ti = QueueServiceStub(channel)
        taken = ti.Dequeue(pb.DequeueRequest(topic="again"))
        assert taken.payload == BODY.encode()
        texts = {name: str(value) for name, value in MIRRORS.items()}
        assert mirrored(dict(taken.metadata)) == texts
        ti.Nack(pb.NackRequest(id=taken.id, error="later"))
    (item,) = api(200, "GET", "/api/messages?topic=again").json()["items"]
    assert (item["id"], item["last_error"], mirrored(item["metadata"])) == (
        taken.id,
        "later",
        texts,
    )

    # codeQ's worker gives it back; MQ's users take it and delete it.
    task = api(200, "POST", "/v1/codeq/tasks/claim", {"commands": ["again"]}).json()
    assert (task["id"], task["payload"]) == (taken.id, BODY)
    api(200, "POST", f"/v1/codeq/tasks/{task['id']}/abandon")
    fetched = api(200, "GET", "/mq/again/messages")
    assert fetched.body == BODY.encode()
    api(202, "DELETE", f"/mq/again/messages/{fetched.headers['x-message-id']}")
    (acked,) = api(200, "GET", "/api/topics/again/message-log").json()["items"]
    assert (acked["id"], base64.b64decode(acked["payload"])) == (taken.id, BODY.encode())
