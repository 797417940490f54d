"""The broker's part of payload schemas: a cache of what each topic demands (E1).

A topic's policy may name a schema. Then every payload published under it has to match, or
the whole call is refused. ``compile_schema`` makes the checker of a policy, in
``json_schemas`` or ``avro_schemas``; each imports its library, an extra, when the first
schema of its kind is used. A checker never blocks, and its cost is bounded by the size of
the payload.

Most topics have no schema, and reading the policy on each publish would be too expensive, so
``Schemas`` caches it. Another process may change it. The engine compares the policy that a
payload was checked against with the one in force at the commit, and refuses the publish if
they differ (``TopicChanged``). A payload that breaks a cached schema never gets there, so the
broker reads the topic again before it refuses the payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Protocol

from msgspec import Struct

from penstock.errors import BadSchema, SchemaViolation
from penstock.model.message import NewMessage
from penstock.model.queue import TopicPolicy
from penstock.storage.contract import Engine

__all__ = ["Checker", "Demand", "Schemas", "check_payloads", "compile_schema"]

#: Topics that are cached; bounds the memory of a caller that keeps publishing to new names.
_MAX_REMEMBERED: Final = 4_096
#: Compiled schemas that are cached. The largest allowed one takes about a megabyte.
_MAX_COMPILED: Final = 128


class Checker(Protocol):
    """A compiled schema."""

    def violation(self, payload: bytes) -> str | None:
        """Where the payload breaks the schema and how, in a short text; None if it matches."""


class Demand(Struct, frozen=True):
    """What a topic demanded when its policy was read."""

    policy: TopicPolicy | None
    """None: the topic is not registered."""
    checker: Checker | None


class Schemas:
    """A cache of the demands of one tenant's topics."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        self._demands: dict[str, Demand] = {}
        self._changes = 0

    def remembered(self, topic: str) -> Demand | None:
        """What the topic demands, or None if it has to be read."""
        return self._demands.get(topic)

    async def read(self, topic: str) -> Demand:
        """Read what the topic demands now."""
        changes = self._changes
        policy = await self._engine.get_topic(self._tenant, topic)
        demand = Demand(policy, _stored(topic, policy))
        # A policy that was changed meanwhile may have been read before the change. An unusable
        # schema is read again each time: another process may have replaced it.
        if changes == self._changes and not isinstance(demand.checker, _Unusable):
            if len(self._demands) >= _MAX_REMEMBERED and topic not in self._demands:
                self._demands.clear()
            self._demands[topic] = demand
        return demand

    def forget(self, topic: str) -> None:
        """Invalidate a topic whose policy was changed, or may have been."""
        self._changes += 1
        self._demands.pop(topic, None)


def compile_schema(policy: TopicPolicy) -> Checker | None:
    """The checker of the policy's schema, or None without one; ``BadSchema`` if invalid."""
    if policy.schema is None or policy.schema_type is None:
        return None
    return _compiled(policy.schema_type, policy.schema)


def check_payloads(
    checker: Checker, topic: str, messages: Sequence[NewMessage], first: int = 0
) -> None:
    """Refuse the batch if one of its payloads breaks the topic's schema.

    ``first`` is the index of the first message, if these are a slice of a larger batch.
    """
    for index, message in enumerate(messages, first):
        violation = checker.violation(message.payload)
        if violation is not None:
            which = (
                "The payload"
                if len(messages) == 1 and not first
                else f"The payload of message {index}"
            )
            raise SchemaViolation(
                f"{which} does not match the schema of topic {topic!r}: {violation}.",
                index=index,
            )


class _Unusable:
    """Stands in for a stored schema that this installation cannot check: it refuses everything."""

    def __init__(self, topic: str, error: BadSchema) -> None:
        self._topic = topic
        self._detail = error.detail

    def violation(self, payload: bytes) -> str | None:  # noqa: ARG002  (no payload is good)
        raise BadSchema(f"The schema of topic {self._topic!r} cannot be used. {self._detail}")


def _stored(topic: str, policy: TopicPolicy | None) -> Checker | None:
    if policy is None:
        return None
    try:
        return compile_schema(policy)
    except BadSchema as error:
        # Put by an older version or with other libraries installed: raised on publish.
        return _Unusable(topic, error)


@lru_cache(maxsize=_MAX_COMPILED)
def _compiled(schema_type: str, schema: str) -> Checker:
    try:
        if schema_type == "avro":
            from penstock.broker.avro_schemas import AvroChecker  # noqa: PLC0415  (an extra)

            return AvroChecker(schema)
        from penstock.broker.json_schemas import JsonChecker  # noqa: PLC0415  (an extra)

        return JsonChecker(schema)
    except ImportError as error:
        raise BadSchema(
            f"A schema of type {schema_type} needs a library that is not installed: "
            "pip install 'penstock[schemas]'."
        ) from error
