"""Operations on queues: create, find, list, delete, purge, attributes."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from penstock.errors import QueueExists, UnknownQueue
from penstock.model.limits import MAX_PAGE, is_dead_letter
from penstock.model.queue import TopicPolicy
from penstock.model.states import State
from penstock.server.doors.sqs import requests
from penstock.server.doors.sqs.attributes import ATTRIBUTES, SqsQueue, check_values
from penstock.server.doors.sqs.failures import SqsError
from penstock.server.doors.sqs.names import check_new_name, name_of_url, to_penstock, to_sqs
from penstock.server.doors.sqs.policies import (
    DEDUP_WINDOW_MS,
    check_redrive,
    new_policy,
    policy_changes,
    shown_attributes,
    without_defaults,
)
from penstock.server.doors.sqs.request_context import Documents, SqsCall
from penstock.server.doors.sqs.requests import required
from penstock.server.doors.sqs.tags import check_tags, split_tags

__all__ = [
    "create_queue",
    "delete_queue",
    "get_queue_attributes",
    "get_queue_url",
    "list_dead_letter_source_queues",
    "list_queues",
    "page_of",
    "purge_queue",
    "set_queue_attributes",
]

Reply = dict[str, Any]

#: Queues per page.
_MAX_RESULTS: Final = 1_000
#: What one call of a purge removes.
_PURGE_LIMIT: Final = 1_000_000


async def create_queue(sqs: SqsCall, request: requests.CreateQueue) -> Reply:
    """Create a queue; one with the same attributes may exist already."""
    name = check_new_name(required(request.queue_name, "QueueName"))
    known = to_penstock(name)
    sqs.check(known, "admin")
    is_fifo = name.endswith(".fifo")
    values = request.attributes
    if is_fifo and values.get("FifoQueue") != "true":
        raise SqsError(
            "InvalidParameterValue",
            "The name of a queue may end in .fifo only if its attribute FifoQueue is true.",
        )
    if "FifoQueue" in values and not is_fifo:
        raise SqsError(
            "InvalidParameterValue",
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or"
            " underscores, must end with .fifo suffix and be 1 to 80 in length.",
        )
    check_values(values, is_fifo=is_fifo, is_new=True)
    check_tags(request.tags)
    try:
        queue = await sqs.reread(known)
    except UnknownQueue:
        await check_redrive(sqs, name, values)
        queue = await _create(sqs, known, is_fifo, request)
    await _check_same(sqs, queue, values)
    return {"QueueUrl": sqs.url_of(name)}


async def _create(
    sqs: SqsCall, known: str, is_fifo: bool, request: requests.CreateQueue
) -> SqsQueue:
    labels, others = split_tags(request.tags, request.attributes)
    if is_fifo:
        await put_dedup(sqs, known, request.attributes)
    fields = new_policy(known, request.attributes, labels, is_fifo=is_fifo)
    try:
        info = await sqs.broker.create_queue(known, **fields)
    except QueueExists:  # Another caller was faster.
        return await sqs.reread(known)
    queue = sqs.remember(info)
    documents = Documents(_documents(request.attributes), others)
    if documents != Documents():
        await sqs.put_documents(queue, documents)
    return queue


async def _check_same(sqs: SqsCall, queue: SqsQueue, values: Mapping[str, str]) -> None:
    if not values:
        return
    shown = without_defaults(shown_attributes(sqs, queue, await sqs.documents(queue)))
    wanted = without_defaults(values)
    for name in values:
        if shown.get(name) != wanted.get(name):
            raise SqsError(
                "QueueNameExists",
                "A queue already exists with the same name and a different value for attribute"
                f" {name}",
            )


async def put_dedup(sqs: SqsCall, known: str, values: Mapping[str, str]) -> None:
    """Make the topic of a FIFO queue remember deduplication ids as SQS does."""
    policy = await sqs.broker.topic(known) or TopicPolicy()
    scope = values.get("DeduplicationScope", "queue")
    wanted = replace(
        policy,
        dedup_window_ms=DEDUP_WINDOW_MS,
        dedup_scope="partition_key" if scope == "messageGroup" else "topic",
    )
    if wanted != policy:
        await sqs.broker.put_topic(known, wanted)


def _documents(values: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in values.items() if ATTRIBUTES[name].is_document}


async def get_queue_url(sqs: SqsCall, request: requests.GetQueueUrl) -> Reply:
    """The URL of a queue."""
    name = required(request.queue_name, "QueueName")
    queue = await sqs.named(name, "publish", "read")
    return {"QueueUrl": sqs.url_of(queue.name)}


async def list_queues(sqs: SqsCall, request: requests.ListQueues) -> Reply:
    """The URLs of the queues whose names begin with a prefix."""
    prefix = request.queue_name_prefix or ""
    names = [
        name
        for info in await sqs.broker.queues()
        if (name := to_sqs(info.name)).startswith(prefix)
        and sqs.allows(info.name, "publish", "read")
    ]
    return page_of(sqs, "QueueUrls", sorted(names), request.max_results, request.next_token)


async def list_dead_letter_source_queues(
    sqs: SqsCall, request: requests.ListDeadLetterSourceQueues
) -> Reply:
    """The URLs of the queues that dead-letter into a queue."""
    queue = await sqs.queue(request.queue_url, "read")
    names = [
        to_sqs(info.name)
        for info in await sqs.broker.queues()
        if info.policy.dead_letter_topic == queue.info.name and sqs.allows(info.name, "read")
    ]
    return page_of(sqs, "queueUrls", sorted(names), request.max_results, request.next_token)


def page_of(
    sqs: SqsCall, member: str, names: Sequence[str], limit: int | None, token: str | None
) -> Reply:
    """One page of queue URLs; the token is the last name of the page before."""
    if limit is not None and not 1 <= limit <= _MAX_RESULTS:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {limit} for parameter MaxResults is invalid. Reason: Must be between 1 and"
            f" {_MAX_RESULTS}, if provided.",
        )
    if token:
        last = _last_of(token)
        names = [name for name in names if name > last]
    most = limit or _MAX_RESULTS
    reply: Reply = {member: [sqs.url_of(name) for name in names[:most]]}
    if len(names) > most and limit is not None:
        reply["NextToken"] = base64.urlsafe_b64encode(names[most - 1].encode()).decode()
    return reply


def _last_of(token: str) -> str:
    try:
        return base64.b64decode(token, b"-_", validate=True).decode()
    except ValueError as error:
        raise SqsError("InvalidParameterValue", "Invalid or expired next token.") from error


async def delete_queue(sqs: SqsCall, request: requests.OfQueue) -> Reply:
    """Delete a queue with its messages."""
    name = to_penstock(name_of_url(required(request.queue_url, "QueueUrl")))
    sqs.check(name, "admin")
    try:
        await sqs.broker.delete_queue(name)
    finally:
        sqs.shared.queues.forget(sqs.tenant, name)
    await sqs.shared.records.delete(sqs.tenant, name)
    return {}


async def purge_queue(sqs: SqsCall, request: requests.OfQueue) -> Reply:
    """Remove every message of a queue, also those in flight."""
    queue = await sqs.queue(request.queue_url, "admin")
    name = queue.info.name
    for state in (State.AVAILABLE,) if is_dead_letter(name) else (State.DELAYED, State.AVAILABLE):
        while (await sqs.broker.purge(name, state, limit=_PURGE_LIMIT)).more:
            pass
    while True:
        page = await sqs.broker.peek(name, State.IN_FLIGHT, limit=MAX_PAGE)
        for item in page.items:
            await sqs.broker.cancel(item.message.id, queue=name)
        if page.cursor is None:
            return {}


async def get_queue_attributes(sqs: SqsCall, request: requests.GetQueueAttributes) -> Reply:
    """The attributes that the caller names."""
    queue = await sqs.queue(request.queue_url, "publish", "read")
    wanted = request.attribute_names
    if not wanted:
        return {}
    queue = await sqs.reread(queue.info.name)
    shown = shown_attributes(sqs, queue, await sqs.documents(queue))
    stats = await sqs.broker.stats(queue.info.name)
    shown["ApproximateNumberOfMessages"] = str(stats.available)
    shown["ApproximateNumberOfMessagesNotVisible"] = str(stats.in_flight)
    shown["ApproximateNumberOfMessagesDelayed"] = str(stats.delayed)
    if "All" not in wanted:
        for name in wanted:
            if name not in shown and name not in ATTRIBUTES:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:200]}.")
        shown = {name: text for name, text in shown.items() if name in wanted}
    return {"Attributes": shown} if shown else {}


async def set_queue_attributes(sqs: SqsCall, request: requests.SetQueueAttributes) -> Reply:
    """Change attributes of a queue."""
    queue = await sqs.queue(request.queue_url, "admin")
    values = required(request.attributes or None, "Attribute.Name")
    check_values(values, is_fifo=queue.is_fifo, is_new=False)
    await check_redrive(sqs, queue.name, values)
    name = queue.info.name
    if "DeduplicationScope" in values:
        await put_dedup(sqs, name, values)
    queue = await sqs.reread(name)
    changes = policy_changes(values, queue.info.policy)
    if changes:
        queue = sqs.remember(await sqs.broker.update_queue(name, **changes))
    before = await sqs.documents(queue)
    after = replace(
        before,
        attributes={**before.attributes, **_documents(values)},
        modified_at=sqs.call.service.now(),
    )
    await sqs.put_documents(queue, after)
    return {}
