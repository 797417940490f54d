"""Errors of stores: the engine, its files or its database."""

from __future__ import annotations

from penstock.errors.root import PenstockError

__all__ = [
    "CommitFailed",
    "CommitsMissing",
    "NotEncoded",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "StoreTooNew",
    "StoreTooOld",
    "StoreUnavailable",
]


class StoreError(PenstockError):
    """The store is not working; the call may be fine."""

    title = "Store error"
    advice = "Check the store."
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
    advice = "Only one process can open an embedded store; connect to its server instead."
    retryable = True


class StoreBusy(StoreError):
    """The database refused connections, or rolled the call back each time; nothing was done."""

    title = "Store busy"
    advice = (
        "Nothing was done: retry. If it persists, compare the servers' pools with the "
        "connections that the database allows."
    )
    retryable = True


class StoreFull(StoreError):
    """There is too little space left to store more; nothing was done."""

    title = "Store full"
    advice = (
        "Nothing more was stored. Claims and acks still work; free space on the store's disk and "
        "publishing resumes by itself."
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

    title = "Store too old"
    advice = "Run `penstock migrate --store URL` once, then start again."


class StoreTooNew(StoreError):
    """A newer Penstock wrote the store."""

    title = "Store too new"
    advice = "Upgrade Penstock to at least the version that wrote the store."


class StoreCorrupt(StoreError):
    """Bytes read back differ from the bytes that were written."""

    title = "Store corrupt"
    advice = "Stop writing, keep a copy, and restore the damaged file from a backup."
    law = "X1"


class CommitsMissing(StoreCorrupt):
    """Acknowledged commits are no longer in the store; nothing was changed."""

    title = "Commits missing"
    advice = (
        "Restore the store's files from a backup. To continue without the lost commits, run "
        "`penstock repair --store URL --accept-loss`."
    )


class StoreClosed(StoreError):
    """The store was closed."""

    title = "Store closed"
    advice = "Open it again."


class CommitFailed(StoreError):
    """The disk refused a commit, which may or may not survive a reopen."""

    title = "Commit failed"
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
