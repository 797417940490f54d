"""What a failure of asyncpg or of PostgreSQL means to the engine, by its SQLSTATE.

- ``Again``: PostgreSQL rolled the transaction back, and the same one may succeed.
- ``Lost``: the connection is gone; only during a commit is the outcome unknown (P2).
- an error of ``penstock.errors``: somebody has to do something about it, or try later.

What is none of these is a mistake of the engine, and stays what it is.
"""

from __future__ import annotations

import ssl
from typing import Final

import asyncpg

from penstock.errors import (
    PenstockError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreTooOld,
    StoreUnavailable,
    TooLarge,
)
from penstock.storage.sql.database import Again, Lost

__all__ = ["FAILURES", "opening", "translate"]

#: Everything that the driver raises for what is not a mistake of its caller.
FAILURES: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)

#: Serialization failure, deadlock, lock not had in time, statement cancelled, and a key that
#: another transaction wrote first: all rolled back, and made again against what is there now.
_AGAIN: Final = frozenset({"40001", "40P01", "55P03", "57014", "23505"})
#: Shutdowns and timeouts that end the session.
_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
#: Severities that end the session.
_FATAL: Final = frozenset({"FATAL", "PANIC"})
#: How the error is raised, and what it says before PostgreSQL's own words.
_MEANT: Final[dict[str, tuple[type[PenstockError], str]]] = {
    "53300": (StoreBusy, "The database has no connection left"),
    "53200": (StoreBusy, "The database has no memory left"),
    "53100": (StoreUnavailable, "The database's disk is full"),
    "25006": (StoreReadOnly, "The database takes no writes"),
    "28000": (StoreUnavailable, "The database does not let this user in"),
    "28P01": (StoreUnavailable, "The password or the user is wrong"),
    "3D000": (StoreUnavailable, "There is no such database"),
    "57P04": (StoreUnavailable, "The database was dropped"),
    "42501": (StoreUnavailable, "The user lacks a privilege"),
    "42P01": (StoreTooOld, "The schema is missing or older than this Penstock's"),
    "42703": (StoreTooOld, "The schema is not the one that this Penstock knows"),
    "XX001": (StoreCorrupt, "The database found damage"),
    "XX002": (StoreCorrupt, "The database found a damaged index"),
}
#: Classes of SQLSTATEs: connection exceptions, and limits of PostgreSQL itself.
_CONNECTION: Final = "08"
_LIMIT: Final = "54"


def translate(error: BaseException, *, committing: bool) -> Exception:
    """What to raise for ``error``; ``committing`` says whether COMMIT was on its way."""
    match error:
        case asyncpg.PostgresError():
            return _by_state(error, committing=committing)
        case asyncpg.OutdatedSchemaCacheError():
            return Again(_words(error))
        case ssl.SSLCertVerificationError():
            return StoreUnavailable(f"The database's certificate is not trusted: {_words(error)}.")
        case asyncpg.InternalClientError() | OSError():
            return Lost(_words(error), committing=committing)
        case asyncpg.InterfaceError() if "released" in str(error):
            # The pool took a connection back that was lost between two statements: whatever
            # came next, a COMMIT too, was not sent.
            return Lost(_words(error), committing=False)
        case asyncpg.InterfaceError() if "clos" in str(error) or "cancelling" in str(error):
            return Lost(_words(error), committing=committing)
        case Exception():
            return error
        case _:
            # Not ours to answer: a cancelled task, an interrupt.
            raise error


def opening(error: BaseException, place: str) -> Exception:
    """What to raise for ``error`` when the first connection to ``place`` was asked for.

    Where a running store would wait for a connection that was lost, nobody has had one yet: the
    address is more likely wrong than the network.
    """
    if isinstance(error, asyncpg.InterfaceError):
        return StoreUnavailable(f"{place} cannot be used: {_words(error)}.", field="url")
    found = translate(error, committing=False)
    if isinstance(found, Lost | Again):
        return StoreUnavailable(f"{place} cannot be reached: {found}.", field="url")
    return found


def _by_state(error: asyncpg.PostgresError, *, committing: bool) -> Exception:
    state = error.sqlstate or ""
    words = _words(error)
    if state in _AGAIN or isinstance(error, asyncpg.InvalidCachedStatementError):
        return Again(words)
    if state in _LOST or state.startswith(_CONNECTION):
        return Lost(words, committing=committing)
    if committing and getattr(error, "severity_en", None) in _FATAL:
        return Lost(words, committing=True)
    if state.startswith(_LIMIT):
        return TooLarge(f"The database cannot store as much at once: {words}.")
    kind, meaning = _MEANT.get(state, (StoreError, f"The database refused ({state})"))
    return kind(f"{meaning}: {words}.")


def _words(error: BaseException) -> str:
    """What the error says, on one line, and its name where it says nothing."""
    said = str(error.args[0]) if isinstance(error, asyncpg.PostgresError) else str(error)
    return " ".join(said.split()).rstrip(".") or type(error).__name__
