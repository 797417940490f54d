"""What a failure means to the engine, as far as that is the same whatever the database.

- ``Again``: the database rolled the transaction back, and the same one may succeed.
- ``Lost``: the connection is gone; only during a commit is the outcome unknown (P2).
- ``Overdue``: a statement missed its deadline, and its connection is dropped.
- an error of ``penstock.errors``: somebody has to do something about it, or try later.

What is none of these is a mistake of the engine, and stays what it is. The ``failures`` of a
dialect tell them apart, by the codes that its server and its driver have.
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
from penstock.storage.sql.database import Again, Lost, Overdue

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

#: How a failure is raised, and what is said before the database's own words.
Meaning: TypeAlias = tuple[type[PenstockError], str]

NO_CONNECTION: Final = (StoreBusy, "The database has no connection left")
NO_MEMORY: Final = (StoreBusy, "The database has no memory left")
NO_WRITES: Final = (StoreReadOnly, "The database takes no writes")
WRONG_PASSWORD: Final = (StoreUnavailable, "The password or the user is wrong")
NO_DATABASE: Final = (StoreUnavailable, "There is no such database")
NO_PRIVILEGE: Final = (StoreUnavailable, "The user lacks a privilege")
DISK_FULL: Final = (StoreFull, "The database's disk is full")
SCHEMA_MISSING: Final = (StoreTooOld, "The schema is missing or older than this Penstock's")
OTHER_SCHEMA: Final = (StoreTooOld, "The schema is not the one that this Penstock knows")
DAMAGE: Final = (StoreCorrupt, "The database found damage")
DAMAGED_INDEX: Final = (StoreCorrupt, "The database found a damaged index")
TOO_MUCH: Final = (TooLarge, "The database cannot store as much at once")


def refused(meaning: Meaning | None, code: object, words: str) -> PenstockError:
    """What the database refused; None: for a reason that only its code names."""
    kind, said = meaning or (StoreError, f"The database refused ({code})")
    return kind(f"{said}: {words}.")


def translate_network(error: BaseException, *, committing: bool) -> Exception:
    """What to raise for an error that is not the driver's."""
    match error:
        case ssl.SSLCertVerificationError():
            words = one_line(str(error), error)
            return StoreUnavailable(f"The database's certificate is not trusted: {words}.")
        case TimeoutError():
            return Overdue("it did not answer in time", committing=committing)
        case OSError() | EOFError():
            return Lost(one_line(str(error), error), committing=committing)
        case Exception():
            return error
        case _:
            # Not ours to answer: a cancelled task, an interrupt.
            raise error


def unreachable(found: Exception, place: str) -> Exception:
    """What to raise when the first connection to ``place`` was asked for.

    Where a running store would wait for a connection that was lost, nobody has had one yet: the
    address is more likely wrong than the network.
    """
    if isinstance(found, Lost | Again):
        return StoreUnavailable(f"{place} cannot be reached: {found}.", field="url")
    return found


def raise_as(meant: Exception, error: BaseException) -> NoReturn:
    """Raise what the error means to the engine."""
    if meant is error:
        raise error
    raise meant from error


def one_line(said: str, error: BaseException) -> str:
    """What an error says, on one line, and its name where it says nothing."""
    return " ".join(said.split()).rstrip(".") or type(error).__name__
