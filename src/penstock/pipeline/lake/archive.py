"""Archiving: copies ranges of the log into files of the lake, and verifies them before use.

For each range: compute a digest of the log on the server's side; write the rows to staging; read
them back, hash the payloads again, and compare with the digest; move the files into place and
commit; only then may the broker remove the range (A1). Killed at any point, it leaves the lake as
of the last commit, and files that the next run removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import Conflict, LakeCorrupt, OffsetsGone
from penstock.model.identity import StoreIdentity, check_position, check_store
from penstock.pipeline.context import JobContext
from penstock.pipeline.lake.checks import Digest, corrupt, digest_of, lost
from penstock.pipeline.lake.commits import Change, EntryMark, File, Lake, Table
from penstock.pipeline.lake.layout import (
    HISTORY,
    MESSAGES,
    STAGING,
    TABLES,
    staging_folder,
)
from penstock.pipeline.lake.manifest import Manifest
from penstock.pipeline.lake.ownership import (
    check_last,
    check_left_out,
    check_owner,
    mark_at,
    store_of,
)
from penstock.pipeline.lake.staging import Staged, stage
from penstock.pipeline.lake.unfinished import check_commits, unfinished
from penstock.pipeline.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FILE_BYTES", "STEP_ENTRIES", "Archived", "Archiver", "compare"]

#: The most log entries, and payload bytes, per commit.
STEP_ENTRIES: Final = 500_000
STEP_BYTES: Final = 2 * 1024 * 1024 * 1024
#: Approximate payload bytes per file; compressed it is smaller.
FILE_BYTES: Final = 128 * 1024 * 1024


class Archived(Struct, frozen=True):
    """Totals of what was archived."""

    entries: int = 0
    payload_bytes: int = 0
    file_bytes: int = 0
    files: int = 0
    histories: int = 0
    """New transitions."""

    def __add__(self, other: Archived) -> Archived:
        return Archived(
            self.entries + other.entries,
            self.payload_bytes + other.payload_bytes,
            self.file_bytes + other.file_bytes,
            self.files + other.files,
            self.histories + other.histories,
        )


class Archiver:
    """One run that owns a lake."""

    def __init__(
        self,
        context: JobContext,
        *,
        skip_missing: bool = False,
        tell: bool = True,
        step: int | None = None,
        adopt: bool = False,
    ) -> None:
        self.context = context
        self._adopts = adopt
        self._step = STEP_ENTRIES if step is None else step
        self._skip_missing = skip_missing
        self._tells = tell
        self.on_commit: Callable[[Archiver], None] = lambda _: None
        """Called after every commit and after ``begin``."""
        self.files = context.lake_files()
        self.manifest = Manifest(self.files)
        self.begun = 0
        """The commit that this run started with."""

    def begin(self) -> None:
        """Take over the lake, remove files that a killed run left, and check for missing files.

        Raises ``OtherStore``, and changes nothing, if the lake holds another store's log, and
        ``LakeCorrupt`` if its manifest has lost commits.
        """
        store = store_of(self.context)
        # Listed before the manifest is read, because a concurrent run may commit in between.
        known = [path for table in TABLES for path in self.files.walk(table)]

        def check(lake: Lake) -> None:
            check_commits(self.context.lake, lake, known)
            check_owner(self.context, self.files, lake, store, adopt=self._adopts)
            check_left_out(self.context, lake)
            # Before unused files are removed: if the last commit is lost, its files look unused.
            self._check_kept(lake)

        self.begun = self.manifest.begin(self.context.run, self.context.clock.now(), store, check)
        # Listed before ``hold``: files of a run that begins after it must not be removed.
        there = {path: size for table in TABLES for path, size in self.files.walk(table).items()}
        self.manifest.hold()
        lake = self.manifest.lake
        self.files.remove(unfinished(lake, self.manifest.begins, there))
        for name in self.files.names(STAGING):
            if name.isdigit() and int(name) < self.begun:
                self.files.remove_tree(staging_folder(int(name)))
        missing = lost(there, lake.files.values())
        if missing:
            raise corrupt(missing, "Files of the lake are missing or of another size")
        self.on_commit(self)

    def commit(
        self,
        kind: Change,
        staged: Staged | None,
        start: int,
        end: int,
        *,
        removed: Sequence[File] = (),
        entries: int = 0,
        quiet: bool = False,
        settled: bool = False,
        last: EntryMark | None = None,
        table: Table | None = None,
    ) -> Sequence[File]:
        """Move staged files into place and commit them, replacing those in ``removed``.

        The replaced files stay where they are, for readers of earlier versions of the table.
        """
        self.manifest.hold()
        self._check_store()
        added: Sequence[File] = ()
        if staged is not None:
            number = self.manifest.next(table or (HISTORY if kind == "history" else MESSAGES))
            added = staged.put_into_place(start, end, number)
        ranged = (None, None) if kind == "compact" else (start, end)
        try:
            self.manifest.commit(
                kind,
                self.context.run,
                self.context.clock.now(),
                table=table,
                start=ranged[0],
                end=ranged[1],
                entries=entries,
                quiet=quiet,
                settled=settled,
                added=added,
                removed=[file.path for file in removed],
                last=last,
            )
        except Conflict:
            # No commit contains them or ever will: their names have the number of the lost commit.
            self.files.remove([file.path for file in added])
            raise
        self.on_commit(self)
        return added

    def archive(self) -> Archived:
        """Archive the part of the log that the lake does not have."""
        start, end = self._range()
        done = Archived()
        if start < end:
            bounds = self._bounds(start, end, self._step)
            for first, last in pairwise(bounds):
                done += self._archive_range(first, last)
                self.context.reach("archived", last - start, end - start)
                if self.context.stopping.is_set():
                    break
        self._tell()
        return done

    def _range(self) -> tuple[int, int]:
        """The part of the log that is not in the lake."""
        lake, ask = self.manifest.lake, self.context.remote.ask
        self._check_store()
        # In this order, so that anything published in between is above the end.
        end = int(ask(lambda q: q.log_end()))
        check_position(lake.through, end, f"The lake {self.context.lake}")
        # In every pass: a store may be rolled back during a run.
        check_last(self.context, lake)
        first = int(ask(lambda q: q.log_start()))
        self._check_kept(lake)
        return max(first, lake.through), end

    def _check_kept(self, lake: Lake) -> None:
        """Raise ``OffsetsGone`` if the log has lost entries that are not in the lake."""
        trimmed = int(self.context.remote.ask(lambda q: q.log_trimmed()))
        if lake.began is not None and trimmed > lake.through and not self._skip_missing:
            raise OffsetsGone(
                f"The lake ends at {lake.through}, but retention has removed entries of the log up "
                f"to {trimmed - 1}: some were not archived. Serve with --archive to keep entries "
                "until they are archived, and use --skip-missing to continue without these.",
                field="lake",
            )

    def _check_store(self) -> StoreIdentity:
        """The store whose log is archived; raises ``OtherStore`` if the server has another now.

        Called after the rows were read, so that nothing is committed if the server was restarted
        on another store meanwhile.
        """
        store = self.manifest.lake.store
        assert store is not None, "a run begins with its store"
        check_store(store_of(self.context), store, f"The lake {self.context.lake}")
        return store

    def _bounds(self, start: int, end: int, entries: int) -> list[int]:
        ask = self.context.remote.ask
        return [int(one) for one in ask(lambda q: q.log_splits(start, end, entries))]

    def _archive_range(self, start: int, end: int) -> Archived:
        logged = digest_of(self._log(start, end, payload=False), MESSAGES)
        if logged.payload_bytes > STEP_BYTES and logged.rows > 1:
            # Large payloads: split into steps of fewer entries.
            entries = max(1, logged.rows * STEP_BYTES // logged.payload_bytes // 2)
            bounds = self._bounds(start, end, entries)
            if len(bounds) > 2:
                pieces = pairwise(bounds)
                return sum((self._archive_range(*piece) for piece in pieces), Archived())
        staged = self._staged(start, end, logged)
        last = mark_at(self.context, logged.last) if logged.rows else None
        added = self.commit("archive", staged, start, end, entries=logged.rows, last=last)
        return Archived(
            entries=logged.rows,
            payload_bytes=logged.payload_bytes,
            file_bytes=sum(file.bytes for file in added),
            files=len(added),
        )

    def _staged(self, start: int, end: int, logged: Digest) -> Staged | None:
        """Stage the range, and check that it matches the digest."""
        if not logged.rows:
            return None
        parts = max(1, -(-logged.payload_bytes // FILE_BYTES))
        staged = stage(
            self.context.spark,
            self.files,
            self._log(start, end, payload=True).coalesce(parts),
            MESSAGES,
            begun=self.begun,
            partitions=self.manifest.partitions(MESSAGES),
            most=logged.rows * FILE_BYTES // max(logged.payload_bytes, 1),
            largest=logged.largest,
        )
        compare(logged, staged.digest, f"entries {start} to {end} of the log")
        return staged

    def _log(self, start: int, end: int, *, payload: bool) -> DataFrame:
        return read_table(
            self.context.spark,
            self.context.server,
            "log",
            startingOffsets=start,
            endingOffsets=end,
            payload=payload,
        )

    def _tell(self) -> None:
        """Report to the broker how far the lake goes, even if unchanged: it may not know yet."""
        through = self.manifest.lake.through
        if self._tells and through > 0:
            store = self._check_store()
            check_last(self.context, self.manifest.lake)
            self.context.remote.ask(lambda q: q.archived(through - 1, store))


def compare(wanted: Digest, found: Digest, what: str) -> None:
    """Raise ``LakeCorrupt`` if the rows read back differ from those to be written."""
    if not wanted.same(found):
        raise LakeCorrupt(
            f"Of {what}, {wanted.rows} rows were to be written and {found.rows} were read back, "
            f"with the digests {wanted.digest} and {found.digest}."
        )
