"""Classifies errors of asyncpg and PostgreSQL by their SQLSTATE.

See ``error_mapping`` of the package above for the classes.
"""

from __future__ import annotations

from typing import Final

import asyncpg

from penstock.errors import StoreUnavailable
from penstock.storage.sql import error_mapping
from penstock.storage.sql.database import ConnectionLost, Overdue, RetryTransaction

__all__ = ["FAILURES", "opening", "translate"]

#: Errors of the driver that are not bugs of its caller.
FAILURES: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)

#: Serialization failure, deadlock, lock timeout, and a key that another transaction wrote first:
#: all rolled back, and retried against the current data.
_AGAIN: Final = frozenset({"40001", "40P01", "55P03", "23505"})
#: The server cancelled a statement, mostly because of ``statement_timeout``, and rolled it back.
_CANCELLED: Final = "57014"
#: Shutdowns and timeouts that end the session.
_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
#: Severities that end the session.
_FATAL: Final = frozenset({"FATAL", "PANIC"})
_MEANT: Final[dict[str, error_mapping.Meaning]] = {
    "53300": error_mapping.NO_CONNECTION,
    "53200": error_mapping.NO_MEMORY,
    "53100": error_mapping.DISK_FULL,
    "25006": error_mapping.NO_WRITES,
    "28000": (StoreUnavailable, "The database does not accept this user"),
    "28P01": error_mapping.WRONG_PASSWORD,
    "3D000": error_mapping.NO_DATABASE,
    "57P04": (StoreUnavailable, "The database was dropped"),
    "42501": error_mapping.NO_PRIVILEGE,
    "42P01": error_mapping.SCHEMA_MISSING,
    "42703": error_mapping.OTHER_SCHEMA,
    "42883": error_mapping.OTHER_SCHEMA,
    "XX001": error_mapping.DAMAGE,
    "XX002": error_mapping.DAMAGED_INDEX,
}
#: Classes of SQLSTATEs: connection exceptions, and limits of PostgreSQL itself.
_CONNECTION: Final = "08"
_LIMIT: Final = "54"


def translate(error: BaseException, *, committing: bool) -> Exception:
    """The exception to raise for ``error``; ``committing`` if COMMIT had been sent."""
    match error:
        case asyncpg.PostgresError():
            return _by_state(error, committing=committing)
        case asyncpg.OutdatedSchemaCacheError():
            return RetryTransaction(_words(error))
        case asyncpg.InternalClientError() if "cannot switch to state" in str(error):
            # The connection was closed while it was idle: the statement, perhaps a COMMIT or a
            # change that commits, was not sent.
            return ConnectionLost(_words(error), committing=False)
        case asyncpg.InternalClientError():
            return ConnectionLost(_words(error), committing=committing)
        case asyncpg.InterfaceError() if "released" in str(error):
            # The pool took back a connection that was lost between two statements: the next one,
            # perhaps a COMMIT, was not sent.
            return ConnectionLost(_words(error), committing=False)
        case asyncpg.InterfaceError() if "clos" in str(error) or "cancelling" in str(error):
            return ConnectionLost(_words(error), committing=committing)
        case _:
            return error_mapping.translate_network(error, committing=committing)


def opening(error: BaseException, place: str) -> Exception:
    """The exception to raise if the first connection to ``place`` fails with ``error``."""
    if isinstance(error, asyncpg.InterfaceError):
        return StoreUnavailable(f"{place} cannot be used: {_words(error)}.", field="url")
    return error_mapping.unreachable(translate(error, committing=False), place)


def _by_state(error: asyncpg.PostgresError, *, committing: bool) -> Exception:
    state = error.sqlstate or ""
    words = _words(error)
    if state in _AGAIN or isinstance(error, asyncpg.InvalidCachedStatementError):
        return RetryTransaction(words)
    if state == _CANCELLED:
        return Overdue(words, committing=False)
    if state in _LOST or state.startswith(_CONNECTION):
        return ConnectionLost(words, committing=committing)
    if committing and getattr(error, "severity_en", None) in _FATAL:
        return ConnectionLost(words, committing=True)
    if state.startswith(_LIMIT):
        return error_mapping.refused(error_mapping.TOO_MUCH, state, words)
    return error_mapping.refused(_MEANT.get(state), state, words)


def _words(error: Exception) -> str:
    """The error message, without hints and details."""
    said = str(error.args[0]) if isinstance(error, asyncpg.PostgresError) else str(error)
    return error_mapping.one_line(said, error)
