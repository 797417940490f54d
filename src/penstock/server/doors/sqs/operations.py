"""The 23 operations of SQS: what each is called, its request, and what carries it out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from penstock.errors import BadInput
from penstock.server.doors.json_values import check_values
from penstock.server.doors.sqs import requests
from penstock.server.doors.sqs.failures import SqsError
from penstock.server.doors.sqs.move_operations import (
    cancel_message_move_task,
    list_message_move_tasks,
    start_message_move_task,
)
from penstock.server.doors.sqs.queue_operations import (
    create_queue,
    delete_queue,
    get_queue_attributes,
    get_queue_url,
    list_dead_letter_source_queues,
    list_queues,
    purge_queue,
    set_queue_attributes,
)
from penstock.server.doors.sqs.receiving import receive_message
from penstock.server.doors.sqs.request_context import SqsCall
from penstock.server.doors.sqs.sending import send_message, send_message_batch
from penstock.server.doors.sqs.settling import (
    change_message_visibility,
    change_message_visibility_batch,
    delete_message,
    delete_message_batch,
)
from penstock.server.doors.sqs.tags import (
    add_permission,
    list_queue_tags,
    remove_permission,
    tag_queue,
    untag_queue,
)

__all__ = ["OPERATIONS", "Operation"]

_Handler: TypeAlias = Callable[[SqsCall, Any], Awaitable[dict[str, Any]]]


class Operation:
    """One operation."""

    def __init__(self, request: type, handler: _Handler) -> None:
        self.handler = handler
        self._request = request
        # Some SDKs send numbers as text.
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(request, strict=False)

    async def from_json(self, body: bytes) -> object:
        """The request in a JSON body; raises the error of SQS if it cannot be read."""
        try:
            await check_values(body)
            return self._decoder.decode(body or b"{}")
        except (BadInput, msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SqsError("SerializationException", f"The request cannot be read: {error}.") from (
                error
            )

    def from_members(self, members: Mapping[str, Any]) -> object:
        """The request of these members; raises the error of SQS if it cannot be read."""
        try:
            return msgspec.convert(members, self._request, strict=False)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SqsError("MalformedInput", f"The request cannot be read: {error}.") from error


OPERATIONS: Final[Mapping[str, Operation]] = {
    "AddPermission": Operation(requests.AddPermission, add_permission),
    "CancelMessageMoveTask": Operation(requests.CancelMessageMoveTask, cancel_message_move_task),
    "ChangeMessageVisibility": Operation(
        requests.ChangeMessageVisibility, change_message_visibility
    ),
    "ChangeMessageVisibilityBatch": Operation(
        requests.ChangeMessageVisibilityBatch, change_message_visibility_batch
    ),
    "CreateQueue": Operation(requests.CreateQueue, create_queue),
    "DeleteMessage": Operation(requests.DeleteMessage, delete_message),
    "DeleteMessageBatch": Operation(requests.DeleteMessageBatch, delete_message_batch),
    "DeleteQueue": Operation(requests.OfQueue, delete_queue),
    "GetQueueAttributes": Operation(requests.GetQueueAttributes, get_queue_attributes),
    "GetQueueUrl": Operation(requests.GetQueueUrl, get_queue_url),
    "ListDeadLetterSourceQueues": Operation(
        requests.ListDeadLetterSourceQueues, list_dead_letter_source_queues
    ),
    "ListMessageMoveTasks": Operation(requests.ListMessageMoveTasks, list_message_move_tasks),
    "ListQueueTags": Operation(requests.OfQueue, list_queue_tags),
    "ListQueues": Operation(requests.ListQueues, list_queues),
    "PurgeQueue": Operation(requests.OfQueue, purge_queue),
    "ReceiveMessage": Operation(requests.ReceiveMessage, receive_message),
    "RemovePermission": Operation(requests.RemovePermission, remove_permission),
    "SendMessage": Operation(requests.SendMessage, send_message),
    "SendMessageBatch": Operation(requests.SendMessageBatch, send_message_batch),
    "SetQueueAttributes": Operation(requests.SetQueueAttributes, set_queue_attributes),
    "StartMessageMoveTask": Operation(requests.StartMessageMoveTask, start_message_move_task),
    "TagQueue": Operation(requests.TagQueue, tag_queue),
    "UntagQueue": Operation(requests.UntagQueue, untag_queue),
}
