"""Classifies errors of asyncmy, MySQL and MariaDB by their number.

See ``error_mapping`` of the package above for the classes.
"""

from __future__ import annotations

import ssl
from typing import Final

import asyncmy

from penstock.errors import StoreBusy, StoreReadOnly, StoreUnavailable, TooLarge
from penstock.storage.sql import error_mapping
from penstock.storage.sql.database import ConnectionLost, Overdue, RetryTransaction

__all__ = ["FAILURES", "number_of", "opening", "translate"]

#: Errors of the driver and of the network.
FAILURES: Final = (asyncmy.MySQLError, OSError, EOFError)

_AGAIN: Final = frozenset(
    {
        1213,  # deadlock
        1205,  # lock wait timeout
        1020,  # the row has changed since it was read
        1062,  # another transaction wrote the key first
        1412,  # the table was altered meanwhile
        1615,  # the statement must be prepared again
        1317,  # the statement was killed
    }
)
#: The server ended a statement that took too long: MariaDB's number, and MySQL's.
_OVERDUE: Final = frozenset({1969, 3024})
_LOST: Final = frozenset(
    {
        *(2002, 2003, 2005),  # there is no server at the address
        *(2006, 2013, 2014, 2055),  # the connection broke
        *(1053, 1077, 1079, 1080),  # the server is shutting down
        *(1152, 1158, 1159, 1160, 1161, 1184),  # the server dropped the connection
        *(1927, 3169),  # the connection was killed
        *(4031, 4166),  # it was idle for too long
        1243,  # the server no longer knows the prepared statements
    }
)
_MEANT: Final[dict[int, error_mapping.Meaning]] = {
    1040: error_mapping.NO_CONNECTION,
    1203: (StoreBusy, "The user has no connection left"),
    1226: (StoreBusy, "The user has reached a resource limit"),
    1037: error_mapping.NO_MEMORY,
    1038: error_mapping.NO_MEMORY,
    1041: error_mapping.NO_MEMORY,
    1290: error_mapping.NO_WRITES,
    1792: (StoreReadOnly, "The transaction is read-only"),
    1836: error_mapping.NO_WRITES,
    1223: (StoreReadOnly, "The database is locked against writes"),
    1045: error_mapping.WRONG_PASSWORD,
    1698: error_mapping.WRONG_PASSWORD,
    1129: (StoreUnavailable, "The database does not accept connections from this host"),
    1130: (StoreUnavailable, "The database does not accept connections from this host"),
    1044: (StoreUnavailable, "The user may not use the database"),
    1049: error_mapping.NO_DATABASE,
    1142: error_mapping.NO_PRIVILEGE,
    1143: error_mapping.NO_PRIVILEGE,
    1227: error_mapping.NO_PRIVILEGE,
    1021: error_mapping.DISK_FULL,
    1114: error_mapping.DISK_FULL,
    1026: (StoreUnavailable, "The database cannot write"),
    1030: (StoreUnavailable, "The database cannot write"),
    1146: error_mapping.SCHEMA_MISSING,
    1054: error_mapping.OTHER_SCHEMA,
    1034: error_mapping.DAMAGED_INDEX,
    1194: error_mapping.DAMAGE,
    1712: error_mapping.DAMAGED_INDEX,
    1877: error_mapping.DAMAGE,
    1118: error_mapping.TOO_MUCH,
    1153: (TooLarge, "The request exceeds the database's max_allowed_packet"),
    2020: (TooLarge, "The request exceeds the database's max_allowed_packet"),
    1406: (TooLarge, "A name or a key is longer than its column"),
}
#: Errors of a COMMIT that was certainly not made.
_NOT_COMMITTED: Final = frozenset({1290, 1792, 1836, 1223})


def number_of(error: BaseException) -> int:
    """The number of an error; 0 if it has none."""
    first = error.args[0] if isinstance(error, asyncmy.MySQLError) and error.args else 0
    return first if isinstance(first, int) else 0


def translate(error: BaseException, *, committing: bool = False) -> Exception:
    """The exception to raise for ``error``; ``committing`` if COMMIT had been sent."""
    if isinstance(error, asyncmy.MySQLError):
        return _by_number(error, committing=committing)
    return error_mapping.translate_network(error, committing=committing)


def opening(error: BaseException, place: str) -> Exception:
    """The exception to raise if the first connection to ``place`` fails with ``error``."""
    return error_mapping.unreachable(translate(error), place)


def _by_number(error: asyncmy.MySQLError, *, committing: bool) -> Exception:
    number, words = number_of(error), _words(error)
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return translate(error.__cause__)
    if number in _AGAIN:
        return RetryTransaction(words)
    if number in _OVERDUE:
        return Overdue(words, committing=False)
    # Without a number, the driver is closed or cannot parse what it has read.
    broken = not number and isinstance(error, asyncmy.InterfaceError | asyncmy.InternalError)
    if number in _LOST or broken or (committing and number not in _NOT_COMMITTED):
        return ConnectionLost(words, committing=committing)
    return error_mapping.refused(_MEANT.get(number), number, words)


def _words(error: asyncmy.MySQLError) -> str:
    """The error message, without its number."""
    said = str(error.args[-1]) if error.args else ""
    return error_mapping.one_line(said or str(error), error)
