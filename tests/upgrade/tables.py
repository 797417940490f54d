"""The rows of a database, read from one server and written to another with the same schema."""

from __future__ import annotations

from typing import Final

from tests.private_server import Server

__all__ = ["Tables", "read_tables", "write_tables"]

#: By table, its columns and its rows, each value as a literal of the dialect.
Tables = dict[str, tuple[list[str], list[list[str]]]]
#: Tables that every database has its own rows in.
_OWN: Final = ("penstock_migration", "penstock_place", "penstock_function")

_COLUMNS: Final = """SELECT column_name, data_type FROM information_schema.columns
    WHERE table_schema = '{schema}' AND table_name = '{table}' ORDER BY ordinal_position"""
#: Tables are written in any order.
_UNCHECKED: Final = {
    "postgresql": "SET session_replication_role = replica",
    "mysql": "SET foreign_key_checks = 0",
}
_SEQUENCES: Final = "SELECT sequencename, last_value FROM pg_sequences WHERE last_value IS NOT NULL"


def read_tables(database: Server, name: str) -> Tables:
    """All rows of the tables of a store."""
    found: Tables = {}
    for table in sorted(database.tables(name)):
        if table in _OWN:
            continue
        columns = database.sql(_COLUMNS.format(schema=_schema(database, name), table=table), name)
        literals = ", ".join(_literal(database, column, kind) for column, kind in columns)
        rows = database.sql(f"SELECT {literals} FROM {table}", name)
        found[table] = [column for column, _ in columns], rows
    if database.SCHEME == "postgresql":
        found["sequences"] = ["name", "value"], database.sql(_SEQUENCES, name)
    return found


def write_tables(database: Server, name: str, tables: Tables) -> None:
    """Write the rows into a database that has the schema and no rows."""
    for table, (columns, rows) in tables.items():
        if table == "sequences":
            for sequence, value in rows:
                database.sql(f"SELECT setval('{sequence}', {value})", name)
        elif rows:
            names = ", ".join(_quoted(database, column) for column in columns)
            values = ", ".join(f"({', '.join(row)})" for row in rows)
            database.sql(f"DELETE FROM {table}", name)
            override = " OVERRIDING SYSTEM VALUE" if database.SCHEME == "postgresql" else ""
            insert = f"INSERT INTO {table} ({names}){override} VALUES {values}"
            database.sql(f"{_UNCHECKED[database.SCHEME]}; {insert}", name)


def _schema(database: Server, name: str) -> str:
    return "public" if database.SCHEME == "postgresql" else name


def _quoted(database: Server, column: str) -> str:
    return f'"{column}"' if database.SCHEME == "postgresql" else f"`{column}`"


def _literal(database: Server, column: str, kind: str) -> str:
    """An expression whose value is a literal that gives the column's value."""
    quoted = _quoted(database, column)
    if database.SCHEME == "postgresql":
        if kind == "bytea":
            text = f"'''\\x' || encode({quoted}, 'hex') || ''''"
        else:
            text = f"quote_literal({quoted}::text)"
    elif "blob" in kind or "binary" in kind:
        text = f"IF({quoted} = '', \"''\", CONCAT('0x', HEX({quoted})))"
    else:
        text = f"QUOTE({quoted})"
    return f"coalesce({text}, 'NULL')"
