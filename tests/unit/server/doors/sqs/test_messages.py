"""What a message of SQS is natively, and a native message in SQS."""

from __future__ import annotations

import asyncio
import base64
import json

from hypothesis import given
from hypothesis import strategies as st
from moto.sqs.models import Message as MotoMessage

from penstock import Ack, TopicPolicy
from penstock.model.message import HeaderValue
from penstock.server.doors.sqs.message_attributes import (
    attributes_of_headers,
    check_attributes,
    md5_of_attributes,
    to_headers,
)
from penstock.server.doors.sqs.names import to_penstock, to_sqs
from penstock.server.doors.sqs.requests import AttributeValue
from tests.unit.server.doors.sqs.conftest import Sqs

_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
_TEXT = _TEXT.filter(lambda text: not {"\ufffe", "\uffff"} & set(text))
_NUMBER = st.one_of(
    st.integers(-(10**38), 10**38).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["1.50", "+5", "-0", "007", "1e5", ".5", "5."]),
)
_VALUES = st.one_of(
    st.builds(AttributeValue, st.sampled_from(["String", "String.x"]), _TEXT),
    st.builds(AttributeValue, st.sampled_from(["Number", "Number.int"]), _NUMBER),
    st.builds(AttributeValue, st.just("Binary"), st.none(), st.binary(min_size=1, max_size=100)),
)
_NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,20}(\.[a-z]{1,5})?", fullmatch=True).filter(
    lambda name: not name.lower().startswith(("aws.", "amazon."))
)
_NAMES |= st.sampled_from(["sqs_attributes", "dead_letter_error"])


@given(st.dictionaries(_NAMES, _VALUES, max_size=10))
def test_attributes_come_back_exactly_and_have_the_md5_of_moto(
    attributes: dict[str, AttributeValue],
) -> None:
    check_attributes(attributes)
    headers, complete = to_headers(attributes)
    assert complete
    assert attributes_of_headers(headers) == attributes
    moto = MotoMessage("id", "body")
    moto.message_attributes = {
        name: {
            "DataType": value.data_type,
            "StringValue": value.string_value,
            "BinaryValue": value.binary_value,
        }
        for name, value in attributes.items()
    }
    assert md5_of_attributes(attributes) == moto.attribute_md5


@given(st.from_regex(r"[A-Za-z0-9_-]{1,50}(\.fifo)?", fullmatch=True))
def test_every_queue_name_comes_back(name: str) -> None:
    assert to_sqs(to_penstock(name)) == name


async def test_attributes_are_headers_that_filters_see(sqs: Sqs) -> None:
    await sqs.door.broker.create_queue("big", "topic = 'jobs' AND amount > 100")
    url = await sqs.queue()
    for amount in ("100", "250.5"):
        attributes = {"amount": {"DataType": "Number", "StringValue": amount}}
        await sqs.ask("SendMessage", QueueUrl=url, MessageBody=amount, MessageAttributes=attributes)
    (delivery,) = await sqs.door.broker.claim("big", limit=10)
    assert delivery.payload == b"250.5"
    assert delivery.message.headers["amount"] == 250.5
    assert delivery.message.content_type == "text/plain; charset=utf-8"
    assert len(await sqs.door.broker.claim("jobs", limit=10)) == 2


async def test_a_native_message_is_received_with_its_headers(sqs: Sqs) -> None:
    broker = sqs.door.broker
    url = await sqs.queue()
    headers: dict[str, HeaderValue] = {
        "city": "Köln",
        "amount": 7,
        "ratio": 0.5,
        "urgent": True,
        "not a name": 1,
    }
    await broker.publish("jobs", {"a": 1}, headers=headers)
    await broker.publish("jobs", b"\xff\x00")
    reply = await sqs.ask(
        "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    )
    first, second = reply["Messages"]
    assert json.loads(first["Body"]) == {"a": 1}
    assert first["MessageAttributes"] == {
        "city": {"StringValue": "Köln", "DataType": "String"},
        "amount": {"StringValue": "7", "DataType": "Number"},
        "ratio": {"StringValue": "0.5", "DataType": "Number"},
        "urgent": {"StringValue": "true", "DataType": "String"},
    }
    assert base64.b64decode(second["Body"]) == b"\xff\x00"
    assert second["MessageAttributes"]["penstock.encoding"]["StringValue"] == "base64"
    # A receipt handle is a receipt: a native program may settle what was received here.
    await broker.settle("jobs", [Ack(one["ReceiptHandle"]) for one in reply["Messages"]])
    assert (await broker.stats("jobs")).done == 2


async def test_a_native_queue_is_used_through_the_door(sqs: Sqs) -> None:
    broker = sqs.door.broker
    await broker.create_queue("orders.eu", "topic = 'orders.eu'")
    await broker.create_queue("filtered", "amount > 1")
    listed = (await sqs.ask("ListQueues"))["QueueUrls"]
    assert [url.rpartition("/")[2] for url in listed] == ["filtered", "orders.eu"]
    await sqs.ask("SendMessage", QueueUrl=listed[1], MessageBody="x")
    refused = await sqs.json("SendMessage", {"QueueUrl": listed[0], "MessageBody": "x"})
    assert refused.json()["__type"] == "com.amazonaws.sqs#UnsupportedOperation"
    (message,) = (await sqs.ask("ReceiveMessage", QueueUrl=listed[1]))["Messages"]
    assert message["Body"] == "x"


async def test_failed_deliveries_of_a_native_queue_are_received_as_its_dlq(sqs: Sqs) -> None:
    broker = sqs.door.broker
    await broker.create_queue("work", "topic = 'work'", max_attempts=1)
    await broker.publish("work", "poison")
    (delivery,) = await broker.claim("work")
    await broker.nack(delivery)
    url = "/000000000000/work.dlq"
    (message,) = (await sqs.ask("ReceiveMessage", QueueUrl=url))["Messages"]
    assert message["Body"] == "poison"
    await sqs.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert (await broker.stats("work")).failed == 0


async def test_a_queue_that_was_deleted_natively_takes_nothing(sqs: Sqs) -> None:
    url = await sqs.queue()
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="x")
    await sqs.door.broker.delete_queue("jobs")
    refused = await sqs.json("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    assert refused.json()["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"


async def test_tags_are_labels_and_attributes_follow_native_changes(sqs: Sqs) -> None:
    broker = sqs.door.broker
    url = await sqs.queue(tags={"team": "a"}, Attributes={"DelaySeconds": "5"})
    (info,) = await broker.queues(labels={"team": "a"})
    assert info.policy.labels == {"team": "a", "sqs/DelaySeconds": "5"}
    await broker.update_queue("jobs", lease_ms=90_000, labels={"team": "b"})
    wanted = ["VisibilityTimeout", "DelaySeconds"]
    shown = await sqs.ask("GetQueueAttributes", QueueUrl=url, AttributeNames=wanted)
    assert shown["Attributes"] == {"VisibilityTimeout": "90", "DelaySeconds": "0"}
    assert (await sqs.ask("ListQueueTags", QueueUrl=url))["Tags"] == {"team": "b"}


async def test_a_forged_origin_moves_nothing_elsewhere(sqs: Sqs) -> None:
    """Any producer can write the header that says where a dead letter came from."""
    broker = sqs.door.broker
    await sqs.queue("victim")
    await sqs.queue("dead")
    arn = "arn:aws:sqs:us-east-1:000000000000:dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    await sqs.queue("source", Attributes={"RedrivePolicy": policy})
    await broker.publish("dead", "x", headers={"dead_letter_original_queue": "victim"})
    await sqs.ask("StartMessageMoveTask", SourceArn=arn)
    while True:
        (task,) = (await sqs.ask("ListMessageMoveTasks", SourceArn=arn))["Results"]
        if task["Status"] != "RUNNING":
            break
        await asyncio.sleep(0)
    assert task["Status"] == "FAILED"
    assert (await broker.stats("victim")).available == 0
    assert (await broker.stats("dead")).available == 1


async def test_a_schema_refuses_single_entries_of_a_batch(sqs: Sqs) -> None:
    url = await sqs.queue()
    schema = '{"type": "object"}'
    await sqs.door.broker.put_topic("jobs", TopicPolicy(schema_type="json-schema", schema=schema))
    entries = [{"Id": str(n), "MessageBody": text} for n, text in enumerate(["{}", "7", "{}"])]
    reply = await sqs.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in reply["Successful"]] == ["0", "2"]
    assert [(one["Id"], one["Code"]) for one in reply["Failed"]] == [
        ("1", "InvalidMessageContents")
    ]


async def test_replies_to_batches_omit_empty_lists(sqs: Sqs) -> None:
    """``hasFailed`` of the Java SDK and ``"Failed" in reply`` test for the member."""
    url = await sqs.queue()
    good, bad = {"Id": "1", "MessageBody": "x"}, {"Id": "2", "MessageBody": "\x00"}
    for entries, members in (
        ([good], ["Successful"]),
        ([bad], ["Failed"]),
        ([good, bad], ["Successful", "Failed"]),
    ):
        assert list(await sqs.ask("SendMessageBatch", QueueUrl=url, Entries=entries)) == members
    (message,) = (await sqs.ask("ReceiveMessage", QueueUrl=url))["Messages"]
    handles = [{"Id": "1", "ReceiptHandle": message["ReceiptHandle"]}]
    assert list(await sqs.ask("DeleteMessageBatch", QueueUrl=url, Entries=handles)) == [
        "Successful"
    ]


async def test_a_receive_may_name_attributes_of_queues(sqs: Sqs) -> None:
    url = await sqs.queue()
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody="x")
    names = ["VisibilityTimeout", "QueueArn", "ApproximateReceiveCount"]
    (message,) = (await sqs.ask("ReceiveMessage", QueueUrl=url, AttributeNames=names))["Messages"]
    assert message["Attributes"] == {"ApproximateReceiveCount": "1"}
