"""Attributes as a queue policy, and a queue policy as attributes; redrive policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.errors import UnknownQueue
from penstock.model.limits import MAX_LEASE_MS, MIN_LEASE_MS
from penstock.model.policy_fields import PolicyChanges
from penstock.model.queue import Ordering, QueuePolicy, RetryPosition
from penstock.server.doors.sqs.attributes import (
    ATTRIBUTES,
    LABEL_PREFIX,
    NO_LIMIT,
    SqsQueue,
    parse_json,
)
from penstock.server.doors.sqs.failures import SqsError
from penstock.server.doors.sqs.names import FIFO_SUFFIX, name_of_arn, to_penstock, to_sqs
from penstock.server.doors.sqs.request_context import Documents, SqsCall

__all__ = [
    "DEDUP_WINDOW_MS",
    "FIFO_BATCH",
    "check_redrive",
    "new_policy",
    "policy_changes",
    "shown_attributes",
    "without_defaults",
]

#: How long SQS remembers deduplication ids.
DEDUP_WINDOW_MS: Final = 5 * 60 * 1000
#: Messages of one group that a receive may return.
FIFO_BATCH: Final = 10
_MAX_RECEIVES: Final = 1_000
_MAX_SOURCES: Final = 10


def new_policy(
    name: str, values: Mapping[str, str], labels: Mapping[str, str], *, is_fifo: bool
) -> PolicyChanges:
    """The policy of a new queue; fields that are not here have the server's defaults."""
    everything = {
        key: spec.default for key, spec in ATTRIBUTES.items() if not spec.is_label
    } | dict(values)
    fields: PolicyChanges = {
        "filter": f"topic = '{name}'",
        "min_lease_ms": MIN_LEASE_MS,
        "max_lease_ms": MAX_LEASE_MS,
        "retry_position": RetryPosition.KEEP,
        "ordering": Ordering.PARTITION if is_fifo else Ordering.NONE,
        "partition_concurrency": 1,
        "partition_batch": FIFO_BATCH if is_fifo else 1,
        "labels": labels,
    }
    return {**fields, **_fields(everything)}


def policy_changes(values: Mapping[str, str], policy: QueuePolicy) -> PolicyChanges:
    """The fields of the policy that attributes change."""
    changes = _fields(values)
    labels = dict(policy.labels)
    for name, text in values.items():
        if ATTRIBUTES[name].is_label:
            labels.pop(LABEL_PREFIX + name, None)
            if text != ATTRIBUTES[name].default:
                labels[LABEL_PREFIX + name] = text
    if labels != policy.labels:
        changes["labels"] = labels
    return changes


def _fields(values: Mapping[str, str]) -> PolicyChanges:
    fields: PolicyChanges = {}
    if "VisibilityTimeout" in values:
        fields["lease_ms"] = max(MIN_LEASE_MS, int(values["VisibilityTimeout"]) * 1000)
    if "MessageRetentionPeriod" in values:
        fields["message_ttl_ms"] = int(values["MessageRetentionPeriod"]) * 1000
    if "RedrivePolicy" in values:
        arn, receives = _redrive(values["RedrivePolicy"]) or (None, NO_LIMIT)
        fields["max_attempts"] = receives
        fields["dead_letter_topic"] = "" if arn is None else to_penstock(_target(arn))
        # The message moves: only the dead-letter queue has it then.
        fields["dead_letters"] = arn is None
    return fields


def _target(arn: object) -> str:
    return name_of_arn(arn, "RedrivePolicy")


def _redrive(text: str) -> tuple[object, int] | None:
    """The target and the number of receives of a redrive policy; None if it is empty."""
    policy = parse_json(text) if text else {}
    assert isinstance(policy, dict)
    if not policy:
        return None
    try:
        arn, count = policy["deadLetterTargetArn"], int(str(policy.get("maxReceiveCount", 10)))
    except (KeyError, ValueError) as error:
        raise _bad_redrive(
            text, "Redrive policy must have deadLetterTargetArn and maxReceiveCount."
        ) from error
    if not 1 <= count <= _MAX_RECEIVES:
        raise _bad_redrive(
            text, f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000."
        )
    return arn, count


def _bad_redrive(text: str, reason: str) -> SqsError:
    return SqsError(
        "InvalidParameterValue",
        f"Value {text[:300]} for parameter RedrivePolicy is invalid. Reason: {reason}",
    )


async def check_redrive(sqs: SqsCall, source: str, values: Mapping[str, str]) -> None:
    """Raise the error of SQS for a redrive policy, or redrive allow policy, that is not valid."""
    allow = values.get("RedriveAllowPolicy")
    if allow:
        _check_allow(allow)
    text = values.get("RedrivePolicy", "")
    redrive = _redrive(text)
    if redrive is None:
        return
    target = _target(redrive[0])
    if target == source:
        raise _bad_redrive(text, "A queue cannot be its own dead letter queue.")
    if target.endswith(FIFO_SUFFIX) != source.endswith(FIFO_SUFFIX):
        raise _bad_redrive(text, "Dead-letter queue must be same type of queue as the source.")
    try:
        queue = await sqs.named(target, "publish")
    except UnknownQueue as error:
        raise _bad_redrive(text, "Dead letter target does not exist.") from error
    if not queue.takes_topic:
        raise _bad_redrive(text, "Dead letter target takes only the messages of a filter.")
    documents = await sqs.documents(queue)
    if not _is_allowed(documents.attributes.get("RedriveAllowPolicy", ""), source):
        raise _bad_redrive(
            text, "Queue does not have permission to use the dead letter target as its target."
        )


def _check_allow(text: str) -> None:
    policy = parse_json(text)
    assert isinstance(policy, dict)
    permission = policy.get("redrivePermission")
    sources = policy.get("sourceQueueArns")
    by_queue = permission == "byQueue"
    good = (
        permission in ("allowAll", "denyAll", "byQueue")
        and by_queue == (sources is not None)
        and (not by_queue or (isinstance(sources, list) and 1 <= len(sources) <= _MAX_SOURCES))
    )
    if not good:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {text[:300]} for parameter RedriveAllowPolicy is invalid. Reason:"
            " redrivePermission is allowAll, denyAll or byQueue; only byQueue has from 1 to"
            f" {_MAX_SOURCES} sourceQueueArns.",
        )
    for arn in sources or ():
        name_of_arn(arn, "RedriveAllowPolicy")


def _is_allowed(text: str, source: str) -> bool:
    policy = parse_json(text) if text else None
    if not isinstance(policy, dict) or not policy:
        return True
    if policy.get("redrivePermission") == "byQueue":
        # The region is the caller's choice, and means nothing here.
        allowed = {str(arn).rpartition(":")[2] for arn in policy.get("sourceQueueArns", ())}
        return source in allowed
    return policy.get("redrivePermission") == "allowAll"


def shown_attributes(sqs: SqsCall, queue: SqsQueue, documents: Documents) -> dict[str, str]:
    """Every attribute of a queue except its counts."""
    info, policy = queue.info, queue.info.policy
    modified_at = info.created_at if documents.modified_at is None else documents.modified_at
    shown = {
        "QueueArn": sqs.arn_of(queue.name),
        "CreatedTimestamp": str(info.created_at // 1000),
        "LastModifiedTimestamp": str(modified_at // 1000),
        "VisibilityTimeout": str(policy.lease_ms // 1000),
        "MaximumMessageSize": str(queue.message_bytes),
        "DelaySeconds": str(queue.delay_s),
        "ReceiveMessageWaitTimeSeconds": str(queue.wait_s),
        "SqsManagedSseEnabled": "true",
    }
    if policy.message_ttl_ms is not None:
        shown["MessageRetentionPeriod"] = str(policy.message_ttl_ms // 1000)
    if queue.is_fifo:
        shown["FifoQueue"] = "true"
        for name in ("ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"):
            spec = ATTRIBUTES[name]
            shown[name] = policy.labels.get(LABEL_PREFIX + name, spec.default)
    if policy.dead_letter_topic:
        redrive = {
            "deadLetterTargetArn": sqs.arn_of(to_sqs(policy.dead_letter_topic)),
            "maxReceiveCount": policy.max_attempts,
        }
        shown["RedrivePolicy"] = msgspec.json.encode(redrive).decode()
    shown |= {name: text for name, text in documents.attributes.items() if text}
    return shown


def without_defaults(values: Mapping[str, str]) -> dict[str, object]:
    """Attributes in a form that can be compared, without those that have their default."""
    found: dict[str, object] = {}
    for name, text in values.items():
        spec = ATTRIBUTES.get(name)
        if spec is None or text == spec.default:
            continue
        if name == "RedrivePolicy":
            redrive = _redrive(text)
            found[name] = None if redrive is None else (_target(redrive[0]), redrive[1])
        else:
            found[name] = parse_json(text) if text.startswith("{") else text
    return found
