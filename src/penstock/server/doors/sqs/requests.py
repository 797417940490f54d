"""The requests of SQS as typed values, the same from JSON and from the Query protocol.

Members are optional here even where SQS requires them, so that a missing one is refused with the
error of SQS. Unknown members are ignored, as SQS does: SDKs are newer than servers.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct, field

from penstock.server.doors.sqs.failures import SqsError

__all__ = [
    "AddPermission",
    "AttributeValue",
    "CancelMessageMoveTask",
    "ChangeMessageVisibility",
    "ChangeMessageVisibilityBatch",
    "CreateQueue",
    "DeleteMessage",
    "DeleteMessageBatch",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "ListMessageMoveTasks",
    "ListQueues",
    "OfQueue",
    "ReceiptEntry",
    "ReceiveMessage",
    "RemovePermission",
    "SendEntry",
    "SendMessage",
    "SendMessageBatch",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
    "VisibilityEntry",
    "required",
]

T = TypeVar("T")


def required(value: T | None, name: str) -> T:
    """The value of a required member; raises the error of SQS if it is missing or empty."""
    if value is None or value == "":
        raise SqsError("MissingParameter", f"The request must contain the parameter {name}.")
    return value


class AttributeValue(Struct, frozen=True, rename="pascal"):
    """One attribute of a message."""

    data_type: str = ""
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


class OfQueue(Struct, frozen=True, rename="pascal"):
    """A request that names a queue by its URL, and nothing else."""

    queue_url: str | None = None


class CreateQueue(Struct, frozen=True, rename="pascal"):
    """Create a queue, or find it if it has these attributes."""

    queue_name: str | None = None
    attributes: dict[str, str] = {}
    tags: dict[str, str] = field(name="tags", default_factory=dict)


class GetQueueUrl(Struct, frozen=True, rename="pascal"):
    """Find a queue by name."""

    queue_name: str | None = None


class ListQueues(Struct, frozen=True, rename="pascal"):
    """The queues whose names begin with a prefix."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class GetQueueAttributes(OfQueue, frozen=True, rename="pascal"):
    """Some attributes of a queue, or ``All``."""

    attribute_names: list[str] = []


class SetQueueAttributes(OfQueue, frozen=True, rename="pascal"):
    """Change attributes of a queue."""

    attributes: dict[str, str] = {}


class ListDeadLetterSourceQueues(OfQueue, frozen=True, rename="pascal"):
    """The queues whose redrive policy names this queue."""

    next_token: str | None = None
    max_results: int | None = None


class SendMessage(OfQueue, frozen=True, rename="pascal"):
    """Send one message."""

    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendEntry(SendMessage, frozen=True, rename="pascal"):
    """One message of a batch. It has no queue of its own."""

    id: str = ""


class SendMessageBatch(OfQueue, frozen=True, rename="pascal"):
    """Send up to ten messages."""

    entries: list[SendEntry] = []


class ReceiveMessage(OfQueue, frozen=True, rename="pascal"):
    """Receive up to ten messages."""

    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessage(OfQueue, frozen=True, rename="pascal"):
    """Delete a message that was received."""

    receipt_handle: str | None = None


class ReceiptEntry(Struct, frozen=True, rename="pascal"):
    """One message of a batch to delete."""

    id: str = ""
    receipt_handle: str | None = None


class DeleteMessageBatch(OfQueue, frozen=True, rename="pascal"):
    """Delete up to ten messages."""

    entries: list[ReceiptEntry] = []


class ChangeMessageVisibility(OfQueue, frozen=True, rename="pascal"):
    """Change how long a message that was received stays invisible."""

    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class VisibilityEntry(ReceiptEntry, frozen=True, rename="pascal"):
    """One message of a batch whose visibility changes."""

    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatch(OfQueue, frozen=True, rename="pascal"):
    """Change the visibility of up to ten messages."""

    entries: list[VisibilityEntry] = []


class TagQueue(OfQueue, frozen=True, rename="pascal"):
    """Set tags of a queue."""

    tags: dict[str, str] = {}


class UntagQueue(OfQueue, frozen=True, rename="pascal"):
    """Remove tags of a queue."""

    tag_keys: list[str] = []


class AddPermission(OfQueue, frozen=True, rename="pascal"):
    """Add a statement to a queue's policy."""

    label: str | None = None
    account_ids: list[str] = field(name="AWSAccountIds", default_factory=list)
    actions: list[str] = []


class RemovePermission(OfQueue, frozen=True, rename="pascal"):
    """Remove a statement from a queue's policy."""

    label: str | None = None


class StartMessageMoveTask(Struct, frozen=True, rename="pascal"):
    """Move the messages of a dead-letter queue."""

    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class CancelMessageMoveTask(Struct, frozen=True, rename="pascal"):
    """Stop a move task."""

    task_handle: str | None = None


class ListMessageMoveTasks(Struct, frozen=True, rename="pascal"):
    """The newest move tasks of a dead-letter queue."""

    source_arn: str | None = None
    max_results: int | None = None
