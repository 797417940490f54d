"""Topic policies of codeQ's administrators: a document, applied to the queue of the command."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from penstock.broker import Broker
from penstock.errors import BadInput, Conflict, StoreCorrupt, UnknownQueue
from penstock.model.names import escape
from penstock.server.doors.codeq.refusals import CodeqError, FieldError
from penstock.server.doors.codeq.tasks import RETENTION_S, ensure_queue
from penstock.server.doors.json_bodies import rfc3339

__all__ = ["PolicyBody", "TopicBody", "delete_topic", "get_topic", "put_topic"]

_KIND: Final = "codeq-topic"
_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_TIERS: Final = range(11)
_MAX_TIERS: Final = 10
_ATTEMPTS: Final = range(1, 101)
_RETENTION: Final = range(2**31)
_CONSUMERS: Final = range(10_001)


class PolicyBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an administrator demands of a topic."""

    priorityTiers: list[int] | None = None  # noqa: N815  (codeQ's names)
    maxAttempts: int | None = None  # noqa: N815
    deadLetterTopicRef: str | None = None  # noqa: N815
    retentionSeconds: int | None = None  # noqa: N815
    maxConsumers: int | None = None  # noqa: N815


class Stored(Struct, frozen=True):
    """The document. Fields are added, never changed: older servers read the same store."""

    policy: PolicyBody
    version: int
    created_at: int
    updated_at: int


class TopicBody(Struct, frozen=True, rename="camel"):
    """A topic as the API shows it."""

    topic_id: str
    tenant_id: str
    topic_name: str
    policy: PolicyBody
    version: int
    created_at: str
    updated_at: str


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(Stored)


async def put_topic(broker: Broker, name: str, policy: PolicyBody) -> tuple[TopicBody, bool]:
    """Store a policy and apply it; returns the topic, and whether it is new."""
    checked = _checked(_check_name(name), policy)
    engine, document = broker.engine, _document(broker, name)
    now = engine.clock.now()
    value = await engine.get_document(_KIND, document)
    known = None if value is None else _decode(document, value)
    stored = Stored(
        checked,
        1 if known is None else known.version + 1,
        now if known is None else known.created_at,
        now,
    )
    wanted = _encode(stored)
    if await engine.add_document(_KIND, document, wanted, value) != wanted:
        raise Conflict("The topic was changed by another call.", field="topicName")
    topic = escape(name)
    await ensure_queue(broker, topic)
    retention = checked.retentionSeconds
    await broker.update_queue(
        topic,
        max_attempts=checked.maxAttempts,
        dead_letter_topic=checked.deadLetterTopicRef,
        done_retention_s=RETENTION_S if retention is None else retention,
    )
    return _shown(broker, name, stored), known is None


async def get_topic(broker: Broker, name: str) -> TopicBody:
    """The topic; 404 if it has no policy."""
    document = _document(broker, _check_name(name))
    value = await broker.engine.get_document(_KIND, document)
    if value is None:
        raise CodeqError(404, "topic not found")
    return _shown(broker, name, _decode(document, value))


async def delete_topic(broker: Broker, name: str) -> None:
    """Delete the policy, and the queue of the command with its tasks."""
    if not await broker.engine.delete_document(_KIND, _document(broker, _check_name(name))):
        raise CodeqError(404, "topic not found")
    try:
        await broker.delete_queue(escape(name))
    except UnknownQueue:
        return


def _checked(name: str, policy: PolicyBody) -> PolicyBody:
    tiers = policy.priorityTiers
    if (
        not tiers
        or len(tiers) > _MAX_TIERS
        or len(set(tiers)) < len(tiers)
        or any(tier not in _TIERS for tier in tiers)
    ):
        raise FieldError("priorityTiers", "priorityTiers must be 1 to 10 unique numbers 0..10")
    if policy.maxAttempts not in _ATTEMPTS:
        raise FieldError("maxAttempts", "maxAttempts must be 1..100")
    dead = policy.deadLetterTopicRef or ""
    if _DNS_LABEL.fullmatch(dead) is None or dead == name:
        raise FieldError(
            "deadLetterTopicRef", "deadLetterTopicRef must be the name of another topic"
        )
    if policy.retentionSeconds is not None and policy.retentionSeconds not in _RETENTION:
        raise FieldError("retentionSeconds", "retentionSeconds must be 0..2147483647")
    if policy.maxConsumers is not None and policy.maxConsumers not in _CONSUMERS:
        raise FieldError("maxConsumers", "maxConsumers must be 0..10000")
    return msgspec.structs.replace(policy, priorityTiers=sorted(tiers))


def _check_name(name: str) -> str:
    if _DNS_LABEL.fullmatch(name) is None:
        raise FieldError("topicName", "topicName must be a DNS label of at most 63 characters")
    return name


def _document(broker: Broker, name: str) -> str:
    return f"{broker.tenant}/{name}"


def _shown(broker: Broker, name: str, stored: Stored) -> TopicBody:
    return TopicBody(
        topic_id=f"{broker.tenant}.{name}",
        tenant_id=broker.tenant,
        topic_name=name,
        policy=stored.policy,
        version=stored.version,
        created_at=rfc3339(stored.created_at),
        updated_at=rfc3339(stored.updated_at),
    )


def _decode(name: str, value: bytes) -> Stored:
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, BadInput, ValueError) as error:
        raise StoreCorrupt(f"The topic {name} cannot be read.") from error
