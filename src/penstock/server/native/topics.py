"""Topics: registration, default time to live, dedup window, payload schema."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.errors import BadInput, BadPolicy, UnknownTopic
from penstock.model.queue import MAX_SCHEMA_BYTES, TopicPolicy
from penstock.server.call import Call
from penstock.server.native.queues import check_dead_letter_topic
from penstock.server.request_parsing import SMALL_BYTES, Body
from penstock.server.routing import ANY_NAME, Empty, Need, Route
from penstock.wire.bodies import TopicInfo, TopicList
from penstock.wire.codecs import JSON
from penstock.wire.decode_errors import explain

__all__ = ["ROUTES"]

#: JSON may escape one byte of the schema as six.
_MAX_BODY_BYTES: Final = 6 * MAX_SCHEMA_BYTES + SMALL_BYTES
_FIELDS: Final = frozenset(TopicPolicy.__struct_fields__)


class TopicBody(Body[TopicPolicy]):
    """The fields of a topic policy; omitted ones have their defaults."""

    def __init__(self) -> None:
        super().__init__(TopicPolicy, required=False, most=_MAX_BODY_BYTES)
        self._fields = Body(dict[str, Any])

    def decode(self, body: bytes, media: str) -> TopicPolicy:
        """The policy; the broker checks its limits."""
        fields = self._fields.decode(body, media) if body else {}
        unknown = sorted(fields.keys() - _FIELDS)
        if unknown:
            raise BadPolicy(
                f"A topic policy has no field {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}.",
                field=unknown[0],
            )
        try:
            return msgspec.convert(fields, TopicPolicy)
        except msgspec.ValidationError as error:
            field, text = explain(error, TopicPolicy)
            raise BadPolicy(f"The policy cannot be read: {text}.", field=field) from error


async def put_topic(call: Call, query: Empty, body: TopicPolicy) -> TopicInfo:  # noqa: ARG001
    """Register the topic, or replace its policy."""
    check_dead_letter_topic(call, body.queue_defaults)
    await call.broker.put_topic(call.name, body)
    return TopicInfo(call.name, body)


async def get_topic(call: Call, query: Empty, body: Empty) -> TopicInfo:  # noqa: ARG001
    """The topic's policy."""
    policy = await call.broker.topic(call.name)
    if policy is None:
        raise UnknownTopic(f"There is no topic {call.name!r}.", field="topic")
    return TopicInfo(call.name, policy)


async def list_topics(call: Call, query: Empty, body: Empty) -> TopicList:  # noqa: ARG001
    """All registered topics that the caller may publish to or read, by name."""
    topics = await call.broker.topics()
    return TopicList(
        tuple(
            TopicInfo(name, policy)
            for name, policy in topics
            if call.credential.allows("publish", name) or call.credential.allows("read", name)
        )
    )


async def delete_topic(call: Call, query: Empty, body: Empty) -> None:  # noqa: ARG001
    """Remove the topic's policy; its messages stay."""
    await call.broker.delete_topic(call.name)


_PATH: Final = "/v1/topics/{topic}"

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/topics",
        verb="list_topics",
        summary="All registered topics by name",
        need=Need("publish", ANY_NAME, or_read=True),
        handler=list_topics,
        query=Empty,
        replies=((JSON, TopicList),),
        tag="topics",
    ),
    Route(
        method="PUT",
        path=_PATH,
        verb="put_topic",
        summary="Register a topic, or replace its policy",
        need=Need("admin", "topic"),
        handler=put_topic,
        query=Empty,
        body=TopicBody(),
        replies=((JSON, TopicInfo),),
        errors=(BadInput,),
        tag="topics",
    ),
    Route(
        method="GET",
        path=_PATH,
        verb="get_topic",
        summary="A topic's policy",
        need=Need("publish", "topic", or_read=True),
        handler=get_topic,
        query=Empty,
        replies=((JSON, TopicInfo),),
        errors=(BadInput, UnknownTopic),
        tag="topics",
    ),
    Route(
        method="DELETE",
        path=_PATH,
        verb="delete_topic",
        summary="Remove a topic's policy; its messages stay",
        need=Need("admin", "topic"),
        handler=delete_topic,
        query=Empty,
        status=204,
        errors=(BadInput, UnknownTopic),
        tag="topics",
    ),
)
