"""ReceiveMessage: claims, as SQS shows them.

A receipt handle is the receipt of the claim. Every receive claims under one consumer name, so that
the message groups of a FIFO queue are not divided among the clients of this door.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

import msgspec

from penstock.model.delivery import Delivery, Event
from penstock.model.limits import MAX_OFFSET
from penstock.model.states import Transition
from penstock.server.claiming import claim_within_bounds, or_wait
from penstock.server.doors.message_uuid import message_uuid
from penstock.server.doors.sqs import requests
from penstock.server.doors.sqs.attributes import ATTRIBUTES, COUNTS, SqsQueue
from penstock.server.doors.sqs.characters import has_invalid
from penstock.server.doors.sqs.failures import SqsError
from penstock.server.doors.sqs.message_attributes import (
    Attributes,
    attributes_of_headers,
    is_wanted,
    md5_of_attributes,
    to_reply,
)
from penstock.server.doors.sqs.moving import ORIGIN_HEADER
from penstock.server.doors.sqs.names import to_sqs
from penstock.server.doors.sqs.request_context import SqsCall
from penstock.server.doors.sqs.requests import AttributeValue
from penstock.server.doors.sqs.sending import (
    DEDUP_HEADER,
    ENVELOPE_TYPE,
    SENDER_HEADER,
    TRACE_HEADER,
    Envelope,
    md5_of,
)
from penstock.server.doors.sqs.settling import checked_visibility
from penstock.server.replies import PART_BYTES
from penstock.wire.bodies import ClaimBody

__all__ = [
    "CONSUMER",
    "receive_message",
]

Reply = dict[str, Any]

#: The consumer of every receive.
CONSUMER: Final = "sqs"
_MAX_MESSAGES: Final = 10
_MAX_WAIT_S: Final = 20
#: The shortest lease, for a visibility timeout of zero.
_SHORTEST_MS: Final = 100
_SYSTEM: Final = frozenset(
    {
        *("All", "AWSTraceHeader", "ApproximateFirstReceiveTimestamp", "ApproximateReceiveCount"),
        *("DeadLetterQueueSourceArn", "MessageDeduplicationId", "MessageGroupId", "SenderId"),
        *("SentTimestamp", "SequenceNumber"),
    }
)
#: What SDKs may ask a receive for too: their models list queue attributes here.
_QUEUE_ONLY: Final = frozenset({*COUNTS, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"})
#: A message whose payload is not text is returned in base64, with this attribute.
_ENCODING: Final = "penstock.encoding"
_decode_envelope: Final = msgspec.json.Decoder(Envelope).decode


async def receive_message(sqs: SqsCall, request: requests.ReceiveMessage) -> Reply:
    """Receive up to ten messages, waiting for the first if the caller or the queue says so."""
    queue = await sqs.queue(request.queue_url, "consume")
    count = 1 if request.max_number_of_messages is None else request.max_number_of_messages
    _check_range(count, 1, _MAX_MESSAGES, "MaxNumberOfMessages", "between {} and {}")
    wait_s = queue.wait_s if request.wait_time_seconds is None else request.wait_time_seconds
    _check_range(wait_s, 0, _MAX_WAIT_S, "WaitTimeSeconds", ">= {} and <= {}")
    lease_ms = None
    if request.visibility_timeout is not None:
        lease_ms = max(_SHORTEST_MS, checked_visibility(request.visibility_timeout) * 1000)
    wanted = _system_names(request)
    body = ClaimBody(count, lease_ms, wait_s * 1000, CONSUMER)
    call = sqs.call
    call.parameters = (queue.info.name,)
    deliveries = await or_wait(call, body, await claim_within_bounds(call, body, 0))
    if not deliveries:
        return {}
    names = request.message_attribute_names
    shown = []
    size = 0
    for delivery in deliveries:
        shown.append(await _shown(sqs, queue, delivery, wanted, names))
        size += len(delivery.payload)
        if size > PART_BYTES:
            # Checking and hashing a mebibyte takes some milliseconds.
            size = 0
            await asyncio.sleep(0)
    return {"Messages": shown}


def _check_range(given: int, least: int, most: int, name: str, bounds: str) -> None:
    if not least <= given <= most:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {given} for parameter {name} is invalid. Reason: Must be"
            f" {bounds.format(least, most)}, if provided.",
        )


def _system_names(request: requests.ReceiveMessage) -> set[str]:
    """The system attributes to return; names of queue attributes are valid, and ignored."""
    wanted = {*request.attribute_names, *request.message_system_attribute_names}
    for name in wanted - _SYSTEM:
        if name not in ATTRIBUTES and name not in _QUEUE_ONLY:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:200]}.")
    return wanted


# -- one message ---------------------------------------------------------------------------


async def _shown(
    sqs: SqsCall, queue: SqsQueue, delivery: Delivery, wanted: set[str], names: list[str]
) -> Reply:
    body, attributes = _content(delivery)
    shown: Reply = {
        "MessageId": message_uuid(_first_id(delivery)),
        "ReceiptHandle": delivery.receipt,
        "MD5OfBody": md5_of(body),
        "Body": body,
    }
    if wanted:
        system = await _system_attributes(sqs, queue, delivery, wanted)
        if system:
            shown["Attributes"] = system
    if names and attributes:
        chosen = {name: one for name, one in attributes.items() if is_wanted(name, names)}
        if chosen:
            shown["MD5OfMessageAttributes"] = md5_of_attributes(chosen)
            shown["MessageAttributes"] = to_reply(chosen)
    return shown


def _first_id(delivery: Delivery) -> int:
    """The id of the message, or of the one that it is a dead-letter copy of."""
    headers = delivery.message.headers
    for name in (ORIGIN_HEADER, "dead_letter_message_id"):
        first = headers.get(name)
        if type(first) is int and 0 <= first <= MAX_OFFSET:
            return first
    return delivery.message.id


def _content(delivery: Delivery) -> tuple[str, Attributes]:
    """The body and the attributes of a message; any client may have published it."""
    message = delivery.message
    if message.content_type == ENVELOPE_TYPE:
        try:
            envelope = _decode_envelope(delivery.payload)
        except (msgspec.MsgspecError, ValueError):
            pass  # Another program wrote it.
        else:
            return envelope.body, envelope.attributes
    attributes = attributes_of_headers(message.headers) if message.headers else {}
    try:
        body = delivery.payload.decode()
    except UnicodeDecodeError:
        body = None
    if body is None or has_invalid(body):
        encoded = AttributeValue("String", "base64")
        return base64.b64encode(delivery.payload).decode(), {**attributes, _ENCODING: encoded}
    return body, attributes


async def _system_attributes(
    sqs: SqsCall, queue: SqsQueue, delivery: Delivery, wanted: set[str]
) -> dict[str, str]:
    message, headers = delivery.message, delivery.message.headers
    everything = "All" in wanted
    found: dict[str, object] = {
        "SenderId": headers.get(SENDER_HEADER, "anonymous"),
        "SentTimestamp": message.published_at,
        "ApproximateReceiveCount": delivery.attempts,
        "AWSTraceHeader": headers.get(TRACE_HEADER),
        "MessageGroupId": message.partition_key,
        "MessageDeduplicationId": headers.get(DEDUP_HEADER),
    }
    if queue.is_fifo:
        found["SequenceNumber"] = f"{_first_id(delivery):020}"
    source = headers.get("dead_letter_original_queue")
    if isinstance(source, str):
        found["DeadLetterQueueSourceArn"] = sqs.arn_of(to_sqs(source))
    if everything or "ApproximateFirstReceiveTimestamp" in wanted:
        found["ApproximateFirstReceiveTimestamp"] = await _first_received(sqs, delivery)
    return {
        name: str(value)
        for name, value in found.items()
        if value is not None and (everything or name in wanted)
    }


async def _first_received(sqs: SqsCall, delivery: Delivery) -> int:
    if delivery.attempts == 1:
        return delivery.claimed_at
    history = await sqs.broker.history(delivery.message.id)
    return min(
        (event.at for event in history if _is_claim(event, delivery.queue)),
        default=delivery.claimed_at,
    )


def _is_claim(event: Event, queue: str) -> bool:
    return event.transition is Transition.CLAIM and event.queue == queue
