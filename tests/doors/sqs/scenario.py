"""What boto3 does with SQS, against the door: everything has to be as SQS would answer.

The tests run it twice: in their own process with the current boto3, which speaks the JSON
protocol, and as a program with boto3 1.28, which speaks the Query protocol.

    PYTHONPATH=OLD_BOTO3 python scenario.py ENDPOINT KEY SECRET
"""

from __future__ import annotations

import hashlib
import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

Sqs = Any

_NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


def new_client(endpoint: str, key: str = "any", secret: str = "any", retries: int = 0) -> Sqs:
    return boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name="eu-west-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": retries}, max_pool_connections=40),
    )


def refusal(call: Callable[..., Any], **arguments: Any) -> str:
    """The code of the error that a call raises."""
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    raise AssertionError(f"{call} was not refused")


def attributes(sqs: Sqs, url: str, *names: str) -> dict[str, str]:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names or ["All"]))
    return found.get("Attributes", {})


def receive(sqs: Sqs, url: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
    reply = sqs.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=count,
        AttributeNames=["All"],
        MessageAttributeNames=["All"],
        **more,
    )
    return reply.get("Messages", [])


def queues(sqs: Sqs) -> None:
    given = {"VisibilityTimeout": "40", "DelaySeconds": "0", "MessageRetentionPeriod": "3600"}
    url = sqs.create_queue(QueueName="_q-1", Attributes=given, tags={"team": "a", "Ö x": "1,2"})[
        "QueueUrl"
    ]
    assert url.endswith("/000000000000/_q-1")
    assert sqs.create_queue(QueueName="_q-1", Attributes=given)["QueueUrl"] == url
    assert sqs.get_queue_url(QueueName="_q-1")["QueueUrl"] == url
    assert refusal(sqs.create_queue, QueueName="_q-1", Attributes={"DelaySeconds": "9"}) == (
        "QueueAlreadyExists"
    )
    shown = attributes(sqs, url)
    assert shown["QueueArn"] == "arn:aws:sqs:eu-west-1:000000000000:_q-1"
    assert shown.items() >= given.items()
    assert shown["MaximumMessageSize"] == "1048576"
    changed = {"VisibilityTimeout": "0", "MaximumMessageSize": "2048", "Policy": '{"a": 1}'}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=changed)
    assert attributes(sqs, url, *changed) == changed
    assert refusal(sqs.set_queue_attributes, QueueUrl=url, Attributes={"Nope": "1"}) == (
        "InvalidAttributeName"
    )
    wrong = {"VisibilityTimeout": "43201"}
    assert refusal(sqs.set_queue_attributes, QueueUrl=url, Attributes=wrong) == (
        "InvalidAttributeValue"
    )
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a", "Ö x": "1,2"}
    sqs.tag_queue(QueueUrl=url, Tags={f"t{n}": str(n) for n in range(20)})
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "t3"])
    assert len(sqs.list_queue_tags(QueueUrl=url)["Tags"]) == 20
    sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["1" * 12], Actions=["SendMessage"])
    assert json.loads(attributes(sqs, url, "Policy")["Policy"])["Statement"][0]["Sid"] == "l"
    sqs.remove_permission(QueueUrl=url, Label="l")
    assert refusal(sqs.remove_permission, QueueUrl=url, Label="l") == "InvalidParameterValue"
    for n in range(3):
        sqs.create_queue(QueueName=f"page-{n}")
    page = sqs.list_queues(QueueNamePrefix="page-", MaxResults=2)
    rest = sqs.list_queues(QueueNamePrefix="page-", MaxResults=2, NextToken=page["NextToken"])
    names = [one.rpartition("/")[2] for one in page["QueueUrls"] + rest["QueueUrls"]]
    assert names == ["page-0", "page-1", "page-2"]
    sqs.delete_queue(QueueUrl=url)
    assert refusal(sqs.get_queue_url, QueueName="_q-1") == _NO_QUEUE
    assert refusal(sqs.delete_queue, QueueUrl=url) == _NO_QUEUE


def messages(sqs: Sqs) -> None:
    url = sqs.create_queue(QueueName="messages")["QueueUrl"]
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="größe & <x>\r\n\t😀",
        MessageAttributes={
            "amount": {"DataType": "Number", "StringValue": "1.50"},
            "count": {"DataType": "Number.int", "StringValue": "7"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
            "text": {"DataType": "String.custom", "StringValue": "ü"},
        },
        MessageSystemAttributes={
            "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5e3d-a;Sampled=1"}
        },
    )
    (message,) = receive(sqs, url)
    assert message["Body"] == "größe & <x>\r\n\t😀"
    assert message["MessageId"] == sent["MessageId"]
    for name in ("Body", "MessageAttributes"):  # boto3 itself compares that of the body only.
        assert message[f"MD5Of{name}"] == sent[f"MD5OfMessage{name.removeprefix('Message')}"]
    assert message["MessageAttributes"]["raw"] == {"DataType": "Binary", "BinaryValue": b"\0\xff"}
    assert message["MessageAttributes"]["amount"]["StringValue"] == "1.50"
    assert message["Attributes"]["AWSTraceHeader"] == "Root=1-5e3d-a;Sampled=1"
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert receive(sqs, url) == []
    handle = message["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    (again,) = receive(sqs, url, WaitTimeSeconds=20)
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    first = "ApproximateFirstReceiveTimestamp"
    assert again["Attributes"][first] == message["Attributes"][first]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)  # An old handle: yes, but no effect.
    assert attributes(sqs, url)["ApproximateNumberOfMessagesNotVisible"] == "1"
    stale = {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 9}
    assert refusal(sqs.change_message_visibility, **stale) == (
        "AWS.SimpleQueueService.MessageNotInflight"
    )
    sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert refusal(sqs.delete_message, QueueUrl=url, ReceiptHandle="x") == "ReceiptHandleIsInvalid"
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=900)
    assert attributes(sqs, url)["ApproximateNumberOfMessagesDelayed"] == "1"
    sqs.send_message(QueueUrl=url, MessageBody="in flight")
    assert len(receive(sqs, url)) == 1
    sqs.purge_queue(QueueUrl=url)
    shown = attributes(sqs, url)
    assert {text for name, text in shown.items() if name.startswith("Approximate")} == {"0"}


def large(sqs: Sqs) -> None:
    """The largest message, and attributes that do not fit headers."""
    url = sqs.create_queue(QueueName="large")["QueueUrl"]
    body = "é" * (512 * 1024)
    sqs.send_message(QueueUrl=url, MessageBody=body)
    assert receive(sqs, url)[0]["MD5OfBody"] == hashlib.md5(body.encode()).hexdigest()
    assert refusal(sqs.send_message, QueueUrl=url, MessageBody=body + "x") == (
        "InvalidParameterValue"
    )
    given = {f"a{n}": {"DataType": "String", "StringValue": f'{n}"' * 10_000} for n in range(9)}
    given["small"] = {"DataType": "Number", "StringValue": "1"}
    sent = sqs.send_message(QueueUrl=url, MessageBody="body", MessageAttributes=given)
    (message,) = receive(sqs, url)
    assert message["Body"] == "body"
    assert message["MessageAttributes"] == given
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    entries = [{"Id": str(n), "MessageBody": "x" * 120_000} for n in range(9)]
    assert refusal(sqs.send_message_batch, QueueUrl=url, Entries=entries) == (
        "AWS.SimpleQueueService.BatchRequestTooLong"
    )


def batches(sqs: Sqs) -> None:
    url = sqs.create_queue(QueueName="batches")["QueueUrl"]
    entries: list[dict[str, Any]] = [{"Id": str(n), "MessageBody": f"m{n}"} for n in range(8)]
    entries.append({"Id": "bad", "MessageBody": "\x01"})
    entries.append({"Id": "late", "MessageBody": "x", "DelaySeconds": 901})
    reply = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in reply["Successful"]] == [str(n) for n in range(8)]
    assert {one["Id"]: one["Code"] for one in reply["Failed"]} == {
        "bad": "InvalidMessageContents",
        "late": "InvalidParameterValue",
    }
    assert all(one["SenderFault"] for one in reply["Failed"])
    found = receive(sqs, url)
    assert [one["Body"] for one in found] == [f"m{n}" for n in range(8)]
    handles = [
        {"Id": one["Body"], "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 0}
        for one in found[4:]
    ]
    reply = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[*handles, {"Id": "no", "ReceiptHandle": "?", "VisibilityTimeout": 1}],
    )
    assert [one["Id"] for one in reply["Successful"]] == ["m4", "m5", "m6", "m7"]
    assert reply["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"
    again = receive(sqs, url)
    assert [one["Body"] for one in again] == ["m4", "m5", "m6", "m7"]
    reply = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": one["Body"], "ReceiptHandle": one["ReceiptHandle"]} for one in found[:4] + again
        ],
    )
    assert len(reply["Successful"]) == 8
    assert attributes(sqs, url)["ApproximateNumberOfMessagesNotVisible"] == "0"
    for wrong, code in (
        ([], "EmptyBatchRequest"),
        ([{"Id": str(n), "MessageBody": "x"} for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "MessageBody": "x"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "a!", "MessageBody": "x"}], "InvalidBatchEntryId"),
    ):
        got = refusal(sqs.send_message_batch, QueueUrl=url, Entries=wrong)
        assert got == f"AWS.SimpleQueueService.{code}"


def fifo(sqs: Sqs) -> None:
    given = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = sqs.create_queue(QueueName="ordered.fifo", Attributes=given)["QueueUrl"]
    assert attributes(sqs, url).items() >= given.items()
    sent = [
        sqs.send_message(QueueUrl=url, MessageBody=f"{group}{n}", MessageGroupId=group)
        for n in range(12)
        for group in "ab"
    ]
    again = sqs.send_message(QueueUrl=url, MessageBody="a0", MessageGroupId="a")
    assert again["MessageId"] == sent[0]["MessageId"]
    assert again["SequenceNumber"] == sent[0]["SequenceNumber"]
    assert attributes(sqs, url)["ApproximateNumberOfMessages"] == "24"
    first = receive(sqs, url)
    by_group = {
        group: [one["Body"] for one in first if one["Attributes"]["MessageGroupId"] == group]
        for group in "ab"
    }
    for group, bodies in by_group.items():
        assert bodies == [f"{group}{n}" for n in range(len(bodies))]
    assert len(first) == 10
    # No more of a group while some of it are in flight.
    held = {one["Attributes"]["MessageGroupId"] for one in first}
    second = receive(sqs, url)
    assert not held & {one["Attributes"]["MessageGroupId"] for one in second}
    for one in (*first, *second):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    numbers = [int(one["Attributes"]["SequenceNumber"]) for one in receive(sqs, url)]
    assert numbers == sorted(numbers)
    assert refusal(sqs.send_message, QueueUrl=url, MessageBody="x") == "MissingParameter"
    expired = {"QueueUrl": url, "ReceiptHandle": first[0]["ReceiptHandle"]}
    sqs.delete_message(**expired)  # Deleting it again is fine.
    strict = sqs.create_queue(
        QueueName="strict.fifo",
        Attributes={"FifoQueue": "true", "DeduplicationScope": "messageGroup",
                    "FifoThroughputLimit": "perMessageGroupId"},
    )["QueueUrl"]  # fmt: skip
    without = {"QueueUrl": strict, "MessageBody": "x", "MessageGroupId": "g"}
    assert refusal(sqs.send_message, **without) == "InvalidParameterValue"
    for group in "gh":
        sqs.send_message(
            QueueUrl=strict, MessageBody=group, MessageGroupId=group, MessageDeduplicationId="1"
        )
    found = receive(sqs, strict)
    ids = [(one["Body"], one["Attributes"]["MessageDeduplicationId"]) for one in found]
    assert ids == [("g", "1"), ("h", "1")]
    assert refusal(sqs.create_queue, QueueName="plain.fifo") == "InvalidParameterValue"


def redrive(sqs: Sqs) -> None:
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    arn = attributes(sqs, dead)["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "2"})
    missing = json.dumps({"deadLetterTargetArn": arn + "-not", "maxReceiveCount": 2})
    new = {"QueueName": "failing", "Attributes": {"RedrivePolicy": missing}}
    assert refusal(sqs.create_queue, **new) == "InvalidParameterValue"
    deny = {"RedriveAllowPolicy": '{"redrivePermission": "denyAll"}'}
    sqs.set_queue_attributes(QueueUrl=dead, Attributes=deny)
    new["Attributes"] = {"RedrivePolicy": policy}
    assert refusal(sqs.create_queue, **new) == "InvalidParameterValue"
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": ""})
    url = sqs.create_queue(**new)["QueueUrl"]
    assert json.loads(attributes(sqs, url)["RedrivePolicy"])["maxReceiveCount"] == 2
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    attribute = {"a": {"DataType": "String", "StringValue": "1"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="poison", MessageAttributes=attribute)
    for _ in range(2):
        (one,) = receive(sqs, url)
        handle = one["ReceiptHandle"]
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    assert receive(sqs, url) == []
    (one,) = receive(sqs, dead, VisibilityTimeout=0)
    assert (one["MessageId"], one["MessageAttributes"]) == (sent["MessageId"], attribute)
    assert one["Attributes"]["DeadLetterQueueSourceArn"] == attributes(sqs, url)["QueueArn"]
    handle = one["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=dead, ReceiptHandle=handle, VisibilityTimeout=0)
    sqs.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=500)
    (back,) = receive(sqs, url, WaitTimeSeconds=20)
    assert (back["MessageId"], back["Body"]) == (sent["MessageId"], "poison")
    (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert task["SourceArn"] == arn
    assert task["Status"] in ("RUNNING", "COMPLETED")
    other = attributes(sqs, url)["QueueArn"]
    assert refusal(sqs.start_message_move_task, SourceArn=other) == "InvalidParameterValue"
    assert refusal(sqs.list_message_move_tasks, SourceArn=arn + "-not") == (
        "ResourceNotFoundException"
    )
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in attributes(sqs, url)


def slow_move(sqs: Sqs) -> None:
    """A move task is cancelled; what it has not moved stays."""
    dead = sqs.create_queue(QueueName="slow-dead")["QueueUrl"]
    arn = attributes(sqs, dead)["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    sqs.create_queue(QueueName="slow-source", Attributes={"RedrivePolicy": policy})
    target = sqs.create_queue(QueueName="slow-target")["QueueUrl"]
    entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(10)]
    sqs.send_message_batch(QueueUrl=dead, Entries=entries)
    handle = sqs.start_message_move_task(
        SourceArn=arn,
        DestinationArn=attributes(sqs, target)["QueueArn"],
        MaxNumberOfMessagesPerSecond=1,
    )["TaskHandle"]
    assert refusal(sqs.start_message_move_task, SourceArn=arn) == (
        "AWS.SimpleQueueService.UnsupportedOperation"
    )
    assert len(receive(sqs, target, WaitTimeSeconds=20)) == 1
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    left = attributes(sqs, dead)["ApproximateNumberOfMessages"]
    assert int(left) + moved == 10
    (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("CANCELLED", moved)


def presigned(sqs: Sqs) -> None:
    """Only the Query protocol has presigned URLs without a body."""
    url = sqs.create_queue(QueueName="presigned")["QueueUrl"]
    if sqs.meta.service_model.metadata["protocol"] != "query":
        return
    parameters = {"QueueUrl": url, "MessageBody": "a b+c/é~*"}
    link = sqs.generate_presigned_url("send_message", Params=parameters, HttpMethod="GET")
    # A page could embed the link: without auth the server wants a header that it cannot send.
    request = urllib.request.Request(link, headers={"X-Amz-Date": "any"})
    with urllib.request.urlopen(request) as reply:
        assert b"<MessageId>" in reply.read()
    assert receive(sqs, url)[0]["Body"] == "a b+c/é~*"


STEPS = (queues, messages, large, batches, fifo, redrive, slow_move, presigned)


def main() -> None:
    endpoint, key, secret = sys.argv[1:]
    sqs = new_client(endpoint, key, secret)
    for step in STEPS:
        step(sqs)
    print(sqs.meta.service_model.metadata["protocol"])


if __name__ == "__main__":
    main()
