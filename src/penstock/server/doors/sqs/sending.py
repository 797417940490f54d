"""SendMessage and SendMessageBatch: a message of SQS as a message of Penstock.

The body is the payload, as text. A message group is the partition key, a deduplication id the
idempotency id, which a message does not keep, so that a header repeats it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from penstock.errors import PenstockError, SchemaViolation
from penstock.model.message import HeaderValue, NewMessage, Published
from penstock.server.doors.message_uuid import message_uuid
from penstock.server.doors.sqs import requests
from penstock.server.doors.sqs.attributes import MAX_MESSAGE_BYTES, SqsQueue
from penstock.server.doors.sqs.characters import has_invalid
from penstock.server.doors.sqs.failures import SqsError, failure_of
from penstock.server.doors.sqs.message_attributes import (
    Attributes,
    attributes_size,
    check_attributes,
    md5_of_attributes,
    to_headers,
)
from penstock.server.doors.sqs.request_context import SqsCall
from penstock.server.doors.sqs.requests import AttributeValue, required

__all__ = [
    "DEDUP_HEADER",
    "ENVELOPE_TYPE",
    "SENDER_HEADER",
    "TRACE_HEADER",
    "Envelope",
    "batch_reply",
    "check_batch",
    "failed_entry",
    "md5_of",
    "send_message",
    "send_message_batch",
]

Reply = dict[str, Any]

DEDUP_HEADER: Final = "sqs_deduplication_id"
SENDER_HEADER: Final = "sqs_sender_id"
TRACE_HEADER: Final = "sqs_trace_header"
#: The payload has the body and the attributes, which are too large for headers.
ENVELOPE_TYPE: Final = "application/vnd.penstock.sqs+json"
_TEXT_TYPE: Final = "text/plain; charset=utf-8"
_TRACE: Final = "AWSTraceHeader"
_MAX_DELAY_S: Final = 900
_MAX_ENTRIES: Final = 10
_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TOKEN: Final = re.compile(r"[!-~]{1,128}")


class Envelope(Struct, frozen=True):
    """The payload of a message whose attributes are too large for headers."""

    body: str
    attributes: dict[str, AttributeValue]


class Entry(Protocol):
    """One entry of a batch."""

    @property
    def id(self) -> str:
        """The caller's name for it."""
        ...


E = TypeVar("E", bound=Entry)


async def send_message(sqs: SqsCall, request: requests.SendMessage) -> Reply:
    """Send one message."""
    queue = await _target(sqs, request.queue_url)
    message = _to_message(sqs, queue, request)
    published = await sqs.broker.publish(
        queue.info.name,
        message.payload,
        headers=message.headers,
        id=message.id,
        partition_key=message.partition_key,
        content_type=message.content_type,
        delay_ms=message.delay_ms,
        auto_create=False,
    )
    await _check_taken(sqs, queue, (published,))
    sqs.call.service.metrics.published(1)
    return _sent(queue, request, published)


async def send_message_batch(sqs: SqsCall, request: requests.SendMessageBatch) -> Reply:
    """Send up to ten messages; each may be refused on its own."""
    queue = await _target(sqs, request.queue_url)
    entries = check_batch(request.entries, "SendMessageBatchRequestEntry")
    if (size := sum(map(_size, entries))) > MAX_MESSAGE_BYTES:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MAX_MESSAGE_BYTES} bytes. You have sent"
            f" {size} bytes.",
        )
    failed: list[Reply] = []
    messages: list[NewMessage] = []
    good: list[requests.SendEntry] = []
    for entry in entries:
        try:
            messages.append(_to_message(sqs, queue, entry))
            good.append(entry)
        except PenstockError as error:
            failed.append(failed_entry(entry.id, error))
    successful = []
    for entry, published in await _publish(sqs, queue, good, messages, failed):
        successful.append({"Id": entry.id, **_sent(queue, entry, published)})
    sqs.call.service.metrics.published(len(successful))
    return batch_reply(successful, failed)


async def _publish(
    sqs: SqsCall,
    queue: SqsQueue,
    entries: Sequence[requests.SendEntry],
    messages: Sequence[NewMessage],
    failed: list[Reply],
) -> Iterable[tuple[requests.SendEntry, Published]]:
    if not messages:
        return ()
    name = queue.info.name
    try:
        reply = await sqs.broker.publish_batch(name, messages, auto_create=False)
    except SchemaViolation as error:
        if len(messages) == 1:
            failed.append(failed_entry(entries[0].id, error))
            return ()
        # Nothing was stored: find the messages that the topic's schema refuses.
        sent: list[tuple[requests.SendEntry, Published]] = []
        for entry, message in zip(entries, messages, strict=True):
            sent += await _publish(sqs, queue, (entry,), (message,), failed)
        return sent
    await _check_taken(sqs, queue, reply.messages)
    return zip(entries, reply.messages, strict=True)


async def _target(sqs: SqsCall, url: str | None) -> SqsQueue:
    queue = await sqs.queue(url, "publish")
    if not queue.takes_topic:
        raise SqsError(
            "UnsupportedOperation",
            f"The queue {queue.name} takes the messages of its own filter: send to a queue whose"
            " messages match it.",
        )
    return queue


async def _check_taken(sqs: SqsCall, queue: SqsQueue, published: Sequence[Published]) -> None:
    """Raise ``UnknownQueue`` if the queue was deleted after it was cached."""
    if any(one.queues == 0 for one in published):
        await sqs.reread(queue.info.name)


# -- one message ---------------------------------------------------------------------------


def _to_message(sqs: SqsCall, queue: SqsQueue, request: requests.SendMessage) -> NewMessage:
    body = required(request.message_body, "MessageBody")
    if has_invalid(body):
        raise SqsError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to"
            " #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
        )
    attributes = request.message_attributes
    check_attributes(attributes)
    if (size := _size(request)) > queue.message_bytes:
        raise SqsError(
            "InvalidParameterValue",
            "One or more parameters are invalid. Reason: Message must be shorter than"
            f" {queue.message_bytes} bytes. It has {size}.",
        )
    delay_s = _delay(queue, request)
    group, dedup_id = _tokens(queue, request, body)
    headers: dict[str, HeaderValue] = {}
    payload, content_type = body.encode(), _TEXT_TYPE
    if attributes:
        headers, complete = to_headers(attributes)
        if not complete:
            payload = msgspec.json.encode(Envelope(body, dict(attributes)))
            content_type = ENVELOPE_TYPE
    if request.message_system_attributes:
        headers[TRACE_HEADER] = _trace(request.message_system_attributes)
    if dedup_id is not None:
        headers[DEDUP_HEADER] = dedup_id
    if sqs.call.service.access.enabled:
        headers[SENDER_HEADER] = sqs.call.credential.id
    return NewMessage(
        payload,
        headers,
        id=dedup_id,
        partition_key=group,
        content_type=content_type,
        delay_ms=delay_s * 1000 if delay_s else None,
    )


def _delay(queue: SqsQueue, request: requests.SendMessage) -> int:
    delay_s = request.delay_seconds
    if delay_s is None:
        return queue.delay_s
    if queue.is_fifo and delay_s:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {delay_s} for parameter DelaySeconds is invalid. Reason: The request include"
            " parameter that is not valid for this queue type.",
        )
    if not 0 <= delay_s <= _MAX_DELAY_S:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {delay_s} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be"
            f" >= 0 and <= {_MAX_DELAY_S}.",
        )
    return queue.delay_s if queue.is_fifo else delay_s


def _tokens(
    queue: SqsQueue, request: requests.SendMessage, body: str
) -> tuple[str | None, str | None]:
    """The message group and the deduplication id."""
    group, dedup_id = request.message_group_id, request.message_deduplication_id
    for name, token in (("MessageGroupId", group), ("MessageDeduplicationId", dedup_id)):
        if token is not None and _TOKEN.fullmatch(token) is None:
            raise SqsError(
                "InvalidParameterValue",
                f"Value {token[:128]} for parameter {name} is invalid. Reason: {name} can only"
                " include alphanumeric and punctuation characters. 1 to 128 in length.",
            )
    if not queue.is_fifo:
        if dedup_id is not None:
            raise SqsError(
                "InvalidParameterValue",
                f"Value {dedup_id} for parameter MessageDeduplicationId is invalid. Reason: The"
                " request include parameter that is not valid for this queue type.",
            )
        return group, None
    if group is None:
        raise SqsError("MissingParameter", "The request must contain the parameter MessageGroupId.")
    if dedup_id is None:
        if not queue.content_based:
            raise SqsError(
                "InvalidParameterValue",
                "The queue should either have ContentBasedDeduplication enabled or"
                " MessageDeduplicationId provided explicitly",
            )
        dedup_id = hashlib.sha256(body.encode()).hexdigest()
    return group, dedup_id


def _trace(system: Attributes) -> str:
    unknown = [name for name in system if name != _TRACE]
    value = system.get(_TRACE)
    text = "" if value is None else value.string_value
    if unknown or value is None or value.data_type != "String" or not text or len(text) > 1_024:
        raise SqsError(
            "InvalidParameterValue",
            f"Message system attribute {unknown[0] if unknown else _TRACE!r} is invalid. Only"
            f" {_TRACE} is supported, with the type String.",
        )
    return text


def _size(request: requests.SendMessage) -> int:
    body = request.message_body or ""
    size = len(body) if body.isascii() else len(body.encode(errors="replace"))
    attributes = request.message_attributes
    return size + attributes_size(attributes) if attributes else size


def _sent(queue: SqsQueue, request: requests.SendMessage, published: Published) -> Reply:
    reply: Reply = {
        "MessageId": message_uuid(published.id),
        "MD5OfMessageBody": md5_of(request.message_body or ""),
    }
    if request.message_attributes:
        reply["MD5OfMessageAttributes"] = md5_of_attributes(request.message_attributes)
    if request.message_system_attributes:
        reply["MD5OfMessageSystemAttributes"] = md5_of_attributes(request.message_system_attributes)
    if queue.is_fifo:
        reply["SequenceNumber"] = f"{published.id:020}"
    return reply


def md5_of(body: str) -> str:
    """The MD5 of a body, which clients compare with their own."""
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


# -- batches -------------------------------------------------------------------------------


def check_batch(entries: list[E], name: str) -> list[E]:
    """The entries of a batch; raises the error of SQS if the batch as a whole is refused."""
    if not entries:
        raise SqsError("EmptyBatchRequest", f"There should be at least one {name} in the request.")
    if len(entries) > _MAX_ENTRIES:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {_MAX_ENTRIES}. You have sent"
            f" {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if _ENTRY_ID.fullmatch(entry.id) is None:
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and"
                " underscores. It can be at most 80 letters long.",
            )
        if entry.id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {entry.id} repeated.")
        seen.add(entry.id)
    return entries


def batch_reply(successful: list[Reply], failed: list[Reply]) -> Reply:
    """The reply to a batch. SQS omits an empty list, and SDKs test for the member."""
    reply = {"Successful": successful, "Failed": failed}
    return {name: entries for name, entries in reply.items() if entries}


def failed_entry(entry_id: str, error: PenstockError) -> Reply:
    """The part of a reply about an entry that was refused."""
    failure = failure_of(error)
    return {
        "Id": entry_id,
        "SenderFault": failure.is_sender_fault,
        "Code": failure.code,
        "Message": failure.message,
    }
