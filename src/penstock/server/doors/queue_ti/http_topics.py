"""The HTTP routes of topics: configuration, schemas, groups, purge, replay, the message log."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import BadInput
from penstock.model.queue import TopicPolicy
from penstock.server.call import Call
from penstock.server.doors.json_bodies import (
    SMALL_BYTES,
    decode_json,
    json_reply,
    query_of,
    read_typed_json,
    rfc3339,
    to_ms,
)
from penstock.server.doors.json_lists import json_list
from penstock.server.doors.path_door import DoorRoute, checked
from penstock.server.doors.queue_ti import listing, upkeep
from penstock.server.doors.queue_ti.access import check_admin
from penstock.server.doors.queue_ti.avro import SchemaBody, schema_of, stored_schema
from penstock.server.doors.queue_ti.http_messages import paging_of
from penstock.server.doors.queue_ti.refusals import QueueTiError, invalid, not_found
from penstock.server.doors.queue_ti.topics import (
    Limits,
    TopicConfig,
    TopicName,
    ensure_base,
    to_topic,
    topic_text,
)
from penstock.server.replies import Plain

__all__ = ["DeletedReply", "TopicRoutes"]

#: The largest schema that a topic stores, and its JSON form in a body.
_SCHEMA_BYTES: Final = 4 * SMALL_BYTES


class ConfigBody(Struct, frozen=True):
    """A configuration without its topic."""

    max_retries: int | None = None
    message_ttl_seconds: int | None = None
    max_depth: int | None = None
    replayable: bool = False
    replay_window_seconds: int | None = None
    throughput_limit: int | None = None


class ConfigList(Struct, frozen=True):
    """Every configured topic."""

    items: list[TopicConfig]


class SchemaList(Struct, frozen=True):
    """Every topic with a schema."""

    items: list[SchemaBody]


class PutSchemaBody(Struct, frozen=True):
    """An Avro schema as text."""

    schema_json: str = ""


class GroupList(Struct, frozen=True):
    """Consumer groups."""

    items: list[str]


class GroupBody(Struct, frozen=True):
    """A consumer group."""

    consumer_group: str = ""


class PurgeBody(Struct, frozen=True):
    """Which messages to delete; none is all of them."""

    statuses: list[str] | None = None


class ReplayBody(Struct, frozen=True):
    """From when on to replay."""

    from_time: str | None = None


class ReplayReply(Struct, frozen=True):
    """How many messages are pending again."""

    topic: str
    enqueued: int
    from_time: str


class DeletedReply(Struct, frozen=True):
    """How many messages were deleted."""

    deleted: int


class TopicRoutes:
    """The handlers."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def routes(self) -> tuple[DoorRoute, ...]:
        """The routes with their handlers."""
        config, schema = "/api/topic-configs", "/api/topic-schemas"
        topic = "/api/topics/{topic}"
        group, log = topic + "/consumer-groups", topic + "/message-log"
        table = (
            ("GET", config, "list_configs", self.list_configs),
            ("PUT", config + "/{topic}", "put_config", self.put_config),
            ("DELETE", config + "/{topic}", "delete_config", self.delete_config),
            ("GET", schema, "list_schemas", self.list_schemas),
            ("PUT", schema + "/{topic}", "put_schema", self.put_schema),
            ("DELETE", schema + "/{topic}", "delete_schema", self.delete_schema),
            ("GET", schema + "/{topic}", "get_schema", self.get_schema),
            ("GET", group, "list_groups", self.list_groups),
            ("POST", group, "add_group", self.add_group),
            ("DELETE", group + "/{group}", "delete_group", self.delete_group),
            ("POST", topic + "/purge", "purge", self.purge),
            ("DELETE", topic + "/messages/by-key/{key}", "delete_by_key", self.delete_by_key),
            ("POST", topic + "/replay", "replay", self.replay),
            ("GET", log, "message_log", self.message_log),
            ("DELETE", log, "trim_log", self.trim_log),
        )
        return tuple(
            DoorRoute(method, path, verb, checked(check_admin, handler))
            for method, path, verb, handler in table
        )

    # -- configuration -----------------------------------------------------------------

    async def list_configs(self, call: Call) -> Plain:
        """Every configured topic."""
        return json_reply(ConfigList(await upkeep.configs(call.broker)))

    async def put_config(self, call: Call) -> Plain:
        """Configure a topic."""
        body = await read_typed_json(call, ConfigBody)
        topic = _configurable(call.name)
        for field in ConfigBody.__struct_fields__:
            value = getattr(body, field)
            if type(value) is int and value < 0:
                raise invalid(f"{field} must be >= 0", field)
        config = TopicConfig(
            topic=topic.text,
            max_retries=body.max_retries,
            message_ttl_seconds=body.message_ttl_seconds,
            max_depth=body.max_depth,
            replayable=body.replayable,
            replay_window_seconds=body.replay_window_seconds if body.replayable else None,
            throughput_limit=body.throughput_limit,
        )
        return json_reply(await upkeep.put_config(call.broker, self._limits, topic, config))

    async def delete_config(self, call: Call) -> Plain:
        """Give a topic the defaults again."""
        await upkeep.delete_config(call.broker, self._limits, _configurable(call.name))
        return Plain(204)

    # -- schemas -----------------------------------------------------------------------

    async def list_schemas(self, call: Call) -> Plain:
        """Every topic with a schema of this door."""
        found = [
            schema
            for name, policy in await call.broker.topics()
            if (schema := schema_of(topic_text(name), policy)) is not None
        ]
        return json_reply(SchemaList(found))

    async def put_schema(self, call: Call) -> Plain:
        """Give a topic a schema, or the next version of it."""
        body = await read_typed_json(call, PutSchemaBody, _SCHEMA_BYTES)
        topic = _configurable(call.name)
        policy = await call.broker.topic(topic.name) or TopicPolicy()
        before = schema_of(topic.text, policy)
        version = 1 if before is None else before.version + 1
        text = stored_schema(body.schema_json, version, call.service.now())
        changed = replace(policy, schema_type="json-schema", schema=text)
        await call.broker.put_topic(topic.name, changed)
        await ensure_base(call.broker, topic, self._limits)
        return json_reply(schema_of(topic.text, changed))

    async def delete_schema(self, call: Call) -> Plain:
        """Accept any payload again; also if there is no schema."""
        topic = to_topic(call.name)
        policy = await call.broker.topic(topic.name)
        if schema_of(topic.text, policy) is not None and policy is not None:
            await call.broker.put_topic(topic.name, replace(policy, schema_type=None, schema=None))
        return Plain(204)

    async def get_schema(self, call: Call) -> Plain:
        """The schema of a topic."""
        topic = to_topic(call.name)
        found = schema_of(topic.text, await call.broker.topic(topic.name))
        if found is None:
            raise not_found("schema not found")
        return json_reply(found)

    # -- consumer groups ---------------------------------------------------------------

    async def list_groups(self, call: Call) -> Plain:
        """The consumer groups of a topic."""
        return json_reply(GroupList(await upkeep.groups(call.broker, to_topic(call.name))))

    async def add_group(self, call: Call) -> Plain:
        """Register a consumer group."""
        body = await read_typed_json(call, GroupBody)
        topic = _configurable(call.name)
        if not body.consumer_group:
            raise invalid("consumer_group is required", "consumer_group")
        await upkeep.add_group(call.broker, self._limits, topic, body.consumer_group)
        return Plain(201)

    async def delete_group(self, call: Call) -> Plain:
        """Unregister a consumer group."""
        topic, group = call.parameters
        await upkeep.delete_group(call.broker, to_topic(topic), group)
        return Plain(204)

    # -- messages ----------------------------------------------------------------------

    async def purge(self, call: Call) -> Plain:
        """Delete the messages of a topic, by status."""
        body = await read_typed_json(call, PurgeBody)
        topic = to_topic(call.name)
        purging = upkeep.purge(call.broker, topic, body.statuses or [])
        return json_reply(DeletedReply(await call.scan(purging)))

    async def delete_by_key(self, call: Call) -> Plain:
        """Delete the messages of a key."""
        topic, key = call.parameters
        deleting = upkeep.delete_by_key(call.broker, to_topic(topic), key)
        return json_reply(DeletedReply(await call.scan(deleting)))

    async def replay(self, call: Call) -> Plain:
        """Make acked messages pending again."""
        raw = await call.read_body(SMALL_BYTES)
        body = decode_json(raw, ReplayBody) if raw else ReplayBody()
        topic = to_topic(call.name)
        try:
            from_ms = to_ms(body.from_time, "from_time") if body.from_time else None
        except BadInput as error:
            raise QueueTiError(422, "INVALID_ARGUMENT", error.detail) from error
        replaying = upkeep.replay(call.broker, topic, from_ms, call.service.now())
        enqueued = await call.scan(replaying)
        shown = "" if from_ms is None else rfc3339(from_ms)
        return json_reply(ReplayReply(topic.shown, enqueued, shown))

    async def message_log(self, call: Call) -> Plain:
        """The acked messages of a topic."""
        paging = paging_of(query_of(call))
        page = await call.scan(listing.message_log(call.broker, to_topic(call.name), paging))
        call.hold.take(sum(len(item.payload) for item in page.items))
        return await json_list(page)

    async def trim_log(self, call: Call) -> Plain:
        """Delete old acked messages."""
        before = query_of(call).get("before", "")
        if not before:
            raise invalid("before is required", "before")
        topic = to_topic(call.name)
        trimming = upkeep.trim_log(call.broker, topic, to_ms(before, "before"))
        return json_reply(DeletedReply(await call.scan(trimming)))


def _configurable(text: str) -> TopicName:
    topic = to_topic(text)
    if topic.is_dlq:
        raise invalid("topic names ending in .dlq are reserved", "topic")
    return topic
