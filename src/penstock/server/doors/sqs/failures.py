"""Errors as SQS reports them: a name, the code of the Query protocol, a status, who is at fault.

Clients of the JSON protocol find the class of an exception by the name, and its code by the header
``x-amzn-query-error``. Errors of Penstock are translated here too; their detail is the message.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock import errors
from penstock.errors import BadInput, PenstockError, Unauthenticated

__all__ = ["BadSignature", "Failure", "SqsError", "failure_of"]

_MODELLED: Final = "com.amazonaws.sqs#"
_COMMON: Final = "com.amazon.coral.service#"
_SQS: Final = "AWS.SimpleQueueService."

#: The errors of the service model: name, code in the Query protocol, HTTP status.
_CODES: Final[dict[str, tuple[str, int]]] = {
    "BatchEntryIdsNotDistinct": (_SQS + "BatchEntryIdsNotDistinct", 400),
    "BatchRequestTooLong": (_SQS + "BatchRequestTooLong", 400),
    "EmptyBatchRequest": (_SQS + "EmptyBatchRequest", 400),
    "InvalidAttributeName": ("InvalidAttributeName", 400),
    "InvalidAttributeValue": ("InvalidAttributeValue", 400),
    "InvalidBatchEntryId": (_SQS + "InvalidBatchEntryId", 400),
    "InvalidMessageContents": ("InvalidMessageContents", 400),
    "MessageNotInflight": (_SQS + "MessageNotInflight", 400),
    "OverLimit": ("OverLimit", 403),
    "PurgeQueueInProgress": (_SQS + "PurgeQueueInProgress", 403),
    "QueueDoesNotExist": (_SQS + "NonExistentQueue", 400),
    "QueueNameExists": ("QueueAlreadyExists", 400),
    "ReceiptHandleIsInvalid": ("ReceiptHandleIsInvalid", 400),
    "RequestThrottled": ("RequestThrottled", 429),
    "ResourceNotFoundException": ("ResourceNotFoundException", 404),
    "TooManyEntriesInBatchRequest": (_SQS + "TooManyEntriesInBatchRequest", 400),
    "UnsupportedOperation": (_SQS + "UnsupportedOperation", 400),
}


class Failure(Struct, frozen=True):
    """An error as a client sees it."""

    name: str
    """The type in the JSON protocol."""
    code: str
    """The code in the Query protocol, and in the entries of a batch."""
    status: int
    message: str

    @property
    def is_sender_fault(self) -> bool:
        """Whether the request has to change before it can succeed."""
        return self.status < 500

    @property
    def type(self) -> str:
        """The type with its namespace."""
        return (_MODELLED if self.name in _CODES else _COMMON) + self.name


class SqsError(BadInput):
    """A request that SQS refuses with this error."""

    title = "SQS refuses the request"
    advice = "See the SQS API reference for the error."

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.code, self.http_status = _CODES.get(name, (name, 400))


class BadSignature(Unauthenticated):
    """A request whose signature proves nothing."""

    def __init__(self, name: str, message: str, status: int = 403) -> None:
        super().__init__(message)
        self.name = name
        self.http_status = status


#: Errors of Penstock, a subclass before its base, with their names in SQS.
_NAMES: Final[tuple[tuple[type[PenstockError], str], ...]] = (
    (errors.UnknownQueue, "QueueDoesNotExist"),
    (errors.Forbidden, "AccessDeniedException"),
    (errors.AccessError, "AccessDeniedException"),
    (errors.TooManyQueues, "OverLimit"),
    (errors.QueueFull, "RequestThrottled"),
    (errors.TooManyRequests, "RequestThrottled"),
    (errors.SchemaViolation, "InvalidMessageContents"),
    (errors.TooLarge, "InvalidParameterValue"),
    (errors.UnknownRoute, "UnknownOperationException"),
    (errors.BadInput, "InvalidParameterValue"),
    (errors.Conflict, "InvalidParameterValue"),
    (errors.NotFound, "InvalidParameterValue"),
    (errors.Busy, "ServiceUnavailable"),
    (errors.StoreError, "ServiceUnavailable"),
)
#: The code in the Query protocol, where it is not the name.
_QUERY_CODES: Final = {
    "AccessDeniedException": "AccessDenied",
    "UnknownOperationException": "InvalidAction",
}
#: The HTTP status, where it is not that of Penstock's error.
_STATUS: Final = {"UnknownOperationException": 400, "ServiceUnavailable": 503}
_NO_QUEUE: Final = "The specified queue does not exist."


def failure_of(error: PenstockError) -> Failure:
    """What a client sees of an error."""
    if isinstance(error, SqsError):
        return Failure(error.name, error.code, error.http_status, error.detail)
    if isinstance(error, BadSignature):
        return Failure(error.name, error.name, error.http_status, error.detail)
    for kind, name in _NAMES:
        if isinstance(error, kind):
            code, status = _CODES.get(name, (_QUERY_CODES.get(name, name), error.status))
            message = _NO_QUEUE if name == "QueueDoesNotExist" else error.detail
            return Failure(name, code, _STATUS.get(name, status), message)
    return Failure("InternalFailure", "InternalFailure", 500, error.detail)
