"""What a failure of asyncmy, or of MySQL or MariaDB, means to the engine, by its number.

See ``failing`` for what it may mean.
"""

from __future__ import annotations

import ssl
from typing import Final

import asyncmy

from penstock.errors import StoreBusy, StoreReadOnly, StoreUnavailable, TooLarge
from penstock.storage.sql import failing
from penstock.storage.sql.database import Again, Lost, Overdue

__all__ = ["FAILURES", "number_of", "opening", "translate"]

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
    }
)
#: The server ended a statement that took too long: MariaDB's number, and MySQL's.
_OVERDUE: Final = frozenset({1969, 3024})
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
_MEANT: Final[dict[int, failing.Meaning]] = {
    1040: failing.NO_CONNECTION,
    1203: (StoreBusy, "The user has no connection left"),
    1226: (StoreBusy, "The user is at one of its bounds"),
    1037: failing.NO_MEMORY,
    1038: failing.NO_MEMORY,
    1041: failing.NO_MEMORY,
    1290: failing.NO_WRITES,
    1792: (StoreReadOnly, "The transaction takes no writes"),
    1836: failing.NO_WRITES,
    1223: (StoreReadOnly, "The database is locked against writes"),
    1045: failing.WRONG_PASSWORD,
    1698: failing.WRONG_PASSWORD,
    1129: (StoreUnavailable, "The database does not let this host in"),
    1130: (StoreUnavailable, "The database does not let this host in"),
    1044: (StoreUnavailable, "The user may not use the database"),
    1049: failing.NO_DATABASE,
    1142: failing.NO_PRIVILEGE,
    1143: failing.NO_PRIVILEGE,
    1227: failing.NO_PRIVILEGE,
    1021: failing.DISK_FULL,
    1114: failing.DISK_FULL,
    1026: (StoreUnavailable, "The database cannot write"),
    1030: (StoreUnavailable, "The database cannot write"),
    1146: failing.SCHEMA_MISSING,
    1054: failing.OTHER_SCHEMA,
    1034: failing.DAMAGED_INDEX,
    1194: failing.DAMAGE,
    1712: failing.DAMAGED_INDEX,
    1877: failing.DAMAGE,
    1118: failing.TOO_MUCH,
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
    if isinstance(error, asyncmy.MySQLError):
        return _by_number(error, committing=committing)
    return failing.translate_network(error, committing=committing)


def opening(error: BaseException, place: str) -> Exception:
    """What to raise for ``error`` when the first connection to ``place`` was asked for."""
    return failing.unreachable(translate(error), place)


def _by_number(error: asyncmy.MySQLError, *, committing: bool) -> Exception:
    number, words = number_of(error), _words(error)
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return translate(error.__cause__)
    if number in _AGAIN:
        return Again(words)
    if number in _OVERDUE:
        return Overdue(words, committing=False)
    # Without a number the driver is closed, or cannot go on with what it has read.
    broken = not number and isinstance(error, asyncmy.InterfaceError | asyncmy.InternalError)
    if number in _LOST or broken or (committing and number not in _NOT_COMMITTED):
        return Lost(words, committing=committing)
    return failing.refused(_MEANT.get(number), number, words)


def _words(error: asyncmy.MySQLError) -> str:
    """What the error says, without its number."""
    said = str(error.args[-1]) if error.args else ""
    return failing.one_line(said or str(error), error)
