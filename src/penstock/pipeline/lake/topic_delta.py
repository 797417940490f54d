"""The Delta log of one topic table, which has the payloads of a topic as typed columns.

The table is derived from ``messages``. Its newest commit says up to which offset, and by which
schema. As in ``delta``, a commit is refused unless it is the next one after the version read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.errors import Conflict, LakeCorrupt, PipelineError
from penstock.extras import importing

with importing("spark", "deltalake"):
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

__all__ = ["TopicFile", "TopicLog", "TopicState"]

#: Where a commit has the state of the table.
_STATE: Final = "penstock_topic"
_PROPERTIES: Final = {
    "delta.checkpointInterval": "64",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
#: Commits of other programs that are looked through for the newest one of a run.
_LOOKED_THROUGH: Final = 100


class TopicFile(Struct, frozen=True):
    """A data file; its path is below the table."""

    path: str
    rows: int
    bytes: int
    statistics: Mapping[str, Any] = {}
    """For its entry in the log."""


class TopicState(Struct, frozen=True, kw_only=True):
    """What the newest commit says."""

    format: int = 1
    through: int
    """The table has the topic's messages below this offset of the log."""
    schema_type: str
    schema: str
    """The schema of the topic by which the columns were made."""


class TopicLog:
    """Reads and appends commits."""

    def __init__(self, uri: str, topic: str, options: Mapping[str, str]) -> None:
        self._uri = uri
        self._topic = topic
        self._options = dict(options) or None
        self.version = -1
        """The version read last; -1: there is no table."""
        self.state: TopicState | None = None
        """None: there is no table, or no commit of a run that the log still has."""
        self.fields: tuple[pa.Field, ...] = ()
        self.files: tuple[TopicFile, ...] = ()
        self._delta: DeltaTable | None = None

    def read(self) -> None:
        """Read the newest version."""
        try:
            if self._delta is None and DeltaTable.is_deltatable(self._uri, self._options):
                self._delta = DeltaTable(self._uri, storage_options=self._options)
            elif self._delta is not None:
                self._delta.update_incremental()
            if self._delta is None or self._delta.version() == self.version:
                return
            delta = self._delta
            found: list[Any] = []
            for limit in (1, _LOOKED_THROUGH):  # Nearly always the newest one.
                found = found or [one[_STATE] for one in delta.history(limit) if _STATE in one]
            self.state = msgspec.convert(found[0], TopicState) if found else None
            actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
            self.fields = tuple(pa.schema(delta.schema().to_arrow()))
            self.files = tuple(
                TopicFile(one["path"], one.get("num_records") or 0, one["size_bytes"])
                for one in actions
            )
            self.version = delta.version()
        except (DeltaError, FileNotFoundError, ValueError) as error:
            raise LakeCorrupt(f"The topic table {self._uri} cannot be read: {error}.") from error
        except OSError as error:
            raise PipelineError(
                f"The topic table {self._uri} cannot be reached: {error}."
            ) from error

    @staticmethod
    def normal(fields: Sequence[pa.Field]) -> tuple[pa.Field, ...]:
        """Fields as a table has them: Delta knows fewer types and names than Arrow."""
        schema = Schema.from_arrow(pa.schema(list(fields)))
        return tuple(pa.schema(schema.to_arrow()))

    def replace(
        self, schema: pa.Schema, files: Sequence[TopicFile], state: TopicState, at: int
    ) -> None:
        """Make these files, with this schema, the whole table."""
        added = [_add(file, at, data_change=True) for file in files]
        converted = Schema.from_arrow(schema)
        if self._delta is None:
            self._write(
                lambda: create_table_with_add_actions(
                    self._uri,
                    converted,
                    added,
                    mode="error",
                    partition_by=[],
                    name=self._topic,
                    configuration=_PROPERTIES,
                    storage_options=self._options,
                    commit_properties=_properties(state),
                )
            )
        else:
            self._commit(added, "overwrite", converted, state)

    def append(
        self, schema: pa.Schema, files: Sequence[TopicFile], state: TopicState, at: int
    ) -> None:
        """Add files. The columns of ``schema`` have been added before."""
        added = [_add(file, at, data_change=True) for file in files]
        self._commit(added, "append", Schema.from_arrow(schema), state)

    def compact(
        self, schema: pa.Schema, added: TopicFile, removed: Sequence[TopicFile], at: int
    ) -> None:
        """Replace files by one with the same rows."""
        actions: list[Any] = [_add(added, at, data_change=False)]
        actions += [RemoveAction(file.path, False, at, file.bytes, {}) for file in removed]
        assert self.state is not None, "only a table of a run is compacted"
        self._commit(actions, "append", Schema.from_arrow(schema), self.state)

    def widen(self, schema: pa.Schema) -> None:
        """Add the columns, and fields within columns, that the table does not have."""
        delta = self._delta
        assert delta is not None, "a table is read before it is changed"
        more = pa.schema([field for field in schema if field not in self.fields])
        if more.names:
            fields = Schema.from_arrow(more).fields
            properties = CommitProperties(max_commit_retries=0)
            self._write(lambda: delta.alter.add_columns(fields, commit_properties=properties))
            self.read()

    def _commit(self, actions: Sequence[Any], mode: str, schema: Any, state: TopicState) -> None:
        delta = self._delta
        assert delta is not None, "a table is read before a commit"
        self._write(
            lambda: delta.create_write_transaction(
                list(actions), mode, schema, [], commit_properties=_properties(state)
            )
        )

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except CommitFailedError as error:
            raise Conflict(
                f"Another program has changed the topic table {self._uri}.", field="lake"
            ) from error
        except DeltaError as error:
            raise PipelineError(
                f"The topic table {self._uri} cannot be written: {error}."
            ) from error
        self.read()

    def expired(self, hours: int) -> list[str]:
        """Files below the table that are not in it, for longer than these hours."""
        delta = DeltaTable(self._uri, storage_options=self._options)
        found = delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        return [str(path) for path in found]


def _add(file: TopicFile, at: int, *, data_change: bool) -> AddAction:
    statistics = json.dumps({"numRecords": file.rows, **file.statistics})
    return AddAction(file.path, file.bytes, {}, at, data_change, statistics)


def _properties(state: TopicState) -> CommitProperties:
    return CommitProperties(
        custom_metadata={_STATE: msgspec.to_builtins(state)}, max_commit_retries=0
    )
