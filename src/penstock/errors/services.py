"""Errors of the service between a caller and the store, of the pipeline (A1), stores and extras."""

from __future__ import annotations

from penstock.errors.calls import PenstockError

__all__ = [
    "BackupCorrupt",
    "BackupUnavailable",
    "BadReply",
    "Busy",
    "CommitFailed",
    "CommitsMissing",
    "LakeCorrupt",
    "MissingExtra",
    "NoSpark",
    "NotEncoded",
    "NotWriter",
    "OffsetsGone",
    "OtherRun",
    "PipelineError",
    "ResultTimeout",
    "ServiceError",
    "SourceChanged",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreNotEmpty",
    "StoreReadOnly",
    "StoreTooNew",
    "StoreTooOld",
    "StoreUnavailable",
    "StoreUnfinished",
    "TaskError",
    "TaskExpired",
    "TaskFailed",
    "TooManyRequests",
    "Unreachable",
]


class MissingExtra(PenstockError, ImportError):
    """A package that the call needs is not installed; an extra of Penstock brings it.

    It is an ``ImportError`` too, because importing a module can raise it.
    """

    advice = "Install it where this runs, then repeat the call."
    status = 501


class ServiceError(PenstockError):
    """The service between the caller and the store is not working."""

    advice = "Check the service."
    status = 503
    law = "P2"


class Busy(ServiceError):
    """The service is at one of its limits, or stopping; nothing was done."""

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


class TooManyRequests(Busy):
    """The credential is over its limit of requests per second; nothing was done."""

    advice = "Retry after the stated time, and send fewer requests: publish and settle in batches."
    status = 429
    law = "E1"
    default_field = "requests_per_s"


class Unreachable(ServiceError):
    """No answer came after all retries; the call may have taken effect."""

    advice = "Check the URL and that the server runs; repeat with the same idempotency ids."
    retryable = True


class BadReply(ServiceError):
    """The answer is not one of Penstock's, or reports that the server failed."""

    advice = "Check that the URL is a Penstock server's, and read the server's log."
    status = 502


class TaskError(PenstockError):
    """A task has no result."""

    advice = "Look at the message of the task: penstock message show."
    law = "S3"


class TaskFailed(TaskError):
    """A task failed: it was rejected, or no attempts are left."""

    advice = "Correct the cause, then replay the dead letters of its queue."

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        limit: int | str | None = None,
        error: str | None = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(detail, field=field, limit=limit)
        self.error = error
        """The error of the last attempt."""
        self.attempts = attempts


class TaskExpired(TaskError):
    """A task expired before it was done."""

    advice = "Send it again, with a longer time to live or more workers."


class ResultTimeout(TaskError):
    """A task had no outcome within the timeout; it is not affected."""

    advice = "Wait again: the task may still be handled."
    status = 504
    retryable = True


class PipelineError(PenstockError):
    """A job of the data pipeline cannot do its work."""

    advice = "The job left no partial result; run it again."
    law = "A1"


class NoSpark(PipelineError):
    """The Java that Spark needs is missing, or Spark does not start."""

    title = "No Spark"
    advice = "Install Java 17, then run the job again."


class OffsetsGone(PipelineError):
    """A reader asked for entries of the log that retention has removed."""

    advice = "Read them from the lake, or skip them with failOnDataLoss=false."
    status = 410
    law = "L1"


class OtherRun(PipelineError):
    """Another run has begun this write, and the missing part of it cannot be determined."""

    title = "Written by another run"
    advice = (
        "If both runs have the same partitions, as those of a stream that reads from Penstock, "
        "write again with samePartitions=true. Otherwise give every row an id column, or use "
        "another writeId or checkpoint, which publishes every row again."
    )
    status = 409
    law = "P4"


class LakeCorrupt(PipelineError):
    """The contents of the lake do not match its manifest."""

    advice = "Nothing is removed from the store; restore the named files, or archive again."


class StoreError(PenstockError):
    """The store is not working; the call may be fine."""

    advice = "Check the store."
    status = 503
    law = "P1"


class StoreUnavailable(StoreError):
    """The store cannot be opened."""

    advice = (
        "Check that the path exists, is writable and has space; that the database runs, can be "
        "reached, and knows the user, the password and the name; or that the bucket exists, and "
        "endpoint and credentials are right."
    )


class StoreLocked(StoreError):
    """Another process has the store open."""

    advice = "Only one process can open an embedded store; connect to its server instead."
    retryable = True


class NotWriter(StoreError):
    """Another server writes to the store; this one stands by. Nothing was done."""

    title = "Not the writer"
    advice = "Send the call to the server that writes, or retry after a moment."
    retryable = True

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        limit: int | str | None = None,
        writer: str | None = None,
        retry_after_ms: int = 1000,
    ) -> None:
        super().__init__(detail, field=field, limit=limit)
        self.writer = writer
        """The URL of the server that writes, if it is known."""
        self.retry_after_ms = retry_after_ms


class StoreBusy(StoreError):
    """The database refused connections or rolled the call back each time, or the object store
    limits requests; nothing was done."""

    advice = (
        "Nothing was done: retry. If it persists, compare the servers' pools with the "
        "connections that the database allows, or the requests with the limit of the object store."
    )
    retryable = True


class StoreFull(StoreError):
    """There is too little space left to store more; nothing was done."""

    advice = (
        "Nothing more was stored. Free space on the store's disk or in its bucket: publishing "
        "resumes by itself, and claims and acks of an open store still work."
    )
    status = 507
    retryable = True
    law = "P2"


class StoreReadOnly(StoreError):
    """The database accepts no writes: a replica, or one that was made read-only."""

    title = "Store read-only"
    advice = "Connect to the primary, or allow the database and its user to write."


class StoreTooOld(StoreError):
    """The schema of the store is missing, or older than this Penstock needs."""

    advice = "Run `penstock migrate --store URL` once, then start again."


class StoreTooNew(StoreError):
    """A newer Penstock wrote the store."""

    advice = "Upgrade Penstock to at least the version that wrote the store."


class StoreUnfinished(StoreError):
    """A copy or a restore into the store has not finished, so it has only a part of the data."""

    advice = (
        "Run the same `penstock copy` or `penstock restore` again, which continues it, or remove "
        "the store and begin anew."
    )


class StoreNotEmpty(StoreError):
    """A copy or a restore needs an empty target; nothing was changed."""

    title = "Store not empty"
    advice = "Name a new directory, bucket path or database; nothing is ever overwritten."


class SourceChanged(StoreError):
    """The store to be copied has changed since the copy began."""

    advice = (
        "Stop every server and program that writes to the source, remove the unfinished target, "
        "and run the copy again."
    )


class StoreCorrupt(StoreError):
    """Bytes read back differ from the bytes that were written."""

    advice = "Stop writing, keep a copy, and restore the damaged file from a backup."
    law = "X1"


class BackupCorrupt(StoreCorrupt):
    """A backup is incomplete, or its bytes are not those that were written; nothing was opened."""

    advice = "Restore another backup. The store that is served is not affected."


class BackupUnavailable(StoreError):
    """The place of a backup cannot be read or written."""

    advice = (
        "Check that the folder or the bucket exists, can be written and has space, and that "
        "endpoint and credentials are right. The store is not affected."
    )


class CommitsMissing(StoreCorrupt):
    """Acknowledged commits are no longer in the store; nothing was changed."""

    advice = (
        "Restore the store's files from a backup. To continue without the lost commits, run "
        "`penstock repair --store URL --accept-loss`."
    )


class StoreClosed(StoreError):
    """The store was closed."""

    advice = "Open it again."


class CommitFailed(StoreError):
    """The disk refused a commit, which may or may not survive a reopen."""

    advice = (
        "Free space or replace the disk, reopen the store, and repeat the call with the same "
        "idempotency ids."
    )
    retryable = True
    law = "P2"


class NotEncoded(StoreError):
    """A change could not be encoded, which is a bug. It has not reached the disk."""

    title = "Change not encoded"
    advice = "Reopen the store: on disk it is intact. Please report this bug in Penstock."
    law = "S3"
