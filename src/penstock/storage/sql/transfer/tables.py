"""The tables that a copy takes along, and the statements that read and write them.

Rows are the same in both dialects, apart from the types of a few columns, which ``to_row`` and
``from_row`` translate. Left out is what belongs to one database: its migrations, its identity,
and what its servers have leased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.storage.sql.migrations import UNFINISHED

__all__ = ["GROUPS", "TABLES", "Table", "from_row", "statements", "to_row"]

#: The ``until`` of a group that is never due and never expires, on MySQL.
_NEVER: Final = (1 << 63) - 1
_ROWS: Final = 1_000
_SEGMENTS: Final = 32
_LETTERS: Final = "abcdefgh"


class Table(Struct, frozen=True):
    """One table, in the order of its primary key."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """The names, and the types of PostgreSQL."""
    keys: int
    """How many of the first columns are the primary key."""
    numbered: bool = False
    """Whether the database assigns the last column of the key."""
    page: int = _ROWS
    """Rows per read."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(name for name, _ in self.columns)

    def after(self, row: Sequence[object]) -> dict[str, object]:
        """The parameters that continue after a row."""
        return {f"key_{letter}": row[n] for n, letter in enumerate(_LETTERS[: self.keys])}


def _table(name: str, keys: int, columns: str, **options: Any) -> Table:
    pairs = (column.split() for column in columns.split(","))
    return Table(name, tuple((one, kind) for one, kind in pairs), keys, **options)


TABLES: Final = (
    _table(
        "penstock_tenant",
        1,
        "number integer, name text, version bigint, archived bigint, trimmed bigint",
        numbered=True,
    ),
    _table(
        "penstock_queue",
        1,
        "number integer, tenant integer, name text, policy bytea, filter_version integer, "
        "created_at bigint, cursor bigint, joining bigint, closing bigint, dead_paused boolean, "
        "epoch bigint",
        numbered=True,
    ),
    _table("penstock_dropped", 1, "queue integer, at bigint"),
    _table("penstock_topic_policy", 2, "tenant integer, name text, policy bytea"),
    _table(
        "penstock_log",
        1,
        "segment bigint, tenant integer, published_at bigint, entries integer, metadata bytea, "
        "payloads bytea",
        page=_SEGMENTS,
    ),
    _table(
        "penstock_run",
        4,
        "queue integer, phase smallint, rank smallint, row_key bigint, segment bigint, "
        "size integer, until bigint, partition_key bytea, consumer text, members bytea, "
        "record bytea",
    ),
    _table(
        "penstock_tally",
        3,
        "queue integer, kind smallint, number bigint, delta bigint",
        numbered=True,
    ),
    _table("penstock_partition", 2, "queue integer, partition_key bytea, unsettled bigint"),
    _table(
        "penstock_partition_tally",
        2,
        "queue integer, number bigint, partition_key bytea, delta bigint",
        numbered=True,
    ),
    _table("penstock_consumer", 2, "queue integer, name text, deadline bigint"),
    _table("penstock_owner", 2, "queue integer, partition_key bytea, consumer text, epoch bigint"),
    _table("penstock_replayed", 4, "queue integer, dead boolean, replay_id text, message bigint"),
    _table("penstock_newest", 1, "message bigint, tenant integer, entry bigint"),
    _table("penstock_key", 3, "tenant integer, topic text, key bytea, message bigint"),
    _table(
        "penstock_id",
        4,
        "tenant integer, kind smallint, topic text, id bytea, at bigint, until bigint, "
        "token bigint, message bigint, entry bigint, reply bytea",
    ),
    _table(
        "penstock_limit",
        2,
        "queue integer, kind smallint, rate bigint, milli_tokens bigint, filled_at bigint",
    ),
    _table("penstock_document", 2, "kind text, name text, value bytea"),
)
GROUPS: Final = next(table for table in TABLES if table.name == "penstock_run")

#: Columns that are text in PostgreSQL, and bytes in MySQL.
_BYTES_IN_MYSQL: Final = frozenset(
    {
        ("penstock_document", "kind"),
        ("penstock_document", "name"),
        ("penstock_replayed", "replay_id"),
    }
)


# -- statements ------------------------------------------------------------------------


def statements(dialect: str) -> dict[str, str]:
    """The statements for all tables: ``first_…``, ``next_…`` and ``into_…``, by name."""
    quote = '"{}"'.format if dialect == "postgresql" else "`{}`".format
    found = dict(_OTHERS[dialect])
    for table in TABLES:
        columns = ", ".join(map(quote, table.names))
        keys = [quote(name) for name in table.names[: table.keys]]
        select = f"SELECT {columns} FROM {table.name}"
        order = f"ORDER BY {', '.join(keys)} LIMIT {table.page}"
        found[f"first_{table.name}"] = f"{select} {order}"
        beyond = _beyond(dialect, keys)
        found[f"next_{table.name}"] = f"{select} WHERE {beyond} {order}"
        found[f"into_{table.name}"] = _insert(dialect, table, columns)
    ranked = [quote("rank"), quote("row_key")]
    found["groups_of_phase"] = (
        f"SELECT {', '.join(map(quote, GROUPS.names))} FROM penstock_run"
        f" WHERE queue = :queue AND phase = :phase AND ({_beyond(dialect, ranked)})"
        f" ORDER BY {', '.join(ranked)} LIMIT {_ROWS}"
    )
    return found


def _beyond(dialect: str, keys: Sequence[str]) -> str:
    """The rows after a key. MySQL finds a range of the index in alternatives only."""
    names = [f":key_{letter}" for letter in _LETTERS[: len(keys)]]
    if dialect == "postgresql":
        return f"({', '.join(keys)}) > ({', '.join(names)})"
    alternatives = []
    for n, (key, name) in enumerate(zip(keys, names, strict=True)):
        same = [f"{k} = {v}" for k, v in zip(keys[:n], names[:n], strict=True)]
        alternatives.append(f"({' AND '.join([*same, f'{key} > {name}'])})")
    return " OR ".join(alternatives)


def _insert(dialect: str, table: Table, columns: str) -> str:
    if dialect == "mysql":
        return f"INSERT INTO {table.name} ({columns}) VALUES :rows"
    arrays = ", ".join(f"${n}::{kind}[]" for n, (_, kind) in enumerate(table.columns, 1))
    return (
        f"INSERT INTO {table.name} ({columns}) OVERRIDING SYSTEM VALUE"
        f" SELECT * FROM unnest({arrays})"
    )


_FINGERPRINT: Final = """
SELECT (SELECT MAX(number) FROM penstock_tally), (SELECT COUNT(*) FROM penstock_tally),
    (SELECT SUM(version) FROM penstock_tenant), (SELECT COUNT(*) FROM penstock_run),
    (SELECT COUNT(*) FROM penstock_document), (SELECT SUM(LENGTH(value)) FROM penstock_document),
    (SELECT COUNT(*) FROM penstock_id), (SELECT SUM(deadline) FROM penstock_consumer)
"""
_COMMON: Final = {
    "fingerprint": _FINGERPRINT,
    "live_servers": "SELECT COUNT(*) FROM penstock_server WHERE until > :now",
    "all_queues": "SELECT number, tenant, name FROM penstock_queue ORDER BY number",
    "find_marker": f"SELECT number FROM penstock_migration WHERE number = {UNFINISHED}",
    "remove_marker": f"DELETE FROM penstock_migration WHERE number = {UNFINISHED}",
    "remove_store": "DELETE FROM penstock_store",
}
_MARKER: Final = f"VALUES ({UNFINISHED}, '{UNFINISHED}_unfinished_copy', ''"
_OTHERS: Final[Mapping[str, Mapping[str, str]]] = {
    "postgresql": {
        **_COMMON,
        "mark_unfinished": (
            "INSERT INTO penstock_migration (number, name, checksum, applied_at)"
            f" {_MARKER}, 0) ON CONFLICT (number) DO NOTHING"
        ),
        "set_given": "SELECT setval('penstock_log_segment_seq', :given)",
        **{
            f"number_{name}": (
                f"SELECT setval('{name}_number_seq', MAX(number)) FROM {name}"
                " HAVING MAX(number) > 0"
            )
            for name in (table.name for table in TABLES if table.numbered)
        },
    },
    "mysql": {
        **_COMMON,
        "mark_unfinished": (
            "INSERT IGNORE INTO penstock_migration (number, name, checksum, done, applied_at)"
            f" {_MARKER}, 0, 0)"
        ),
        # InnoDB numbers what comes next above the highest number that a table ever had.
        "set_given": (
            "INSERT INTO penstock_log (segment, tenant, published_at, entries, metadata, payloads)"
            " VALUES (:given, 0, 0, 0, '', '')"
        ),
        "segment_exists": "SELECT segment FROM penstock_log WHERE segment = :given",
        "unset_given": "DELETE FROM penstock_log WHERE segment = :given AND tenant = 0",
    },
}


# -- rows ------------------------------------------------------------------------------


def _converter(
    table: Table, dialect: str, conversions: Mapping[str, Callable[[Any], Any]]
) -> tuple[tuple[int, Callable[[Any], Any]], ...]:
    def found() -> Iterator[tuple[int, Callable[[Any], Any]]]:
        for n, (name, kind) in enumerate(table.columns):
            if dialect == "mysql" and (table.name, name) in _BYTES_IN_MYSQL:
                yield n, conversions["named"]
            elif dialect == "mysql" and table is GROUPS and name == "until":
                yield n, conversions["until"]
            elif kind in conversions:
                yield n, conversions[kind]

    return tuple(found())


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "named": lambda value: bytes(value).decode(),
    "until": lambda value: None if value == _NEVER else value,
    "boolean": bool,
}
_WRITE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "named": lambda value: value.encode(),
    "until": lambda value: _NEVER if value is None else value,
    "boolean": bool,
}
_READERS: Final = {
    (table.name, dialect): _converter(table, dialect, _READ)
    for table in TABLES
    for dialect in _OTHERS
}
_WRITERS: Final = {
    (table.name, dialect): _converter(table, dialect, _WRITE)
    for table in TABLES
    for dialect in _OTHERS
}


def to_row(table: Table, dialect: str, stored: Sequence[Any]) -> list[Any]:
    """A row as it is in every dialect."""
    row = list(stored)
    for n, convert in _READERS[table.name, dialect]:
        row[n] = convert(row[n])
    return row


def from_row(table: Table, dialect: str, row: Sequence[Any]) -> list[Any]:
    """A row as the dialect stores it."""
    stored = list(row)
    for n, convert in _WRITERS[table.name, dialect]:
        stored[n] = convert(stored[n])
    return stored
