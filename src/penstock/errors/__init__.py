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
    │   ├── SchemaViolation      422  a payload does not match its topic's schema
    │   └── TooLarge             413  payload, headers, batch over its limit
    ├── AccessError              403  the caller may not do this
    │   ├── Unauthenticated      401  no credential, or not a valid one
    │   ├── Forbidden            403  the credential's grants do not cover it
    │   └── ForeignOrigin        403  a web page of another site, or another host name
    ├── NotFound                 404
    │   ├── UnknownRoute         404  no such path
    │   ├── UnknownQueue         404
    │   ├── UnknownTopic         404
    │   ├── UnknownMessage       404
    │   ├── UnknownDelivery      404  the queue does not have the message
    │   ├── UnknownRun           404  of a pipeline job
    │   └── UnknownWebhook       404
    ├── Conflict                 409  the state of the store forbids it now
    │   ├── StaleReceipt         409  the claim is no longer current (S1)
    │   ├── OtherStore           409  a position of another store, or from before a restore (A1)
    │   ├── TopicChanged         409  while messages were checked: send them again
    │   ├── QueueChanged         409  while its policy was changed: send the change again
    │   ├── QueueExists          409  with another policy
    │   ├── QueueNotEmpty        409
    │   ├── TooManyQueues        409  of one tenant
    │   └── TooManyUnindexedFilters 409  of one tenant
    ├── MissingExtra             501  an optional package is not installed
    ├── QueueFull                429  a matching queue is at max_depth: retry later
    ├── ServiceError             503  the service between caller and store
    │   ├── Busy                 503  at one of its limits, or stopping: retry later
    │   │   └── TooManyRequests  429  the credential is over its limit of requests per second
    │   ├── Unreachable          503  no answer after all retries: outcome unknown
    │   └── BadReply             502  the answer is not from Penstock, or the server failed
    ├── TaskError                500  a task of a worker has no result
    │   ├── TaskFailed           500  rejected, or no attempts left
    │   ├── TaskExpired          500  before it was done
    │   └── ResultTimeout        504  no outcome yet
    ├── PipelineError            500  a job of the data pipeline
    │   ├── NoSpark              500  Java is missing, or Spark does not start
    │   ├── OtherRun             409  another run has begun the write, maybe in other partitions
    │   ├── OffsetsGone          410  retention has removed the entries to be read
    │   └── LakeCorrupt          500  the lake does not match its manifest
    └── StoreError               503  the store, not the call
        ├── StoreUnavailable     503  cannot be opened: path, permissions, disk, database
        ├── StoreLocked          503  another process has it open
        ├── NotWriter            503  another server writes to the store: follow it
        ├── StoreBusy            503  the database refused connections, or kept rolling back
        ├── StoreFull            507  too little disk space: only publishes are refused
        ├── StoreReadOnly        503  a replica, or a database that accepts no writes
        ├── StoreTooOld          503  its schema is missing or older: migrate it
        ├── StoreTooNew          503  written by a newer Penstock
        ├── StoreUnfinished      503  a copy or a restore into it has not finished: run it again
        ├── StoreNotEmpty        503  a copy or a restore needs an empty target
        ├── SourceChanged        503  the store was written to while it was copied
        ├── StoreCorrupt         503  bytes on disk differ from those written (X1)
        │   ├── BackupCorrupt    503  a backup is damaged or incomplete
        │   └── CommitsMissing   503  acknowledged commits are gone: restore, or accept the loss
        ├── BackupUnavailable    503  the folder or bucket of a backup cannot be used
        ├── StoreClosed          503
        ├── CommitFailed         503  the disk refused: outcome unknown, reopen
        └── NotEncoded           503  a bug: nothing reached the disk, reopen

A class has a fixed title and advice for the caller; an instance has the detail and, if one
field is to blame, its name and limit. ``status`` is the HTTP status, ``retryable`` says
whether the same call may succeed later, and ``law`` is the law of docs/semantics.md that the
refusal protects. An error of this tree means that nothing was changed (E1), except
``CommitFailed``, ``Unreachable`` and ``BadReply``, whose outcome is unknown.
"""

from __future__ import annotations

from penstock.errors import calls, services
from penstock.errors.calls import *  # noqa: F403
from penstock.errors.services import *  # noqa: F403

__all__: list[str] = []
__all__ += calls.__all__
__all__ += services.__all__
