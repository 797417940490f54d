"""Tags and permissions of queues.

A tag that is a valid label becomes a label of the queue, up to ten of them, so that listings of
queues can be filtered by it. The others are in the queue's record. Permissions are statements of
the access policy; they are kept and shown, but it is the grants of API keys that decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock.errors import BadInput
from penstock.model.queue import check_labels
from penstock.server.doors.sqs import requests
from penstock.server.doors.sqs.attributes import ATTRIBUTES, LABEL_PREFIX, parse_json
from penstock.server.doors.sqs.failures import SqsError
from penstock.server.doors.sqs.names import arn_of
from penstock.server.doors.sqs.request_context import SqsCall
from penstock.server.doors.sqs.requests import required

__all__ = [
    "add_permission",
    "check_tags",
    "list_queue_tags",
    "remove_permission",
    "split_tags",
    "tag_queue",
    "untag_queue",
]

Reply = dict[str, Any]

_MAX_TAGS: Final = 50
_MAX_KEY: Final = 128
_MAX_VALUE: Final = 256
#: Of the 16 labels of a queue, this many may be tags; the others are for attributes.
_TAG_LABELS: Final = 10
_MAX_STATEMENTS: Final = 20
_MAX_ACTIONS: Final = 7
_MAX_LABEL: Final = 80
_ACTIONS: Final = frozenset(
    {
        *("*", "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl"),
        *("ListDeadLetterSourceQueues", "PurgeQueue", "ReceiveMessage", "SendMessage"),
    }
)


def check_tags(tags: Mapping[str, str]) -> None:
    """Raise the error of SQS for tags that it refuses."""
    if len(tags) > _MAX_TAGS:
        raise SqsError("InvalidParameterValue", f"Too many tags added: at most {_MAX_TAGS}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= _MAX_KEY:
            raise SqsError(
                "InvalidParameterValue",
                f"Tag keys must be between 1 and {_MAX_KEY} characters in length.",
            )
        if len(value) > _MAX_VALUE:
            raise SqsError(
                "InvalidParameterValue",
                f"Tag values must be between 0 and {_MAX_VALUE} characters in length.",
            )


def split_tags(
    tags: Mapping[str, str], values: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The labels for tags and attributes, and the tags that are not labels."""
    labels: dict[str, str] = {}
    others: dict[str, str] = {}
    for key in sorted(tags):
        fits = len(labels) < _TAG_LABELS and _is_label(key, tags[key])
        (labels if fits else others)[key] = tags[key]
    for name, text in values.items():
        if ATTRIBUTES[name].is_label and text != ATTRIBUTES[name].default:
            labels[LABEL_PREFIX + name] = text
    return labels, others


def _is_label(key: str, value: str) -> bool:
    if key.startswith(LABEL_PREFIX):
        return False
    try:
        check_labels({key: value})
    except BadInput:
        return False
    return True


async def list_queue_tags(sqs: SqsCall, request: requests.OfQueue) -> Reply:
    """The tags of a queue: its labels, and the tags that are not labels."""
    queue = await sqs.queue(request.queue_url, "read")
    tags = await _tags_of(sqs, queue.info.name)
    return {"Tags": tags} if tags else {}


async def _tags_of(sqs: SqsCall, name: str) -> dict[str, str]:
    queue = await sqs.reread(name)
    labels = queue.info.policy.labels
    tags = {key: text for key, text in labels.items() if not key.startswith(LABEL_PREFIX)}
    return {**(await sqs.documents(queue)).tags, **tags}


async def tag_queue(sqs: SqsCall, request: requests.TagQueue) -> Reply:
    """Set tags of a queue; others stay."""
    queue = await sqs.queue(request.queue_url, "admin")
    given = required(request.tags or None, "Tags")
    check_tags(given)
    tags = {**await _tags_of(sqs, queue.info.name), **given}
    check_tags(tags)
    await _put_tags(sqs, queue.info.name, tags)
    return {}


async def untag_queue(sqs: SqsCall, request: requests.UntagQueue) -> Reply:
    """Remove tags of a queue."""
    queue = await sqs.queue(request.queue_url, "admin")
    gone = set(required(request.tag_keys or None, "TagKeys"))
    tags = await _tags_of(sqs, queue.info.name)
    await _put_tags(sqs, queue.info.name, {k: v for k, v in tags.items() if k not in gone})
    return {}


async def _put_tags(sqs: SqsCall, name: str, tags: Mapping[str, str]) -> None:
    queue = await sqs.reread(name)
    own = {
        key: text for key, text in queue.info.policy.labels.items() if key.startswith(LABEL_PREFIX)
    }
    labels, others = split_tags(tags, {})
    queue = sqs.remember(await sqs.broker.update_queue(name, labels={**labels, **own}))
    documents = await sqs.documents(queue)
    if documents.tags != others:
        await sqs.put_documents(queue, replace(documents, tags=others))


async def add_permission(sqs: SqsCall, request: requests.AddPermission) -> Reply:
    """Add a statement to the access policy of a queue."""
    queue = await sqs.queue(request.queue_url, "admin")
    label = required(request.label, "Label")
    actions = required(request.actions or None, "ActionName")
    accounts = required(request.account_ids or None, "AWSAccountId")
    _check_permission(label, actions)
    documents = await sqs.documents(queue)
    policy = _policy_of(documents.attributes, arn_of(queue.name, sqs.region))
    statements = policy["Statement"]
    if any(isinstance(one, dict) and one.get("Sid") == label for one in statements):
        raise _bad("Label", label, "Already exists.")
    if len(statements) >= _MAX_STATEMENTS:
        raise SqsError("OverLimit", f"A policy has at most {_MAX_STATEMENTS} statements.")
    principals = [f"arn:aws:iam::{account}:root" for account in accounts]
    names = [f"SQS:{action}" for action in actions]
    statements.append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
            "Action": names[0] if len(names) == 1 else names,
            "Resource": arn_of(queue.name, sqs.region),
        }
    )
    await _put_policy(sqs, request.queue_url, policy)
    return {}


def _check_permission(label: str, actions: list[str]) -> None:
    if len(label) > _MAX_LABEL:
        raise _bad("Label", label[:_MAX_LABEL], f"It has more than {_MAX_LABEL} characters.")
    if len(actions) > _MAX_ACTIONS:
        raise SqsError(
            "OverLimit", f"{len(actions)} Actions were found, maximum allowed is {_MAX_ACTIONS}."
        )
    for action in actions:
        if action not in _ACTIONS:
            raise _bad(
                "ActionName",
                f"SQS:{action[:100]}",
                "Only the queue owner is allowed to invoke this action.",
            )


async def remove_permission(sqs: SqsCall, request: requests.RemovePermission) -> Reply:
    """Remove a statement from the access policy of a queue."""
    queue = await sqs.queue(request.queue_url, "admin")
    label = required(request.label, "Label")
    documents = await sqs.documents(queue)
    policy = _policy_of(documents.attributes, arn_of(queue.name, sqs.region))
    kept = [
        one
        for one in policy["Statement"]
        if not (isinstance(one, dict) and one.get("Sid") == label)
    ]
    if len(kept) == len(policy["Statement"]):
        raise _bad("Label", label[:_MAX_LABEL], "can't find label on existing policy.")
    await _put_policy(sqs, request.queue_url, {**policy, "Statement": kept})
    return {}


def _bad(parameter: str, value: str, reason: str) -> SqsError:
    return SqsError(
        "InvalidParameterValue",
        f"Value {value} for parameter {parameter} is invalid. Reason: {reason}",
    )


def _policy_of(attributes: Mapping[str, str], arn: str) -> dict[str, Any]:
    policy = parse_json(attributes.get("Policy", ""))
    if not isinstance(policy, dict) or not isinstance(policy.get("Statement"), list):
        return {"Version": "2012-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    return policy


async def _put_policy(sqs: SqsCall, url: str | None, policy: dict[str, Any]) -> None:
    queue = await sqs.queue(url, "admin")
    documents = await sqs.documents(queue)
    text = msgspec.json.encode(policy).decode() if policy["Statement"] else ""
    await sqs.put_documents(
        queue, replace(documents, attributes={**documents.attributes, "Policy": text})
    )
