"""What a failure of asyncmy, or of MySQL or MariaDB, means to the engine, by its number.

- ``Again``: the server rolled back, and the same transaction may succeed.
- ``Lost``: the connection is gone; only during a commit is the outcome unknown (P2).
- an error of ``penstock.errors``: somebody has to do something about it, or try later.

What is none of these is a mistake of the engine, and stays what it is.
"""

from __future__ import annotations

import ssl
from typing import Final, NoReturn

import asyncmy

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

__all__ = ["FAILURES", "number_of", "opening", "raise_as", "translate"]

#: What can go wrong between here and the server.
FAILURES: Final = (asyncmy.MySQLError, OSError, EOFError)

_AGAIN: Final = frozenset(
    {
        1213,  # deadlock
        1205,  # a lock was not had in time
        1020,  # the row has changed since it was read
        1062,  # another transaction wrote the key first
        1412,  # the table was altered meanwhile
        1615,  # prepare the statement again
        1317,  # the statement was killed
        1969,  # it took too long, says MariaDB
        3024,  # and so says MySQL
    }
)
_LOST: Final = frozenset(
    {
        *(2002, 2003, 2005),  # nobody answers there
        *(2006, 2013, 2014, 2055),  # the connection broke
        *(1053, 1077, 1079, 1080),  # the server is shutting down
        *(1152, 1158, 1159, 1160, 1161, 1184),  # it gave the connection up
        *(1927, 3169),  # the connection was killed
        *(4031, 4166),  # it was idle for too long
        1243,  # it does not know its own statements any more
    }
)
_MEANT: Final[dict[int, tuple[type[PenstockError], str]]] = {
    1040: (StoreBusy, "The database has no connection left"),
    1203: (StoreBusy, "The user has no connection left"),
    1226: (StoreBusy, "The user is at one of its bounds"),
    1037: (StoreBusy, "The database has no memory left"),
    1038: (StoreBusy, "The database has no memory left"),
    1041: (StoreBusy, "The database has no memory left"),
    1290: (StoreReadOnly, "The database takes no writes"),
    1792: (StoreReadOnly, "The transaction takes no writes"),
    1836: (StoreReadOnly, "The database takes no writes"),
    1223: (StoreReadOnly, "The database is locked against writes"),
    1045: (StoreUnavailable, "The password or the user is wrong"),
    1698: (StoreUnavailable, "The password or the user is wrong"),
    1129: (StoreUnavailable, "The database does not let this host in"),
    1130: (StoreUnavailable, "The database does not let this host in"),
    1044: (StoreUnavailable, "The user may not use the database"),
    1049: (StoreUnavailable, "There is no such database"),
    1142: (StoreUnavailable, "The user lacks a privilege"),
    1143: (StoreUnavailable, "The user lacks a privilege"),
    1227: (StoreUnavailable, "The user lacks a privilege"),
    1021: (StoreUnavailable, "The database's disk is full"),
    1114: (StoreUnavailable, "The database's disk is full"),
    1026: (StoreUnavailable, "The database cannot write"),
    1030: (StoreUnavailable, "The database cannot write"),
    1146: (StoreTooOld, "The schema is missing or older than this Penstock's"),
    1054: (StoreTooOld, "The schema is not the one that this Penstock knows"),
    1034: (StoreCorrupt, "The database found a damaged index"),
    1194: (StoreCorrupt, "The database found damage"),
    1712: (StoreCorrupt, "The database found a damaged index"),
    1877: (StoreCorrupt, "The database found damage"),
    1118: (TooLarge, "The database cannot store as much at once"),
    1153: (TooLarge, "The database takes no more at once than max_allowed_packet says"),
    2020: (TooLarge, "The database takes no more at once than max_allowed_packet says"),
    1406: (TooLarge, "A name or a key is longer than its column"),
}
#: What MySQL says of a commit that it has not made.
_NOT_COMMITTED: Final = frozenset({1290, 1792, 1836, 1223})


def number_of(error: BaseException) -> int:
    """The number of a failure; 0: it has none."""
    first = error.args[0] if isinstance(error, asyncmy.MySQLError) and error.args else 0
    return first if isinstance(first, int) else 0


def translate(error: BaseException, *, committing: bool = False) -> Exception:
    """What to raise for ``error``; ``committing`` says whether COMMIT was on its way."""
    match error:
        case asyncmy.MySQLError():
            return _by_number(error, committing=committing)
        case ssl.SSLCertVerificationError():
            return StoreUnavailable(f"The database's certificate is not trusted: {_words(error)}.")
        case OSError() | EOFError():
            return Lost(_words(error), committing=committing)
        case Exception():
            return error
        case _:
            # Not ours to answer: a cancelled task, an interrupt.
            raise error


def raise_as(meant: Exception, error: BaseException) -> NoReturn:
    """Raise what the error means to the engine."""
    if meant is error:
        raise error
    raise meant from error


def opening(error: BaseException, place: str) -> Exception:
    """What to raise for ``error`` when the first connection to ``place`` was asked for.

    Where a running store would wait for a connection that was lost, nobody has had one yet: the
    address is more likely wrong than the network.
    """
    found = translate(error)
    if isinstance(found, Lost | Again):
        return StoreUnavailable(f"{place} does not answer: {found}.", field="url")
    return found


def _by_number(error: asyncmy.MySQLError, *, committing: bool) -> Exception:
    number, words = number_of(error), _words(error)
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return translate(error.__cause__)
    if number in _AGAIN:
        return Again(words)
    # Without a number the driver is closed, or cannot go on with what it has read.
    broken = not number and isinstance(error, asyncmy.InterfaceError | asyncmy.InternalError)
    if number in _LOST or broken or (committing and number not in _NOT_COMMITTED):
        return Lost(words, committing=committing)
    kind, meaning = _MEANT.get(number, (StoreError, f"The database refused ({number})"))
    return kind(f"{meaning}: {words}.")


def _words(error: BaseException) -> str:
    """What the error says, on one line, and its name where it says nothing."""
    said = str(error.args[-1]) if isinstance(error, asyncmy.MySQLError) and error.args else ""
    return " ".join((said or str(error)).split()).rstrip(".") or type(error).__name__
