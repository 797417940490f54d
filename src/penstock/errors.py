"""Every error Penstock raises, in one tree.

::

    PenstockError
    ├── BadInput                 400  the call itself is wrong: change it
    │   ├── BadName              400
    │   ├── BadFilter            400  points at the position in the text
    │   ├── BadPolicy            400  a queue or topic policy field
    │   ├── BadUrl               400  a store URL
    │   └── TooLarge             413  payload, headers, batch over its limit
    ├── NotFound                 404
    │   ├── UnknownQueue         404
    │   ├── UnknownTopic         404
    │   └── UnknownMessage       404
    ├── Conflict                 409  the state of the store forbids it now
    │   ├── StaleReceipt         409  the claim is no longer current (S1)
    │   └── QueueNotEmpty        409
    ├── QueueFull                429  a matching queue is at max_depth: try later
    └── StoreError               503  the store, not the call
        ├── StoreUnavailable     503  cannot be opened: path, permissions, disk
        ├── StoreLocked          503  another process has it open
        ├── StoreTooNew          503  written by a newer Penstock
        ├── StoreCorrupt         503  bytes on disk are not what was written (X1)
        ├── StoreClosed          503
        └── CommitFailed         503  the disk refused: outcome unknown, reopen

A class carries a static title and what the caller should do; an instance carries the
detail and, where one field is to blame, its name and limit. ``status`` is what an HTTP
door answers, ``retryable`` whether the same call may succeed later, and ``law`` the law
of docs/semantics.md that the refusal protects. An error of this tree means that nothing
was changed (E1), except ``CommitFailed``, whose outcome is unknown.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BadFilter",
    "BadInput",
    "BadName",
    "BadPolicy",
    "BadUrl",
    "CommitFailed",
    "Conflict",
    "NotFound",
    "PenstockError",
    "QueueFull",
    "QueueNotEmpty",
    "StaleReceipt",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreTooNew",
    "StoreUnavailable",
    "TooLarge",
    "UnknownMessage",
    "UnknownQueue",
    "UnknownTopic",
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


class BadUrl(BadInput):
    """A store URL that no engine answers to."""

    title = "Bad store URL"
    advice = "Use a URL such as rocksdb:///path/to/store or memory://."


class TooLarge(BadInput):
    """A payload, the headers or a batch is over its limit."""

    title = "Too large"
    advice = "Send less, or raise the limit where it can be configured."
    status = 413


class NotFound(PenstockError):
    """What the call names does not exist in this tenant."""

    title = "Not found"
    advice = "Check the name and the tenant."
    status = 404
    law = "T1"


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


class StoreError(PenstockError):
    """The store cannot do its work; the call may be fine."""

    title = "Store error"
    advice = "Look at the store."
    status = 503
    law = "P1"


class StoreUnavailable(StoreError):
    """The store cannot be opened."""

    title = "Store unavailable"
    advice = "Check that the path exists, is writable and has space."


class StoreLocked(StoreError):
    """Another process has the store open."""

    title = "Store locked"
    advice = "One process opens an embedded store; connect to the server that has it instead."
    retryable = True


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
