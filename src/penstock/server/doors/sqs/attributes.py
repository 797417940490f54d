"""Queue attributes: what SQS calls them, and where a queue keeps them.

What Penstock has too is in the policy of the queue, so that both sides see a change of either. What
only this door needs for every message is in labels that begin with ``sqs/``. Documents such as the
access policy are in a record beside the queue (``records``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from penstock.model.queue import QueueInfo
from penstock.server.doors.sqs.failures import SqsError
from penstock.server.doors.sqs.names import FIFO_SUFFIX, to_sqs

__all__ = [
    "ATTRIBUTES",
    "COUNTS",
    "LABEL_PREFIX",
    "MAX_MESSAGE_BYTES",
    "NO_LIMIT",
    "Spec",
    "SqsQueue",
    "check_values",
    "invalid_value",
    "parse_json",
]

LABEL_PREFIX: Final = "sqs/"
MAX_MESSAGE_BYTES: Final = 1024 * 1024
#: The attempts of a queue without a redrive policy.
NO_LIMIT: Final = 65_535
#: The longest document, such as an access policy.
_MAX_DOCUMENT_BYTES: Final = 64 * 1024

#: Attributes that are counted, not set.
COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class Spec(Struct, frozen=True):
    """One attribute that can be set."""

    default: str
    check: Callable[[str], bool]
    is_label: bool = False
    """Kept in a label of the queue, unless it has the default."""
    is_document: bool = False
    """Kept in the record of the queue."""
    only_fifo: bool = False


def _whole(least: int, most: int) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        return text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most

    return check


def _one_of(*choices: str) -> Callable[[str], bool]:
    return lambda text: text in choices


def _is_document(text: str) -> bool:
    return len(text.encode(errors="replace")) <= _MAX_DOCUMENT_BYTES and (
        text == "" or isinstance(parse_json(text), dict)
    )


def _is_name(text: str) -> bool:
    return len(text) <= 2_048


_FLAG: Final = _one_of("true", "false")

ATTRIBUTES: Final[Mapping[str, Spec]] = {
    "VisibilityTimeout": Spec("30", _whole(0, 43_200)),
    "MessageRetentionPeriod": Spec("345600", _whole(60, 1_209_600)),
    "RedrivePolicy": Spec("", _is_document),
    "DelaySeconds": Spec("0", _whole(0, 900), is_label=True),
    "MaximumMessageSize": Spec(
        str(MAX_MESSAGE_BYTES), _whole(1_024, MAX_MESSAGE_BYTES), is_label=True
    ),
    "ReceiveMessageWaitTimeSeconds": Spec("0", _whole(0, 20), is_label=True),
    "FifoQueue": Spec("true", _one_of("true"), only_fifo=True),
    "ContentBasedDeduplication": Spec("false", _FLAG, is_label=True, only_fifo=True),
    "DeduplicationScope": Spec(
        "queue", _one_of("queue", "messageGroup"), is_label=True, only_fifo=True
    ),
    "FifoThroughputLimit": Spec(
        "perQueue", _one_of("perQueue", "perMessageGroupId"), is_label=True, only_fifo=True
    ),
    "RedriveAllowPolicy": Spec("", _is_document, is_document=True),
    "Policy": Spec("", _is_document, is_document=True),
    "KmsMasterKeyId": Spec("", _is_name, is_document=True),
    "KmsDataKeyReusePeriodSeconds": Spec("300", _whole(60, 86_400), is_document=True),
    "SqsManagedSseEnabled": Spec("true", _FLAG, is_document=True),
}


class SqsQueue(Struct, frozen=True):
    """A queue, with what the door needs for every message."""

    info: QueueInfo
    name: str
    """Its SQS name."""
    is_fifo: bool
    takes_topic: bool
    """Whether it takes the messages that are sent to it: it has no other filter."""
    delay_s: int
    message_bytes: int
    wait_s: int
    content_based: bool

    @classmethod
    def of(cls, info: QueueInfo) -> SqsQueue:
        """The queue of this policy."""
        labels = info.policy.labels
        name = to_sqs(info.name)
        return cls(
            info,
            name,
            name.endswith(FIFO_SUFFIX),
            info.policy.filter in ("TRUE", f"topic = '{info.name}'"),
            int(_label(labels, "DelaySeconds")),
            int(_label(labels, "MaximumMessageSize")),
            int(_label(labels, "ReceiveMessageWaitTimeSeconds")),
            _label(labels, "ContentBasedDeduplication") == "true",
        )


def _label(labels: Mapping[str, str], name: str) -> str:
    """The attribute in a label; its default if an operator has written something else there."""
    spec = ATTRIBUTES[name]
    text = labels.get(LABEL_PREFIX + name, spec.default)
    return text if spec.check(text) else spec.default


def check_values(values: Mapping[str, str], *, is_fifo: bool, is_new: bool) -> None:
    """Raise the error of SQS for attributes that cannot be set."""
    for name, text in values.items():
        spec = ATTRIBUTES.get(name)
        if spec is None or (name == "FifoQueue" and not is_new):
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:200]}.")
        if spec.only_fifo and not is_fifo:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        if not spec.check(text):
            raise invalid_value(name)


def invalid_value(name: str, reason: str = "") -> SqsError:
    """The error for the value of an attribute."""
    because = f" Reason: {reason}" if reason else ""
    return SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.{because}")


def parse_json(text: str) -> object:
    """The value of a JSON text; None if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
