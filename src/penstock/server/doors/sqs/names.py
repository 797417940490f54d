"""Names of queues: in SQS and in Penstock, in URLs and ARNs.

A queue's name in Penstock is its SQS name, escaped if it is not a valid name there (``_x`` becomes
``esc.__x``). The dead-letter queue ``orders.dlq`` has that name in both: no queue of SQS can.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.errors import BadName
from penstock.model.limits import check_queue_name, is_dead_letter
from penstock.model.names import escape, unescape
from penstock.server.doors.sqs.failures import SqsError

__all__ = [
    "ACCOUNT",
    "DEFAULT_REGION",
    "FIFO_SUFFIX",
    "arn_of",
    "check_new_name",
    "name_of_arn",
    "name_of_url",
    "queue_path",
    "to_penstock",
    "to_sqs",
]

#: Every queue belongs to this account; the credential decides about the tenant.
ACCOUNT: Final = "000000000000"
DEFAULT_REGION: Final = "us-east-1"
FIFO_SUFFIX: Final = ".fifo"

_NEW_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_ARN: Final = re.compile(r"arn:aws[a-z-]*:sqs:[a-z0-9-]*:[0-9]{12}:(?P<name>[^:/]{1,200})")


def check_new_name(name: str) -> str:
    """The name of a queue to create; raises the error of SQS if it is not allowed."""
    if _NEW_NAME.fullmatch(name) is None:
        raise SqsError(
            "InvalidParameterValue",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
    return name


def to_penstock(name: str) -> str:
    """The Penstock name of a queue."""
    try:
        if is_dead_letter(name):
            return check_queue_name(name)
        return escape(name, "QueueName")
    except BadName as error:
        raise SqsError("InvalidParameterValue", error.detail) from error


def to_sqs(name: str) -> str:
    """The SQS name of a queue."""
    try:
        return unescape(name)
    except BadName:
        return name


def name_of_url(url: str) -> str:
    """The SQS name of the queue in a queue URL; a name alone is accepted too."""
    try:
        name = unquote(urlsplit(url).path.rpartition("/")[2], errors="strict")
    except ValueError:
        name = ""
    if not name:
        raise SqsError("InvalidAddress", f"The address {url[:200]} is not valid for this endpoint.")
    return name


def queue_path(name: str) -> str:
    """The path of a queue's URL."""
    return f"/{ACCOUNT}/{name}"


def arn_of(name: str, region: str) -> str:
    """The ARN of a queue."""
    return f"arn:aws:sqs:{region}:{ACCOUNT}:{name}"


def name_of_arn(arn: object, parameter: str) -> str:
    """The SQS name of the queue in an ARN."""
    found = _ARN.fullmatch(arn) if isinstance(arn, str) else None
    if found is None:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {str(arn)[:200]} for parameter {parameter} is invalid. Reason: It is not the"
            " ARN of a queue.",
        )
    return found["name"]
