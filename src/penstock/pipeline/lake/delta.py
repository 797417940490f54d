"""The lake as Delta tables: the same files, plus the log of a Delta table.

Spark writes the Parquet files; a transaction of the ``deltalake`` library adds them. Each table of
the lake is a separate Delta table. The manifest stays authoritative: after every commit, and when
a run begins, the Delta table is brought to the manifest's set of files in one transaction that
carries the commit's number. If a run is killed in between, the next one catches up, and nothing
is added twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.errors import BadInput, PipelineError
from penstock.extras import importing
from penstock.pipeline.lake.commits import File, Table
from penstock.pipeline.lake.files import LocalFiles
from penstock.pipeline.lake.layout import HISTORY, MESSAGES
from penstock.pipeline.lake.reader import ARROW_SCHEMAS, PARTITIONS

with importing("delta", "deltalake"):
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, RemoveAction

if TYPE_CHECKING:
    from penstock.pipeline.lake.archive import Archiver

__all__ = ["APP", "sync"]

#: The application id of the transactions; their version is the manifest's commit number.
APP: Final = "penstock"
_TABLES: Final[tuple[Table, ...]] = (MESSAGES, HISTORY)


def sync(archiver: Archiver) -> None:
    """Bring the Delta tables to the manifest's set of files."""
    if not isinstance(archiver.files, LocalFiles):
        raise BadInput(
            "Delta tables need a lake on a local path; leave --table-format out.",
            field="table_format",
        )
    lake = archiver.manifest.lake
    for table in _TABLES:
        files = {_below(file): file for file in lake.of(table)}
        try:
            _sync_table(
                archiver.files.uri(table), table, files, lake.number, archiver.context.clock.now()
            )
        except DeltaError as error:
            raise PipelineError(f"The Delta table {table} cannot be written: {error}.") from error


def _sync_table(uri: str, table: Table, files: dict[str, File], number: int, now: int) -> None:
    schema, partitions = ARROW_SCHEMAS[table], list(PARTITIONS[table])
    if DeltaTable.is_deltatable(uri):
        delta = _with_columns(DeltaTable(uri), schema)
    else:
        delta = DeltaTable.create(uri, schema, partition_by=partitions, name=table)
    known = set(pa.table(delta.get_add_actions()).column("path").to_pylist())
    actions: list[Any] = [
        AddAction(path, file.bytes, _folders(path), now, True, _stats(file))
        for path, file in files.items()
        if path not in known
    ]
    actions += [
        RemoveAction(path, True, now, partition_values=_folders(path))
        for path in sorted(known - files.keys())
    ]
    if actions:
        delta.create_write_transaction(
            actions,
            "append",
            schema,
            partitions,
            commit_properties=CommitProperties(app_transactions=[Transaction(APP, number)]),
        )


def _with_columns(delta: DeltaTable, schema: pa.Schema) -> DeltaTable:
    """Add the columns that an earlier version did not have."""
    known = {field.name for field in delta.schema().fields}
    missing = [field for field in schema if field.name not in known]
    if missing:
        delta.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
    return delta


def _below(file: File) -> str:
    """The path of a file below its table."""
    return file.path.removeprefix(f"{file.table}/")


def _folders(path: str) -> dict[str, str | None]:
    """The partition values in the path."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {name: value for name, _, value in pairs}


def _stats(file: File) -> str:
    """Statistics that let readers skip the file."""
    number = "offset" if file.table == MESSAGES else "id"
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {number: file.first},
            "maxValues": {number: file.last},
            "nullCount": {number: 0},
        }
    )
