"""What failures of PostgreSQL and of asyncpg mean, each as the driver raises it."""

from __future__ import annotations

import asyncio
import ssl

import asyncpg
import pytest

from penstock.errors import (
    BadInput,
    PenstockError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooOld,
    StoreUnavailable,
    TooLarge,
)
from penstock.storage.sql.database import ConnectionLost, Overdue, RetryTransaction
from penstock.storage.sql.postgresql.error_mapping import FAILURES, opening, translate
from penstock.testing.laws import law


def raised(state: str, *, severity: str = "ERROR", **fields: str) -> asyncpg.PostgresError:
    """As asyncpg makes it of what the server sends."""
    sent = {"C": state, "M": "some words.\nmore", "S": severity, "V": severity, **fields}
    return asyncpg.PostgresError.new(sent)


@law("E1")
@pytest.mark.parametrize(
    "state, kind",
    [
        ("40001", RetryTransaction),
        ("40P01", RetryTransaction),
        ("55P03", RetryTransaction),
        ("57014", Overdue),
        ("23505", RetryTransaction),
        ("57P01", ConnectionLost),
        ("57P02", ConnectionLost),
        ("57P03", ConnectionLost),
        ("57P05", ConnectionLost),
        ("25P03", ConnectionLost),
        ("08000", ConnectionLost),
        ("08003", ConnectionLost),
        ("08006", ConnectionLost),
        ("08P01", ConnectionLost),
        ("53300", StoreBusy),
        ("53200", StoreBusy),
        ("53100", StoreFull),
        ("25006", StoreReadOnly),
        ("28000", StoreUnavailable),
        ("28P01", StoreUnavailable),
        ("3D000", StoreUnavailable),
        ("57P04", StoreUnavailable),
        ("42501", StoreUnavailable),
        ("42P01", StoreTooOld),
        ("42703", StoreTooOld),
        ("42883", StoreTooOld),
        ("54000", TooLarge),
        ("54023", TooLarge),
        ("XX001", StoreCorrupt),
        ("XX002", StoreCorrupt),
        ("XX000", StoreError),
        ("42601", StoreError),
        ("23503", StoreError),
        ("ZZ999", StoreError),
    ],
)
@pytest.mark.parametrize("committing", [False, True])
def test_what_a_state_means(state: str, kind: type[Exception], committing: bool) -> None:
    found = translate(raised(state), committing=committing)
    assert type(found) is kind
    assert "some words. more" in str(found)
    if isinstance(found, Overdue):
        # The server says so itself: it has rolled the statement back.
        assert not found.committing
    elif isinstance(found, ConnectionLost):
        assert found.committing is committing
    if type(found) is StoreError:
        assert state in found.detail


@law("P2")
def test_whatever_ends_the_session_during_a_commit_leaves_its_outcome_unknown() -> None:
    """A full disk, say, on which the log cannot be written."""
    found = translate(raised("53100", severity="PANIC"), committing=True)
    assert isinstance(found, ConnectionLost)
    assert found.committing
    assert isinstance(translate(raised("53100"), committing=True), StoreFull)


@law("P2")
@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        OSError("anything"),
        TimeoutError(),
        ssl.SSLEOFError(8, "EOF"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InterfaceError("pool is closing"),
        asyncpg.InterfaceError("cannot perform operation: another operation is cancelling"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.InternalClientError("got result for unknown protocol state 3"),
        asyncpg.ProtocolError("not expected"),
    ],
)
@pytest.mark.parametrize("committing", [False, True])
def test_a_connection_that_is_gone(error: Exception, committing: bool) -> None:
    found = translate(error, committing=committing)
    assert isinstance(found, ConnectionLost)
    assert found.committing is committing
    assert str(found)
    assert isinstance(error, FAILURES)


@law("P2")
@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InterfaceError(
            "cannot call Connection.execute(): connection has been released back to the pool"
        ),
        asyncpg.InternalClientError(
            "cannot switch to state 12; another operation (2) is in progress"
        ),
    ],
)
def test_what_was_not_sent_was_not_committed(error: Exception) -> None:
    found = translate(error, committing=True)
    assert isinstance(found, ConnectionLost)
    assert not found.committing


def test_a_statement_that_the_schema_has_left_behind_is_made_again() -> None:
    stale = raised("0A000", R="RevalidateCachedQuery")
    assert isinstance(stale, asyncpg.InvalidCachedStatementError)
    assert isinstance(translate(stale, committing=False), RetryTransaction)
    outdated = asyncpg.OutdatedSchemaCacheError("the table has other columns now")
    assert isinstance(translate(outdated, committing=False), RetryTransaction)


def test_a_certificate_that_is_not_trusted_does_not_become_so() -> None:
    error = ssl.SSLCertVerificationError(1, "self-signed certificate")
    assert isinstance(translate(error, committing=False), StoreUnavailable)


@pytest.mark.parametrize(
    "error",
    [
        BadInput("ours already"),
        RetryTransaction("ours too"),
        ZeroDivisionError(),
        asyncpg.InterfaceError("cannot perform operation: another operation is in progress"),
        asyncpg.exceptions._base.DataError("invalid input for query argument $1"),
    ],
)
def test_what_is_a_mistake_stays_what_it_is(error: Exception) -> None:
    assert translate(error, committing=True) is error


def test_whoever_was_cancelled_stays_cancelled() -> None:
    with pytest.raises(asyncio.CancelledError):
        translate(asyncio.CancelledError(), committing=True)


@law("E1")
@pytest.mark.parametrize(
    "error, kind, words",
    [
        (ConnectionRefusedError(111, "refused"), StoreUnavailable, "DB cannot be reached"),
        (TimeoutError(), StoreUnavailable, "DB cannot be reached: it did not answer"),
        (raised("57P03"), StoreUnavailable, "DB cannot be reached: some words. more"),
        (asyncpg.InterfaceError("no SASL"), StoreUnavailable, "DB cannot be used: no SASL"),
        (raised("28P01"), StoreUnavailable, "password or the user is wrong"),
        (raised("3D000"), StoreUnavailable, "no such database"),
        (raised("53300"), StoreBusy, "no connection left"),
    ],
)
def test_who_cannot_open_a_store_is_told_why(
    error: Exception, kind: type[PenstockError], words: str
) -> None:
    found = opening(error, "DB")
    assert type(found) is kind
    assert words in str(found)
