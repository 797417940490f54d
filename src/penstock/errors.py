"""Every error Penstock raises, in one tree.

::

    PenstockError
    ├── BadInput                 400  the call itself is wrong: change it
    │   ├── BadName              400
    │   ├── BadFilter            400  points at the position in the text
    │   ├── BadPolicy            400  a queue or topic policy field
    │   │   └── BadSchema        400  a topic's schema cannot be used
    │   ├── BadUrl               400  a store's or a server's URL
    │   ├── BadSetting           400  a flag, environment variable or line of the settings file
    │   ├── MethodNotAllowed     405
    │   ├── NotAcceptable        406
    │   ├── SlowRequest          408  the request's body took too long to arrive
    │   ├── UnsupportedMedia     415
    │   ├── SchemaViolation      422  a payload is not what its topic's schema says
    │   └── TooLarge             413  payload, headers, batch over its limit
    ├── AccessError              403  the caller may not do this
    │   ├── Unauthenticated      401  no credential, or not a valid one
    │   └── Forbidden            403  the credential's grants do not cover it
    ├── NotFound                 404
    │   ├── UnknownRoute         404  no such path
    │   ├── UnknownQueue         404
    │   ├── UnknownTopic         404
    │   └── UnknownMessage       404
    ├── Conflict                 409  the state of the store forbids it now
    │   ├── StaleReceipt         409  the claim is no longer current (S1)
    │   └── QueueNotEmpty        409
    ├── QueueFull                429  a matching queue is at max_depth: try later
    ├── ServiceError             503  the service between caller and store
    │   ├── Busy                 503  at one of its bounds, or stopping: try later
    │   ├── Unreachable          503  no answer after all retries: outcome unknown
    │   └── BadReply             502  what answered is not Penstock, or failed
    └── StoreError               503  the store, not the call
        ├── StoreUnavailable     503  cannot be opened: path, permissions, disk, database
        ├── StoreLocked          503  another process has it open
        ├── StoreBusy            503  the database let nobody in, or kept rolling back: try later
        ├── StoreReadOnly        503  a replica, or a database that takes no writes
        ├── StoreTooOld          503  its schema is missing or older: migrate it
        ├── StoreTooNew          503  written by a newer Penstock
        ├── StoreCorrupt         503  bytes on disk are not what was written (X1)
        ├── StoreClosed          503
        └── CommitFailed         503  the disk refused: outcome unknown, reopen

A class carries a static title and what the caller should do; an instance carries the
detail and, where one field is to blame, its name and limit. ``status`` is what an HTTP
door answers, ``retryable`` whether the same call may succeed later, and ``law`` the law
of docs/semantics.md that the refusal protects. An error of this tree means that nothing
was changed (E1), except ``CommitFailed``, ``Unreachable`` and ``BadReply``, whose outcome is
unknown.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccessError",
    "BadFilter",
    "BadInput",
    "BadName",
    "BadPolicy",
    "BadReply",
    "BadSchema",
    "BadSetting",
    "BadUrl",
    "Busy",
    "CommitFailed",
    "Conflict",
    "Forbidden",
    "MethodNotAllowed",
    "NotAcceptable",
    "NotFound",
    "PenstockError",
    "QueueFull",
    "QueueNotEmpty",
    "SchemaViolation",
    "ServiceError",
    "SlowRequest",
    "StaleReceipt",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreReadOnly",
    "StoreTooNew",
    "StoreTooOld",
    "StoreUnavailable",
    "TooLarge",
    "Unauthenticated",
    "UnknownMessage",
    "UnknownQueue",
    "UnknownRoute",
    "UnknownTopic",
    "Unreachable",
    "UnsupportedMedia",
]


class PenstockError(Exception):
    """The root. Catch it to catch everything that Penstock raises on purpose."""

    title: ClassVar[str] = "Penstock refused the call"
    advice: ClassVar[str] = "See the detail."
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    law: ClassVar[str] = "E1"

    def __init__(
        self, detail: str, *, field: str | None = None, limit: int | str | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.detail} {self.advice}"


class BadInput(PenstockError):
    """The call itself is wrong."""

    title = "Bad input"
    advice = "Correct the call; repeating it as it is will fail again."
    status = 400


class BadName(BadInput):
    """A tenant, topic, queue or consumer name breaks the naming rule."""

    title = "Bad name"
    advice = "Names match [A-Za-z0-9][A-Za-z0-9._-]{0,127}; the suffix .dlq is reserved."


class BadFilter(BadInput):
    """A filter expression does not parse, or uses what the language does not have."""

    title = "Bad filter"
    advice = "Correct the filter at the position shown."
    law = "R1"

    def __init__(
        self,
        detail: str,
        *,
        position: int | None = None,
        field: str | None = "filter",
        limit: int | str | None = None,
    ) -> None:
        super().__init__(detail, field=field, limit=limit)
        self.position = position


class BadPolicy(BadInput):
    """A field of a queue or topic policy is outside its bounds."""

    title = "Bad policy"
    advice = "Correct the named field."


class BadSchema(BadPolicy):
    """A topic's schema does not compile, or needs what is not installed."""

    title = "Bad schema"
    advice = "Correct the topic's schema as the detail says."

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = "schema",
        limit: int | str | None = None,
    ) -> None:
        super().__init__(detail, field=field, limit=limit)


class SchemaViolation(BadInput):
    """A payload does not match the schema of its topic; ``index`` is its place in the batch."""

    title = "Schema violation"
    advice = "Publish a payload that matches the topic's schema; nothing of the call was stored."
    status = 422

    def __init__(
        self,
        detail: str,
        *,
        index: int | None = None,
        field: str | None = "payload",
        limit: int | str | None = None,
    ) -> None:
        super().__init__(detail, field=field, limit=limit)
        self.index = index


class BadUrl(BadInput):
    """A URL that no engine and no server answers to."""

    title = "Bad URL"
    advice = (
        "Use a URL such as rocksdb:///path/to/store, postgresql://user:password@host/database, "
        "mysql://user:password@host/database, memory:// or http://host:port."
    )


class BadSetting(BadInput):
    """A setting is unknown, of the wrong type, or contradicts another."""

    title = "Bad setting"
    advice = "Correct the setting; `penstock config` prints the effective ones."


class MethodNotAllowed(BadInput):
    """The path exists, but not with this method."""

    title = "Method not allowed"
    advice = "See /openapi.json for what each path takes."
    status = 405


class NotAcceptable(BadInput):
    """None of the formats that the caller accepts is one that this answer has."""

    title = "Not acceptable"
    advice = "Accept application/json or application/msgpack."
    status = 406


class SlowRequest(BadInput):
    """The body of the request took longer to arrive than a request may."""

    title = "Slow request"
    advice = "Send the request in one piece; split a large batch."
    status = 408
    retryable = True


class UnsupportedMedia(BadInput):
    """The body is of a type that this path does not read."""

    title = "Unsupported media type"
    advice = "Send application/json or application/msgpack."
    status = 415


class TooLarge(BadInput):
    """A payload, the headers or a batch is over its limit."""

    title = "Too large"
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

    title = "Forbidden"
    advice = "Ask an administrator for a grant of this verb on this name."


class NotFound(PenstockError):
    """What the call names does not exist in this tenant."""

    title = "Not found"
    advice = "Check the name and the tenant."
    status = 404
    law = "T1"


class UnknownRoute(NotFound):
    """No such path."""

    title = "Unknown path"
    advice = "See /openapi.json for the paths there are."
    law = "E1"


class UnknownQueue(NotFound):
    """No queue of that name."""

    title = "Unknown queue"
    advice = "Create the queue first, or check its name."


class UnknownTopic(NotFound):
    """No topic of that name, and topics have to be registered here."""

    title = "Unknown topic"
    advice = "Register the topic first, or check its name."


class UnknownMessage(NotFound):
    """No message of that id: never published here, or removed by retention."""

    title = "Unknown message"
    advice = "Check the id; retention may have removed the message."


class Conflict(PenstockError):
    """The call is well formed, but the present state forbids it."""

    title = "Conflict"
    advice = "Look at the present state and decide again."
    status = 409


class StaleReceipt(Conflict):
    """The receipt is not the current claim's: it was settled, lapsed or fenced."""

    title = "Stale receipt"
    advice = "Drop the work: somebody else has the delivery, or it is settled."
    law = "S1"


class QueueNotEmpty(Conflict):
    """The change needs a queue without live or failed deliveries."""

    title = "Queue not empty"
    advice = "Drain or purge the queue first."


class QueueFull(PenstockError):
    """A queue that the message belongs to is at its max_depth; nothing was stored."""

    title = "Queue full"
    advice = "Retry later; consumers have to catch up first."
    status = 429
    retryable = True

    def __init__(self, detail: str, *, queue: str, limit: int, retry_after_ms: int) -> None:
        super().__init__(detail, field="max_depth", limit=limit)
        self.queue = queue
        self.retry_after_ms = retry_after_ms


class ServiceError(PenstockError):
    """The service between the caller and the store cannot do its work."""

    title = "Service error"
    advice = "Look at the service."
    status = 503
    law = "P2"


class Busy(ServiceError):
    """The service is at one of its bounds, or stopping; nothing was done."""

    title = "Busy"
    advice = "Retry after a moment."
    retryable = True

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        limit: int | str | None = None,
        retry_after_ms: int = 1000,
    ) -> None:
        super().__init__(detail, field=field, limit=limit)
        self.retry_after_ms = retry_after_ms


class Unreachable(ServiceError):
    """No answer came, whatever was tried; the call may or may not have taken effect."""

    title = "Unreachable"
    advice = "Check the URL and that the server runs; repeat with the same idempotency ids."
    retryable = True


class BadReply(ServiceError):
    """The answer is none that Penstock gives, or says that the server itself failed."""

    title = "Bad reply"
    advice = "Check that the URL is a Penstock server's, and read the server's log."
    status = 502


class StoreError(PenstockError):
    """The store cannot do its work; the call may be fine."""

    title = "Store error"
    advice = "Look at the store."
    status = 503
    law = "P1"


class StoreUnavailable(StoreError):
    """The store cannot be opened."""

    title = "Store unavailable"
    advice = (
        "Check that the path exists, is writable and has space, or that the database runs, can "
        "be reached, and knows the user, the password and the name."
    )


class StoreLocked(StoreError):
    """Another process has the store open."""

    title = "Store locked"
    advice = "One process opens an embedded store; connect to the server that has it instead."
    retryable = True


class StoreBusy(StoreError):
    """The database let nobody in, or rolled the call back each time; nothing was done."""

    title = "Store busy"
    advice = (
        "Nothing was done: try again. If it lasts, compare the servers' pools with the "
        "connections that the database allows."
    )
    retryable = True


class StoreReadOnly(StoreError):
    """The database takes no writes: a replica, or one that was made read-only."""

    title = "Store read-only"
    advice = "Connect to the primary, or let the database and its user write."


class StoreTooOld(StoreError):
    """The schema of the store is missing, or older than this Penstock needs."""

    title = "Store too old"
    advice = "Run `penstock migrate --store URL` once, then start again."


class StoreTooNew(StoreError):
    """A newer Penstock wrote the store."""

    title = "Store too new"
    advice = "Upgrade Penstock to at least the version that wrote the store."


class StoreCorrupt(StoreError):
    """Bytes read back are not the bytes that were written."""

    title = "Store corrupt"
    advice = "Stop writing, keep a copy, and restore the damaged file from a backup."
    law = "X1"


class StoreClosed(StoreError):
    """The store was closed."""

    title = "Store closed"
    advice = "Open it again."


class CommitFailed(StoreError):
    """The disk refused a commit. What was in it may or may not survive a reopen."""

    title = "Commit failed"
    advice = (
        "Free space or replace the disk, reopen the store, and repeat the call with the same "
        "idempotency ids."
    )
    retryable = True
    law = "P2"
