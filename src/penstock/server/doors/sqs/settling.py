"""DeleteMessage and ChangeMessageVisibility, alone and in batches.

A receipt handle is the receipt of the claim.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from penstock.model.delivery import Ack, Extend, Nack, Outcome, Receipt
from penstock.server.doors.sqs import requests
from penstock.server.doors.sqs.attributes import SqsQueue
from penstock.server.doors.sqs.failures import SqsError
from penstock.server.doors.sqs.request_context import SqsCall
from penstock.server.doors.sqs.requests import required
from penstock.server.doors.sqs.sending import batch_reply, check_batch, failed_entry

__all__ = [
    "change_message_visibility",
    "change_message_visibility_batch",
    "checked_visibility",
    "delete_message",
    "delete_message_batch",
]

Reply = dict[str, Any]

_MAX_VISIBILITY_S: Final = 43_200
_RECEIPT: Final = re.compile(r"[0-9a-f]{1,32}(?:-[0-9a-f]{1,32}){4}")


async def delete_message(sqs: SqsCall, request: requests.DeleteMessage) -> Reply:
    """Delete a message that was received."""
    queue = await sqs.queue(request.queue_url, "consume")
    entry = requests.ReceiptEntry("", request.receipt_handle)
    (error,) = await _delete(sqs, queue, (entry,))
    if error is not None:
        raise error
    return {}


async def delete_message_batch(sqs: SqsCall, request: requests.DeleteMessageBatch) -> Reply:
    """Delete up to ten messages, each on its own."""
    queue = await sqs.queue(request.queue_url, "consume")
    entries = check_batch(request.entries, "DeleteMessageBatchRequestEntry")
    return _batch_reply(entries, await _delete(sqs, queue, entries))


async def _delete(
    sqs: SqsCall, queue: SqsQueue, entries: Sequence[requests.ReceiptEntry]
) -> list[SqsError | None]:
    wanted = [_checked_delete(entry) for entry in entries]
    errors = await _settle(sqs, queue, wanted)
    if not queue.is_fifo:
        # A standard queue answers yes to an old receipt handle: the message may be delivered again.
        return [None if isinstance(error, _Stale) else error for error in errors]
    return [
        SqsError(
            "InvalidParameterValue",
            f"Value {entry.receipt_handle} for parameter ReceiptHandle is invalid. Reason: The"
            " receipt handle has expired.",
        )
        if isinstance(error, _Stale)
        else error
        for entry, error in zip(entries, errors, strict=True)
    ]


async def change_message_visibility(
    sqs: SqsCall, request: requests.ChangeMessageVisibility
) -> Reply:
    """Change how long a message that was received stays invisible."""
    queue = await sqs.queue(request.queue_url, "consume")
    timeout = required(request.visibility_timeout, "VisibilityTimeout")
    entry = requests.VisibilityEntry("", request.receipt_handle, timeout)
    (error,) = await _settle(sqs, queue, [_checked_visibility(entry)])
    if error is not None:
        raise error
    return {}


async def change_message_visibility_batch(
    sqs: SqsCall, request: requests.ChangeMessageVisibilityBatch
) -> Reply:
    """Change the visibility of up to ten messages, each on its own."""
    queue = await sqs.queue(request.queue_url, "consume")
    entries = check_batch(request.entries, "ChangeMessageVisibilityBatchRequestEntry")
    wanted = [_checked_visibility(entry) for entry in entries]
    return _batch_reply(entries, await _settle(sqs, queue, wanted))


_Settlement = Ack | Nack | Extend


class _Stale(SqsError):
    """The receipt handle is not that of the current claim."""

    def __init__(self) -> None:
        super().__init__("MessageNotInflight", "The message referred to is not in flight.")


def _checked_delete(entry: requests.ReceiptEntry) -> _Settlement | SqsError:
    try:
        return Ack(_receipt(entry))
    except SqsError as error:
        return error


def _checked_visibility(entry: requests.VisibilityEntry) -> _Settlement | SqsError:
    try:
        receipt = _receipt(entry)
        timeout = checked_visibility(required(entry.visibility_timeout, "VisibilityTimeout"))
    except SqsError as error:
        return error
    return Extend(receipt, timeout * 1000) if timeout else Nack(receipt, delay_ms=0)


def _receipt(entry: requests.ReceiptEntry) -> Receipt:
    handle = required(entry.receipt_handle, "ReceiptHandle")
    if _RECEIPT.fullmatch(handle) is None:
        raise SqsError(
            "ReceiptHandleIsInvalid",
            f'The input receipt handle "{handle[:200]}" is not a valid receipt handle.',
        )
    return Receipt(handle)


async def _settle(
    sqs: SqsCall, queue: SqsQueue, wanted: Sequence[_Settlement | SqsError]
) -> list[SqsError | None]:
    """The error of each settlement, or None if it took effect."""
    settlements = [one for one in wanted if not isinstance(one, SqsError)]
    outcomes: Sequence[Outcome] = ()
    if settlements:
        reply = await sqs.broker.settle(queue.info.name, settlements)
        outcomes = reply.outcomes
        sqs.call.service.metrics.settled(settlements, outcomes)
    found = iter(outcomes)
    return [
        one if isinstance(one, SqsError) else (None if next(found).ok else _Stale())
        for one in wanted
    ]


def _batch_reply(
    entries: Sequence[requests.ReceiptEntry], errors: Sequence[SqsError | None]
) -> Reply:
    successful: list[Reply] = []
    failed: list[Reply] = []
    for entry, error in zip(entries, errors, strict=True):
        if error is None:
            successful.append({"Id": entry.id})
        else:
            failed.append(failed_entry(entry.id, error))
    return batch_reply(successful, failed)


def checked_visibility(given: int) -> int:
    """A visibility timeout in seconds; raises the error of SQS if it is out of range."""
    if not 0 <= given <= _MAX_VISIBILITY_S:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {given} for parameter VisibilityTimeout is invalid. Reason: Must be between 0"
            f" and {_MAX_VISIBILITY_S}.",
        )
    return given
