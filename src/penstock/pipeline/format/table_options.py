"""The options of a table that ``CREATE TABLE … USING penstock`` has made.

Spark shows a Python source the options of a table once, when it asks for the schema, and later
only those of the statement. The catalog stores the schema, though, and hands it back with every
read and INSERT. So the options travel in the metadata of the schema's fields (decision 0104).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from penstock.client.credentials import check_source
from penstock.errors import BadInput

__all__ = ["OF_SERVER", "declared", "is_whole_row", "with_options", "written"]

_KEY: Final = "penstock"
#: Spark repeats every option of ``CREATE TABLE`` with this prefix, beside the table's properties.
_PREFIX: Final = "option."
_PROVIDER: Final = "provider"
_FILE: Final = "file:"
#: Columns that only the server sets. A row with all of them comes from INSERT.
OF_SERVER: Final = frozenset({"offset", "id", "timestamp", "size", "checksum"})


def declared(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of the table that is being created; None if none is."""
    given = {name.lower(): value for name, value in options.items()}
    if _PROVIDER not in given:
        return None
    found = {
        name.removeprefix(_PREFIX): value
        for name, value in given.items()
        if name.startswith(_PREFIX)
    }
    credential = found.get("credential")
    if credential is not None:
        check_source(credential)
        if not credential.startswith(_FILE):
            raise BadInput(
                "The catalog shows the options of a table to its readers: let credential be file: "
                "and a path, or set PENSTOCK_CREDENTIAL and leave credential and url out.",
                field="credential",
            )
    return found


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a new table, with the table's options."""
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, {_KEY: dict(options)})
            for field in schema.fields
        ]
    )


def written(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read or an INSERT: the statement's, and before them the table's.

    A statement with a server of its own is about no table, although its rows may come from one.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "url" in given or "path" in given:
        return given
    return {**_carried(schema), **given}


def _carried(schema: StructType) -> dict[str, str]:
    for field in schema.fields:
        found: Any = (field.metadata or {}).get(_KEY)
        if isinstance(found, dict):
            return found
    return {}


def is_whole_row(schema: StructType) -> bool:
    """Whether rows have all columns of the log, as those of an INSERT into a table or a view."""
    return {field.name for field in schema.fields} >= OF_SERVER
