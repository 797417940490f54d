"""The classes of database errors that the dialects share.

- ``RetryTransaction``: the database rolled the transaction back; a retry may succeed.
- ``ConnectionLost``: the connection is gone; only during a commit is the outcome unknown (P2).
- ``Overdue``: a statement missed its deadline, and its connection was dropped.
- an error of ``penstock.errors``: an operator has to act, or the caller should retry later.

Any other error is a bug and propagates unchanged. The ``error_mapping`` module of each dialect
classifies the error codes of its server and driver.
"""

from __future__ import annotations

import ssl
from typing import Final, NoReturn, TypeAlias

from penstock.errors import (
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

__all__ = [
    "DAMAGE",
    "DAMAGED_INDEX",
    "DISK_FULL",
    "NO_CONNECTION",
    "NO_DATABASE",
    "NO_MEMORY",
    "NO_PRIVILEGE",
    "NO_WRITES",
    "OTHER_SCHEMA",
    "SCHEMA_MISSING",
    "TOO_MUCH",
    "WRONG_PASSWORD",
    "Meaning",
    "one_line",
    "raise_as",
    "refused",
    "translate_network",
    "unreachable",
]

#: The error class, and the text before the database's own message.
Meaning: TypeAlias = tuple[type[PenstockError], str]

NO_CONNECTION: Final = (StoreBusy, "The database has no connection left")
NO_MEMORY: Final = (StoreBusy, "The database has no memory left")
NO_WRITES: Final = (StoreReadOnly, "The database does not accept writes")
WRONG_PASSWORD: Final = (StoreUnavailable, "The password or the user is wrong")
NO_DATABASE: Final = (StoreUnavailable, "There is no such database")
NO_PRIVILEGE: Final = (StoreUnavailable, "The user lacks a privilege")
DISK_FULL: Final = (StoreFull, "The database's disk is full")
SCHEMA_MISSING: Final = (StoreTooOld, "The schema is missing or older than this Penstock's")
OTHER_SCHEMA: Final = (StoreTooOld, "The schema is not the one that this Penstock knows")
DAMAGE: Final = (StoreCorrupt, "The database found damage")
DAMAGED_INDEX: Final = (StoreCorrupt, "The database found a damaged index")
TOO_MUCH: Final = (TooLarge, "The database cannot store that much in one call")


def refused(meaning: Meaning | None, code: object, words: str) -> PenstockError:
    """The error for a refused statement; ``meaning`` is None for an unclassified code."""
    kind, said = meaning or (StoreError, f"The database refused ({code})")
    return kind(f"{said}: {words}.")


def translate_network(error: BaseException, *, committing: bool) -> Exception:
    """The exception to raise for an error that is not the driver's own."""
    match error:
        case ssl.SSLCertVerificationError():
            words = one_line(str(error), error)
            return StoreUnavailable(f"The database's certificate is not trusted: {words}.")
        case TimeoutError():
            return Overdue("it did not answer in time", committing=committing)
        case OSError() | EOFError():
            return ConnectionLost(one_line(str(error), error), committing=committing)
        case Exception():
            return error
        case _:
            # Not an error to translate: a cancelled task, an interrupt.
            raise error


def unreachable(found: Exception, place: str) -> Exception:
    """The exception to raise if the first connection to ``place`` fails.

    A running store would retry after a lost connection. Before the first connection, the address
    is more likely to be wrong than the network.
    """
    if isinstance(found, ConnectionLost | RetryTransaction):
        return StoreUnavailable(f"{place} cannot be reached: {found}.", field="url")
    return found


def raise_as(meant: Exception, error: BaseException) -> NoReturn:
    """Raise the translated error, with the original as its cause."""
    if meant is error:
        raise error
    raise meant from error


def one_line(said: str, error: BaseException) -> str:
    """The message of an error on one line, or its class name if the message is empty."""
    return " ".join(said.split()).rstrip(".") or type(error).__name__
