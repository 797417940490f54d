"""The Delta log of one table: the only module that uses the library ``deltalake``.

A commit is refused unless it is the next one after the version that was read, so of two writers
one wins. On a disk that is a hard link, on an object store a conditional write. Every commit
carries the state of the lake in its ``commitInfo``, so the newest commit of a run is enough to
know what the table holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct

from penstock.errors import LakeCorrupt, PipelineError
from penstock.extras import importing
from penstock.pipeline.lake.commits import File, Table
from penstock.pipeline.lake.statistics import file_of, statistics

with importing("spark", "deltalake"):
    from deltalake import (
        CommitProperties,
        DeltaTable,
        PostCommitHookProperties,
        Schema,
        Transaction,
    )
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

__all__ = ["CHECKPOINT_EVERY", "DeltaLog", "Snapshot"]

#: The application of the transactions; their version is the number of the commit.
_APP: Final = "penstock"
#: Where a commit has the state of the lake.
_STATE: Final = "penstock"
#: Commits between two checkpoints.
CHECKPOINT_EVERY: Final = 64
_PROPERTIES: Final = {
    # Checkpoints and the removal of old commits follow a commit that has the state of the lake.
    # Other programs must not remove the only commit that has it.
    "delta.enableExpiredLogCleanup": "false",
    "delta.checkpointInterval": "1000000",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
#: Commits of other programs that are looked through for the newest one of a run.
_LOOKED_THROUGH: Final = 10_000


class Snapshot(Struct, frozen=True):
    """A table at one version."""

    version: int
    partitions: tuple[str, ...]
    columns: tuple[str, ...]
    state: Any
    """What the newest commit of a run says of the lake; None: no commit of a run was found."""
    files: Sequence[File]
    """Paths are below the lake. Digest and payload bytes are not in the log."""


class DeltaLog:
    """Reads and appends commits of one table."""

    def __init__(self, uri: str, table: Table, options: Mapping[str, str]) -> None:
        self._uri = uri
        self._table: Table = table
        self._options = dict(options) or None
        self._delta: DeltaTable | None = None

    def read(self, known: int | None = None) -> Snapshot | None:
        """The newest version; None if there is no table, or if it is the one ``known``."""
        try:
            if self._delta is None:
                if not DeltaTable.is_deltatable(self._uri, self._options):
                    return None
                self._delta = DeltaTable(self._uri, storage_options=self._options)
            else:
                self._delta.update_incremental()
            if self._delta.version() == known:
                return None
            return self._snapshot(self._delta)
        except (DeltaError, FileNotFoundError, ValueError) as error:
            self._delta = None
            raise LakeCorrupt(f"The Delta log {self._uri} cannot be read: {error}.") from error
        except OSError as error:
            self._delta = None
            raise PipelineError(
                f"The Delta log {self._uri} cannot be reached: {error}. Check the address, and "
                "the credentials of Spark's session or of the environment."
            ) from error

    def _snapshot(self, delta: DeltaTable) -> Snapshot:
        limit, state = 1, None
        while state is None and limit <= _LOOKED_THROUGH:
            commits = delta.history(limit)
            state = next((one[_STATE] for one in commits if _STATE in one), None)
            if len(commits) < limit:
                break
            limit *= 100
        actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        return Snapshot(
            delta.version(),
            tuple(delta.metadata().partition_columns),
            tuple(field.name for field in delta.schema().fields),
            state,
            [file_of(self._table, one) for one in actions],
        )

    def create(
        self, schema: pa.Schema, partitions: Sequence[str], files: Sequence[File], state: Any
    ) -> bool:
        """Create the table with these files; returns False if it exists already."""
        try:
            create_table_with_add_actions(
                self._uri,
                Schema.from_arrow(schema),
                [self._add(file, partitions, state["at"], True) for file in files],
                mode="error",
                partition_by=list(partitions),
                name=self._table,
                configuration=_PROPERTIES,
                storage_options=self._options,
                commit_properties=_properties(state),
                post_commithook_properties=_NO_HOOKS,
            )
        except DeltaError as error:
            if DeltaTable.is_deltatable(self._uri, self._options):
                return self._is_ours(0, state)
            raise _failed(self._uri, error) from error
        return True

    def commit(
        self,
        version: int,
        schema: pa.Schema,
        added: Sequence[File],
        removed: Sequence[File],
        state: Any,
        *,
        data_change: bool,
    ) -> bool:
        """Commit after ``version``, which was read last; returns False if it has a successor."""
        delta = self._delta
        assert delta is not None, "a table is read before a commit"
        partitions = list(delta.metadata().partition_columns)
        actions: list[Any] = [
            self._add(file, partitions, state["at"], data_change) for file in added
        ]
        actions += [
            RemoveAction(
                self._below(file),
                data_change,
                state["at"],
                file.bytes,
                _folders(self._below(file)),
            )
            for file in removed
        ]

        def write() -> None:
            delta.create_write_transaction(
                actions,
                "append",
                Schema.from_arrow(schema),
                partitions,
                commit_properties=_properties(state),
                post_commithook_properties=_NO_HOOKS,
            )

        return self._attempt(version, state, write)

    def add_columns(self, version: int, schema: pa.Schema, state: Any) -> bool:
        """Add the columns that the table does not have; returns False as ``commit`` does.

        With ``state=None`` the commit does not say what is in the lake.
        """
        delta = self._delta
        assert delta is not None, "a table is read before a commit"
        known = {field.name for field in delta.schema().fields}
        missing = pa.schema([field for field in schema if field.name not in known])

        def write() -> None:
            delta.alter.add_columns(
                Schema.from_arrow(missing).fields,
                commit_properties=_properties(state),
                post_commithook_properties=_NO_HOOKS,
            )

        return self._attempt(version, state, write)

    def _attempt(self, version: int, state: Any, write: Callable[[], None]) -> bool:
        try:
            write()
        except CommitFailedError as error:
            return self._settle(version, state, error)
        except DeltaError as error:
            raise _failed(self._uri, error) from error
        return True

    def _settle(self, version: int, state: Any, error: DeltaError) -> bool:
        """Whether a commit that was reported as failed is there all the same.

        A store may answer a repeated request with a conflict although the first one had succeeded.
        """
        if DeltaTable(self._uri, storage_options=self._options).version() <= version:
            raise _failed(self._uri, error) from error
        return self._is_ours(version + 1, state)

    def _is_ours(self, version: int, state: Any) -> bool:
        delta = DeltaTable(self._uri, version=version, storage_options=self._options)
        found = delta.history(1)[0].get(_STATE)
        return state is not None and found is not None and found["token"] == state["token"]

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, which must be the commit of a run."""
        delta = DeltaTable(self._uri, storage_options=self._options)
        delta.create_checkpoint()

    def remove_old_commits(self) -> None:
        """Remove commits older than the table's retention that a checkpoint covers.

        The newest version must be the commit of a run.
        """
        DeltaTable(self._uri, storage_options=self._options).cleanup_metadata()

    def expired(self, hours: int) -> list[str]:
        """Files below the lake that are no longer in the table, for longer than these hours."""
        delta = DeltaTable(self._uri, storage_options=self._options)
        found = delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        return [f"{self._table}/{path}" for path in found]

    def _add(self, file: File, partitions: Sequence[str], at: int, data_change: bool) -> AddAction:
        path = self._below(file)
        return AddAction(
            path, file.bytes, _folders(path), at, data_change, statistics(file, partitions)
        )

    def _below(self, file: File) -> str:
        """The path of a file below its table."""
        return file.path.removeprefix(f"{self._table}/")


_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _properties(state: Any) -> CommitProperties:
    if state is None:
        return CommitProperties(max_commit_retries=0)
    return CommitProperties(
        custom_metadata={_STATE: state},
        # The library would otherwise commit after versions that were not read.
        max_commit_retries=0,
        app_transactions=[Transaction(_APP, state["number"])],
    )


def _failed(uri: str, error: Exception) -> PipelineError:
    return PipelineError(f"The Delta table {uri} cannot be written: {error}.")


def _folders(path: str) -> dict[str, str | None]:
    """The partition values in the path."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {name: value for name, _, value in pairs}
