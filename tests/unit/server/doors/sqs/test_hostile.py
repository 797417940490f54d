"""Malformed and hostile requests: an error that SQS would send, and nothing done."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from penstock.server.access import Browsers
from penstock.server.app import Application
from penstock.server.doors.sqs.door import new_door
from penstock.testing.laws import law
from tests.unit.server.conftest import Answer
from tests.unit.server.doors.sqs.conftest import HOST, Sqs

_BOMB = b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;&b;&b;">]><a>&c;</a>'
_NS = "{http://queue.amazonaws.com/doc/2012-11-05/}"
_URL = "http://queue.example.org/000000000000/jobs"


def json_error(answer: Answer) -> str:
    """The name of the error, which the header repeats."""
    assert 400 <= answer.status < 500, answer.body
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert answer.headers["x-amzn-query-error"].endswith(";Sender")
    assert answer.headers["x-amzn-requestid"]
    document = answer.json()
    assert document["message"]
    return str(document["__type"].partition("#")[2])


def xml_error(answer: Answer) -> str:
    assert 400 <= answer.status < 500, answer.body
    document = ET.fromstring(answer.body)
    assert document.tag == f"{_NS}ErrorResponse"
    assert document.findtext(f"{_NS}Error/{_NS}Type") == "Sender"
    return str(document.findtext(f"{_NS}Error/{_NS}Code"))


async def untouched(sqs: Sqs) -> None:
    """Nothing was published, created or kept in memory."""
    assert await sqs.door.broker.log_end() == 0
    assert [info.name for info in await sqs.door.broker.queues()] == ["jobs"]
    assert sqs.door.service.budget.held == 0


_SEND = {"QueueUrl": _URL, "MessageBody": "x"}


def _attribute(**value: object) -> dict[str, object]:
    return {**_SEND, "MessageAttributes": {"a": value}}


@law("E1")
@pytest.mark.parametrize(
    "action, body, error",
    [
        ("SendMessage", b"{", "SerializationException"),
        ("SendMessage", b"[]", "SerializationException"),
        ("SendMessage", b"\xff\xfe", "SerializationException"),
        ("SendMessage", b"[" * 100_000, "SerializationException"),
        ("SendMessage", _BOMB, "SerializationException"),
        ("SendMessage", {**_SEND, "MessageBody": 1}, "SerializationException"),
        ("SendMessage", {**_SEND, "DelaySeconds": "soon"}, "SerializationException"),
        ("SendMessage", {**_SEND, "DelaySeconds": 10**30}, "InvalidParameterValue"),
        ("SendMessage", {}, "MissingParameter"),
        ("SendMessage", {"QueueUrl": _URL}, "MissingParameter"),
        ("SendMessage", {**_SEND, "QueueUrl": "http://x/"}, "InvalidAddress"),
        ("SendMessage", {**_SEND, "QueueUrl": "http://[/jobs"}, "InvalidAddress"),
        ("SendMessage", {**_SEND, "QueueUrl": _URL + "x"}, "QueueDoesNotExist"),
        ("SendMessage", {**_SEND, "QueueUrl": _URL + "x" * 5_000}, "InvalidParameterValue"),
        ("SendMessage", {**_SEND, "DelaySeconds": -1}, "InvalidParameterValue"),
        ("SendMessage", {**_SEND, "MessageBody": "\x00"}, "InvalidMessageContents"),
        ("SendMessage", {**_SEND, "MessageBody": "x" * 1_048_577}, "InvalidParameterValue"),
        ("SendMessage", {**_SEND, "MessageGroupId": "ü"}, "InvalidParameterValue"),
        ("SendMessage", {**_SEND, "MessageDeduplicationId": "1"}, "InvalidParameterValue"),
        ("SendMessage", _attribute(DataType="Sting", StringValue="x"), "InvalidParameterValue"),
        ("SendMessage", _attribute(DataType="Number", StringValue="x"), "InvalidParameterValue"),
        ("SendMessage", _attribute(DataType="Number", BinaryValue="AA=="), "InvalidParameterValue"),
        ("SendMessage", _attribute(DataType="Binary", BinaryValue="?"), "SerializationException"),
        ("SendMessage", _attribute(DataType="String"), "InvalidParameterValue"),
        ("SendMessage", _attribute(DataType="String", StringValue="\x01"), "InvalidParameterValue"),
        (
            "SendMessage",
            _attribute(DataType="String", StringListValues=["x"]),
            "UnsupportedOperation",
        ),
        (
            "SendMessage",
            {**_SEND, "MessageAttributes": {"aws.x": {"DataType": "String", "StringValue": "x"}}},
            "InvalidParameterValue",
        ),
        (
            "SendMessage",
            {
                **_SEND,
                "MessageAttributes": {
                    f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)
                },
            },
            "InvalidParameterValue",
        ),
        ("ReceiveMessage", {"QueueUrl": _URL, "MaxNumberOfMessages": 11}, "InvalidParameterValue"),
        ("ReceiveMessage", {"QueueUrl": _URL, "WaitTimeSeconds": 21}, "InvalidParameterValue"),
        ("ReceiveMessage", {"QueueUrl": _URL, "AttributeNames": ["No"]}, "InvalidAttributeName"),
        ("ReceiveMessage", {"QueueUrl": _URL, "VisibilityTimeout": -1}, "InvalidParameterValue"),
        ("DeleteMessage", {"QueueUrl": _URL, "ReceiptHandle": "-"}, "ReceiptHandleIsInvalid"),
        ("CreateQueue", {"QueueName": "a/b"}, "InvalidParameterValue"),
        ("CreateQueue", {"QueueName": "a" * 81}, "InvalidParameterValue"),
        ("CreateQueue", {"QueueName": "_" * 70}, "InvalidParameterValue"),
        (
            "CreateQueue",
            {"QueueName": "a", "Attributes": {"RedrivePolicy": "["}},
            "InvalidAttributeValue",
        ),
        (
            "CreateQueue",
            {"QueueName": "a", "Attributes": {"RedrivePolicy": '{"deadLetterTargetArn": 1}'}},
            "InvalidParameterValue",
        ),
        ("CreateQueue", {"QueueName": "a", "tags": {"": "x"}}, "InvalidParameterValue"),
        ("ListQueues", {"NextToken": "?"}, "InvalidParameterValue"),
        ("ListQueues", {"MaxResults": 0}, "InvalidParameterValue"),
        ("CancelMessageMoveTask", {"TaskHandle": "e30="}, "InvalidParameterValue"),
        ("StartMessageMoveTask", {"SourceArn": "arn:aws:s3:::x"}, "InvalidParameterValue"),
        ("DropTables", {}, "UnknownOperationException"),
    ],
)
async def test_malformed_json(sqs: Sqs, action: str, body: object, error: str) -> None:
    await sqs.queue()
    assert json_error(await sqs.json(action, body)) == error
    await untouched(sqs)


@law("E1")
@pytest.mark.parametrize(
    "body, error",
    [
        (b"", "InvalidAction"),
        (b"Action=DropTables", "InvalidAction"),
        (_BOMB, "InvalidAction"),
        (b"Action=SendMessage&MessageBody=%ff&QueueUrl=/jobs", "MalformedQueryString"),
        (b"Action=SendMessage&" + b"&".join(b"a.%d=1" % n for n in range(2_001)),
         "MalformedQueryString"),
        (b"Action=SendMessage&a.b.c.d.e.f.g.h.i=1", "MalformedQueryString"),
        (b"Action=SendMessage&a=1&a.b=2", "MalformedQueryString"),
        (b"Action=SendMessage&a.b=2&a=1", "MalformedQueryString"),
        (b"Action=SendMessageBatch&SendMessageBatchRequestEntry.x.Id=1", "MalformedQueryString"),
        (b"Action=SendMessageBatch&Entries=1&QueueUrl=/jobs", "MalformedInput"),
        (b"Action=SendMessage&QueueUrl=/jobs&MessageBody=x&MessageAttribute.1.Value=1",
         "MissingParameter"),
        (b"Action=SendMessage&QueueUrl=/jobs&MessageBody=x&DelaySeconds=1x3", "MalformedInput"),
        (b"Action=SendMessage&QueueUrl=/jobs&MessageBody=%00", "InvalidMessageContents"),
        (b"Action=ReceiveMessage&QueueUrl=/%00%3c%26", "NonExistentQueue"),
    ],
)  # fmt: skip
async def test_malformed_forms(sqs: Sqs, body: bytes, error: str) -> None:
    await sqs.queue()
    assert xml_error(await sqs.form(body)).removeprefix("AWS.SimpleQueueService.") == error
    await untouched(sqs)


async def test_a_body_over_the_limit_is_refused_before_it_is_read(sqs: Sqs) -> None:
    await sqs.queue()
    for answer in (
        await sqs.json("SendMessage", b"x" * (4 * 2**20 + 1)),
        await sqs.form(b"x" * (4 * 2**20 + 1)),
    ):
        assert answer.status == 413
    await untouched(sqs)


async def test_a_long_query_string_is_refused_before_its_signature_is_read(guarded: Sqs) -> None:
    for field in (b"%41=%41&", b"a&"):
        query = (field * (32 * 1024 // len(field) + 1)).decode()
        for method in ("GET", "POST"):
            answer = await guarded.door.call(method, f"/?Action=ListQueues&{query}")
            assert xml_error(answer) == "MalformedQueryString"


async def test_many_small_values_are_refused(sqs: Sqs) -> None:
    """Decoding a million of them holds the event loop for hundreds of milliseconds."""
    await sqs.queue()
    entries = {"QueueUrl": _URL, "Entries": [{"Id": "x"}] * 9_000}
    assert json_error(await sqs.json("SendMessageBatch", entries)) == "SerializationException"
    value = {"DataType": "String", "StringValue": "x"}
    attributes = {**_SEND, "MessageAttributes": dict.fromkeys(map(str, range(9_000)), value)}
    assert json_error(await sqs.json("SendMessage", attributes)) == "SerializationException"
    names = {"QueueUrl": _URL, "AttributeNames": ["All"] * 60_000}
    assert (await sqs.json("ReceiveMessage", names)).status == 413
    await untouched(sqs)


async def test_a_page_cannot_use_the_door_of_a_server_without_auth(sqs: Sqs) -> None:
    """A page can send forms and open links, but no header that SDKs send."""
    await sqs.queue()
    service = sqs.door.service
    service.browsers = Browsers.of(
        auth=False, listening=(HOST,), allowed_hosts=None, allowed_origins=None
    )
    sqs.door.app = Application(service, (), (new_door(service, lambda: "id"),))
    send = b"Action=SendMessage&MessageBody=x&QueueUrl=/jobs"
    assert xml_error(await sqs.form(send)) == "InvalidParameterValue"
    link = await sqs.door.call("GET", f"/?{send.decode()}", headers={"host": HOST})
    assert xml_error(link) == "AccessDenied"
    await untouched(sqs)
    named = {"host": HOST, "authorization": "AWS4-HMAC-SHA256 Credential=any/1/x/sqs/aws4_request"}
    form = {**named, "content-type": "application/x-www-form-urlencoded"}
    assert (await sqs.door.call("POST", "/", send, form)).status == 200
