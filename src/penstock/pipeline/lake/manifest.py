"""The manifest: what is in the lake, as commits to two Delta tables (A1).

The lake contains exactly the files of its two tables. A killed run leaves files that no commit
adds; they do not count, and the next run removes them. Every commit names the version of the table
that it follows, so of two concurrent runs one commits and the other gets a ``Conflict``.

Every run begins with a commit to both tables. From then on, commits of other runs are refused
until they begin anew: a run that was presumed dead cannot commit its work any more, and its files
can be removed. A table that is not there yet is created by that commit, with the files of the
manifest that an earlier version wrote, if there is one.

At intervals a checkpoint records all files of a table, and readers start from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.client.options import random_prefix
from penstock.errors import Conflict, LakeCorrupt
from penstock.model.identity import StoreIdentity
from penstock.pipeline.lake.commits import Change, Commit, EntryMark, File, Lake, Table
from penstock.pipeline.lake.delta import CHECKPOINT_EVERY, DeltaLog, Snapshot
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.json_manifest import JsonManifest
from penstock.pipeline.lake.layout import HISTORY, MESSAGES, TABLES, data_digest
from penstock.pipeline.lake.schemas import ARROW_SCHEMAS, PARTITIONS, PARTITIONS_BY_TOPIC
from penstock.pipeline.lake.table_state import (
    TableState,
    combine,
    decode,
    encode,
    names_of,
    state_after,
)

__all__ = ["Manifest"]


class Manifest:
    """Reads and appends commits of a lake."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._logs = {
            table: DeltaLog(files.uri_for_delta(table), table, files.options_for_delta())
            for table in TABLES
        }
        self._snapshots: dict[Table, Snapshot] = {}
        self._states: dict[Table, TableState] = {}
        self._earlier: Lake | None = None
        """What an earlier version wrote, once it was needed."""
        self._begun: dict[Table, int] = {}
        self._writer = random_prefix()
        """Identifies the commits of this object."""
        self.lake = Lake()

    def refresh(self) -> Lake:
        """Read new commits."""
        changed = self._read(HISTORY)
        while self._read(MESSAGES):
            changed = True
            if not self._read(HISTORY):
                break  # Both were current when the messages were read.
        if MESSAGES not in self._states:
            self.lake = self._read_earlier()
        elif changed:
            self._combine()
        return self.lake

    def _read(self, table: Table) -> bool:
        """Read the newest version of a table; returns whether it is another one."""
        known = self._snapshots.get(table)
        found = self._logs[table].read(None if known is None else known.version)
        if found is None:
            return False
        self._snapshots[table] = found
        if found.state is not None:
            state = decode(table, found.state)
            if (state.files, state.names) != (len(found.files), names_of(found.files)):
                raise LakeCorrupt(
                    f"The table {table} has other files than the newest commit of an archiving "
                    "run says: another program changed the table. Restore it to a version that "
                    "Penstock wrote.",
                    field="lake",
                )
            self._states[table] = state
        return True

    def _combine(self) -> None:
        files = [
            self._with_digest(file)
            for table in self._states
            for file in self._snapshots[table].files
        ]
        lake = combine(self._states[MESSAGES], self._states.get(HISTORY), files)
        numbers = {table: self.next(table) - 1 for table in self._states}
        # Other programs may have committed since, for example a change of properties.
        self.lake = replace(lake, number=numbers[MESSAGES], history_number=numbers.get(HISTORY, 0))

    def _with_digest(self, file: File) -> File:
        if file.digest:
            return file
        known = data_digest(file.path)
        if known is not None:
            return replace(file, digest=known[0], payload_bytes=known[1])
        earlier = self._read_earlier().files.get(file.path)
        if earlier is None:
            raise LakeCorrupt(f"Penstock did not write {file.path}.", field="lake")
        return earlier

    def _read_earlier(self) -> Lake:
        if self._earlier is None or MESSAGES not in self._states:
            self._earlier, _ = JsonManifest(self._files).read()
        return self._earlier

    # -- taking over -------------------------------------------------------------------

    def begin(self, run: str, at: int, store: StoreIdentity, check: Callable[[Lake], None]) -> int:
        """Make this run, for ``store``, the owner of the lake; returns the commit's number.

        ``check`` raises if the lake, as of right before the commit, is not this store's.
        """
        commit = Commit(run=run, at=at, kind="begin", store=store)
        while True:
            check(self.refresh())
            self._check_foreign()
            if MESSAGES in self._states:
                if self._take_over(MESSAGES, commit):
                    break
            elif self._move(commit):
                return self._begun[MESSAGES]
        while True:
            self._read(HISTORY)
            # Read after the histories, and before they are taken over: a run that takes the lake
            # over later makes the commit below fail.
            self._read(MESSAGES)
            self._combine()
            self._check_held(MESSAGES)
            if self._take_over(HISTORY, commit):
                return self._begun[MESSAGES]

    def _check_foreign(self) -> None:
        """Refuse Delta tables without a commit of a run, unless the other manifest has the files.

        An earlier version could add a Delta log to a lake, beside its manifest.
        """
        for table, snapshot in self._snapshots.items():
            if table not in self._states and not self.lake.number:
                raise LakeCorrupt(
                    f"The Delta table {table}, version {snapshot.version}, has no commit of an "
                    "archiving run. Use another folder, or restore its _delta_log.",
                    field="lake",
                )

    def _move(self, commit: Commit) -> bool:
        """Create the tables, with the files that an earlier version wrote.

        The messages come last: while they are not there, the earlier manifest counts.
        """
        manifest = JsonManifest(self._files)
        self._earlier, ended = manifest.read()
        if self._earlier != self.lake:
            return False
        if self.lake.number and not ended and not manifest.end(self.lake, commit.run, commit.at):
            return False
        return all(self._take_over(table, commit) for table in (HISTORY, MESSAGES))

    def _take_over(self, table: Table, commit: Commit) -> bool:
        """Commit the beginning of a run to a table; returns False if another commit was first."""
        snapshot, before = self._snapshots.get(table), self._states.get(table)
        version = 0 if snapshot is None else snapshot.version + 1
        # Above the numbers of the files that an earlier version named.
        base = self.lake.number + 1 - version if before is None else before.base
        number = base + version
        begins = (number,) if before is None else (*before.begins, number)
        state = self._state(commit, number, base=base, begun=number, begins=begins)
        if not self._write(table, state, self.lake.after(commit)):
            return False
        self._begun[table] = number
        return True

    def hold(self) -> None:
        """Read new commits, and raise ``Conflict`` if another run has begun since."""
        self.refresh()
        for table in TABLES:
            self._check_held(table)

    def _check_held(self, table: Table) -> None:
        state = self._states.get(table)
        if state is None or state.begun != self._begun.get(table):
            raise _taken()

    @property
    def begins(self) -> dict[Table, tuple[int, ...]]:
        """The runs of each table that may have left files: those have these numbers."""
        return {table: state.begins for table, state in self._states.items()}

    # -- committing --------------------------------------------------------------------

    def next(self, table: Table) -> int:
        """The number of the next commit of a table; data files are named after it."""
        return self._states[table].base + self._snapshots[table].version + 1

    def partitions(self, table: Table) -> tuple[str, ...]:
        """The columns of a table whose values are in the path."""
        snapshot = self._snapshots.get(table)
        if snapshot is not None:
            return snapshot.partitions
        return PARTITIONS_BY_TOPIC[table] if self.lake.files else PARTITIONS[table]

    def commit(
        self,
        kind: Change,
        run: str,
        at: int,
        *,
        table: Table | None = None,
        start: int | None = None,
        end: int | None = None,
        entries: int = 0,
        quiet: bool = False,
        settled: bool = False,
        added: Sequence[File] = (),
        removed: Iterable[str] = (),
        last: EntryMark | None = None,
    ) -> Lake:
        """Commit a change on top of the commits read so far, or raise ``Conflict``.

        ``table`` is needed for a compaction only.
        """
        chosen: Table = table or (HISTORY if kind == "history" else MESSAGES)
        self.hold()
        commit = Commit(
            run=run,
            at=at,
            kind=kind,
            start=start,
            end=end,
            entries=entries,
            quiet=quiet,
            settled=settled,
            added=tuple(added),
            removed=tuple(removed),
            last=last,
        )
        before = self._states[chosen]
        state = self._state(
            commit,
            self.next(chosen),
            base=before.base,
            begun=before.begun,
            # A run removes what others left before its first commit.
            begins=(before.begun,),
        )
        if not self._write(chosen, state, self.lake.after(commit)):
            raise _taken()
        return self.lake

    def _state(
        self, commit: Commit, number: int, *, base: int, begun: int, begins: tuple[int, ...]
    ) -> TableState:
        """The part of a table's state that does not follow from the lake after the commit."""
        return TableState(
            number=number,
            base=base,
            token=f"{self._writer}-{number}",
            run=commit.run,
            at=commit.at,
            kind=commit.kind,
            start=commit.start,
            end=commit.end,
            entries=commit.entries,
            begun=begun,
            begins=begins,
        )

    def _write(self, table: Table, state: TableState, after: Lake) -> bool:
        """Make a commit, durably; returns False if another one was first."""
        log, schema = self._logs[table], ARROW_SCHEMAS[table]
        snapshot = self._snapshots.get(table)
        encoded = encode(state_after(table, state, after))
        wanted = {file.path: file for file in after.of(table)}
        there = {} if snapshot is None else {file.path: file for file in snapshot.files}
        added = [file for path, file in wanted.items() if path not in there]
        removed = [file for path, file in there.items() if path not in wanted]
        if snapshot is None:
            done = log.create(schema, self.partitions(table), added, encoded)
        elif state.kind == "begin" and not set(schema.names) <= set(snapshot.columns):
            done = self._add_columns(table, encoded)
        else:
            done = log.commit(
                snapshot.version,
                schema,
                added,
                removed,
                encoded,
                data_change=state.kind != "compact",
            )
        if not done:
            return False
        version = 0 if snapshot is None else snapshot.version + 1
        self._sync(table, version, after_another_run=state.kind == "begin")
        self._read(table)
        if MESSAGES in self._states:
            self._combine()
        if version and version % CHECKPOINT_EVERY == 0:
            self._checkpoint(table, version)
        return True

    def _sync(self, table: Table, version: int, *, after_another_run: bool) -> None:
        """Make a commit durable, and the one before it if a run was killed before it did that."""
        paths = [_commit_path(table, version)]
        if after_another_run and version:
            before = _commit_path(table, version - 1)
            # It may have been removed, because a checkpoint covers it.
            if before.rpartition("/")[2] in self._files.names(f"{table}/_delta_log"):
                paths.append(before)
        self._files.sync(paths)

    def _add_columns(self, table: Table, encoded: dict[str, Any]) -> bool:
        """Begin by adding the columns that an earlier version did not have."""
        log, schema = self._logs[table], ARROW_SCHEMAS[table]
        version = self._snapshots[table].version
        if table in self._states:
            return log.add_columns(version, schema, encoded)
        # The table becomes the lake's by another commit, with the files of the manifest.
        log.add_columns(version, schema, None)
        return False

    def _checkpoint(self, table: Table, version: int) -> None:
        """Write a checkpoint, and then remove commits that no time travel needs any more."""
        log, folder = self._logs[table], f"{table}/_delta_log"
        log.checkpoint()
        names = self._files.names(folder)
        points = [name for name in names if name.startswith(f"{version:020d}.checkpoint")]
        self._files.sync([f"{folder}/{name}" for name in (*points, "_last_checkpoint")])
        log.remove_old_commits()

    def expired(self, table: Table, hours: int) -> list[str]:
        """Files that left a table more than these hours ago, or never were in it."""
        return self._logs[table].expired(hours)


def _commit_path(table: Table, version: int) -> str:
    return f"{table}/_delta_log/{version:020d}.json"


def _taken() -> Conflict:
    return Conflict("Another run has taken over this lake.", field="lake")
