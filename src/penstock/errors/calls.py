"""The root, and errors of calls: bad input, no access, not found, conflicts with the state (E1)."""

from __future__ import annotations

import re
from typing import ClassVar

__all__ = [
    "AccessError",
    "BadFilter",
    "BadInput",
    "BadName",
    "BadPolicy",
    "BadSchema",
    "BadSetting",
    "BadUrl",
    "Conflict",
    "Forbidden",
    "ForeignOrigin",
    "MethodNotAllowed",
    "NotAcceptable",
    "NotFound",
    "OtherStore",
    "PenstockError",
    "QueueChanged",
    "QueueExists",
    "QueueFull",
    "QueueNotEmpty",
    "SchemaViolation",
    "SlowRequest",
    "StaleReceipt",
    "TooLarge",
    "TooManyQueues",
    "TooManyUnindexedFilters",
    "TopicChanged",
    "Unauthenticated",
    "UnknownDelivery",
    "UnknownMessage",
    "UnknownQueue",
    "UnknownRoute",
    "UnknownRun",
    "UnknownTopic",
    "UnknownWebhook",
    "UnsupportedMedia",
]


class PenstockError(Exception):
    """The root. Catch it to catch every error that Penstock raises on purpose."""

    #: By default the words of the class name.
    title: ClassVar[str] = "Penstock refused the call"
    advice: ClassVar[str] = "See the detail."
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    law: ClassVar[str] = "E1"
    #: The field to blame unless an instance names another.
    default_field: ClassVar[str | None] = None

    def __init__(
        self, detail: str, *, field: str | None = None, limit: int | str | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = self.default_field if field is None else field
        self.limit = limit

    def __init_subclass__(cls) -> None:
        if "title" not in vars(cls):
            cls.title = re.sub(
                "(?<=[a-z])[A-Z]", lambda found: f" {found[0].lower()}", cls.__name__
            )

    def __str__(self) -> str:
        return f"{self.detail} {self.advice}"


class BadInput(PenstockError):
    """The call itself is wrong."""

    advice = "Correct the call; the same call will fail again."
    status = 400


class BadName(BadInput):
    """A tenant, topic, queue or consumer name breaks the naming rule."""

    advice = (
        "Names match [A-Za-z0-9][A-Za-z0-9._-]{0,127}; the suffix .dlq and the prefix penstock. are"
        " reserved."
    )


class BadFilter(BadInput):
    """A filter expression does not parse, or uses a feature that the language lacks.

    ``position`` and ``end`` are the offsets in characters of the part to blame.
    """

    advice = "Correct the filter at the position shown."
    law = "R1"
    default_field = "filter"

    def __init__(
        self,
        detail: str,
        *,
        position: int | None = None,
        end: int | None = None,
        field: str | None = None,
        limit: int | str | None = None,
    ) -> None:
        super().__init__(detail, field=field, limit=limit)
        self.position = position
        self.end = end


class BadPolicy(BadInput):
    """A field of a queue or topic policy is outside its bounds."""

    advice = "Correct the named field."


class BadSchema(BadPolicy):
    """A topic's schema does not compile, or needs a library that is not installed."""

    advice = "Correct the topic's schema as the detail says."
    default_field = "schema"


class SchemaViolation(BadInput):
    """A payload does not match the schema of its topic; ``index`` is its index in the batch."""

    advice = "Publish a payload that matches the topic's schema; nothing of the call was stored."
    status = 422
    default_field = "payload"

    def __init__(
        self,
        detail: str,
        *,
        index: int | None = None,
        field: str | None = None,
        limit: int | str | None = None,
    ) -> None:
        super().__init__(detail, field=field, limit=limit)
        self.index = index


class BadUrl(BadInput):
    """A URL of no known engine and no server."""

    title = "Bad URL"
    advice = (
        "Use a URL such as rocksdb:///path/to/store, files:///path/to/store, "
        "slatedb+s3://bucket/path, postgresql://user:password@host/database, "
        "mysql://user:password@host/database, memory:// or http://host:port."
    )


class BadSetting(BadInput):
    """A setting is unknown, of the wrong type, or contradicts another."""

    advice = "Correct the setting; `penstock config` prints the effective ones."


class MethodNotAllowed(BadInput):
    """The path exists, but not with this method."""

    advice = "See /openapi.json for the methods of each path."
    status = 405


class NotAcceptable(BadInput):
    """This answer exists in none of the formats that the caller accepts."""

    advice = "Accept application/json or application/msgpack."
    status = 406


class SlowRequest(BadInput):
    """The body of the request took too long to arrive."""

    advice = "Send the request in one piece; split a large batch."
    status = 408
    retryable = True


class UnsupportedMedia(BadInput):
    """This path does not read bodies of that type."""

    title = "Unsupported media type"
    advice = "Send application/json or application/msgpack."
    status = 415


class TooLarge(BadInput):
    """A payload, the headers or a batch is over its limit."""

    advice = "Send less, or raise the limit where it can be configured."
    status = 413


class AccessError(PenstockError):
    """The caller may not do this."""

    title = "No access"
    advice = "Ask an administrator for a credential with the right grants."
    status = 403
    law = "T1"


class Unauthenticated(AccessError):
    """There is no credential, or it is unknown, expired or revoked."""

    title = "Not authenticated"
    advice = "Send Authorization: Bearer with an API key or a JWT that is valid here."
    status = 401


class Forbidden(AccessError):
    """The credential is valid, but its grants do not cover the call."""

    advice = "Ask an administrator for a grant of this verb on this name."


class ForeignOrigin(AccessError):
    """A web page of another site sent the call, or it names another host than this server."""

    advice = "Call the server by its address, or add the name to allowed_hosts or allowed_origins."


class NotFound(PenstockError):
    """The object of the call does not exist in this tenant."""

    advice = "Check the name and the tenant."
    status = 404
    law = "T1"


class UnknownRoute(NotFound):
    """No such path."""

    title = "Unknown path"
    advice = "See /openapi.json for the existing paths."
    law = "E1"


class UnknownQueue(NotFound):
    """No queue of that name."""

    advice = "Create the queue first, or check its name."


class UnknownTopic(NotFound):
    """No topic of that name, and topics have to be registered here."""

    advice = "Register the topic first, or check its name."


class UnknownMessage(NotFound):
    """No message of that id: never published here, or removed by retention."""

    advice = "Check the id; retention may have removed the message."


class UnknownDelivery(NotFound):
    """The queue does not have the message: never routed there, or the delivery was removed."""

    advice = "Check the queue; the delivery may have been cancelled, purged or removed."


class UnknownRun(NotFound):
    """No run of that id: never recorded here, or displaced by newer ones."""

    advice = "Check the id; the last 1,000 runs of a tenant are kept."


class UnknownWebhook(NotFound):
    """No webhook of that id in this tenant."""

    advice = "Check the id, or put the webhook first."


class Conflict(PenstockError):
    """The call is well formed, but the current state forbids it."""

    advice = "Check the current state and decide again."
    status = 409


class StaleReceipt(Conflict):
    """The receipt is not that of the current claim, which was settled, lapsed or fenced."""

    advice = "Drop the work: another consumer may have the delivery, or it is settled."
    law = "S1"


class OtherStore(Conflict):
    """A position in the log, or a lake, belongs to another store or another epoch."""

    title = "Another store"
    advice = (
        "Use a store and a lake that belong together. After a restore or a copy, start a new "
        "lake and new checkpoints, or continue the lake with archive --adopt, which compares first."
    )
    law = "A1"


class TopicChanged(Conflict):
    """The topic's policy changed after the messages were checked; nothing was stored."""

    advice = "Send the same call again: it is checked against the current policy."
    retryable = True


class QueueChanged(Conflict):
    """The queue's policy changed while a change of it was made; nothing was changed."""

    advice = "Send the same call again: it changes the current policy."
    retryable = True


class QueueExists(Conflict):
    """There is a queue of that name with another policy; nothing was changed."""

    advice = (
        "Use ensure_queue to accept the existing queue, update_queue to change some fields, or "
        "put_queue to replace its whole policy."
    )


class QueueNotEmpty(Conflict):
    """The change needs a queue without live or failed deliveries."""

    advice = "Drain or purge the queue first."


class TooManyQueues(Conflict):
    """The tenant has reached its limit of queues; nothing was created or stored."""

    advice = (
        "Delete queues that are no longer needed, or raise max_queues. To publish to many topics "
        "without one queue per topic, create one queue whose filter takes them, such as "
        "topic LIKE 'orders.%'."
    )


class TooManyUnindexedFilters(Conflict):
    """The tenant has reached its limit of filters that no index can find."""

    advice = (
        "Let the filter require an equality, such as topic = 'orders' AND amount > 10, or "
        "kind IN ('a', 'b'), or depend on the topic alone. A filter without one is evaluated for "
        "every message. Or raise max_unindexed_filters."
    )


class QueueFull(PenstockError):
    """A queue that would take the message is at its max_depth; nothing was stored."""

    advice = "Retry later; consumers have to catch up first."
    status = 429
    retryable = True
    default_field = "max_depth"

    def __init__(self, detail: str, *, queue: str, limit: int, retry_after_ms: int) -> None:
        super().__init__(detail, limit=limit)
        self.queue = queue
        self.retry_after_ms = retry_after_ms
