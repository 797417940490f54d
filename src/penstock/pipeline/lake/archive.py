"""Archiving: a range of the log becomes files of the lake, checked before anybody relies on it.

For each range: what the server says the log holds there, in short; the rows into staging; the
same rows read back from there, payloads hashed again, and compared with that; then the files
into place, the commit, and only then is the broker told that the range may go (A1). Killed at
any point it leaves a lake that says what it did before, and files that the next run removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import Conflict, LakeCorrupt, OffsetsGone
from penstock.model.identity import StoreIdentity, check_position, check_store
from penstock.pipeline.context import Context
from penstock.pipeline.lake.checks import Digest, corrupt, digest_of, lost
from penstock.pipeline.lake.commits import Change, EntryMark, File, Lake
from penstock.pipeline.lake.files import open_files
from penstock.pipeline.lake.layout import (
    MANIFEST,
    MESSAGES,
    STAGING,
    TABLES,
    data_commit,
    is_data,
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
from penstock.pipeline.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FILE_BYTES", "STEP_ENTRIES", "Archived", "Archiver", "compare"]

#: Entries of the log, and bytes of payload, that one commit brings in at most.
STEP_ENTRIES: Final = 500_000
STEP_BYTES: Final = 2 * 1024 * 1024 * 1024
#: Bytes of payload that one file holds, about; what it takes on disk is less.
FILE_BYTES: Final = 128 * 1024 * 1024


class Archived(Struct, frozen=True):
    """What some passes brought into the lake."""

    entries: int = 0
    payload_bytes: int = 0
    file_bytes: int = 0
    files: int = 0
    histories: int = 0
    """Transitions that are new."""

    def __add__(self, other: Archived) -> Archived:
        return Archived(
            self.entries + other.entries,
            self.payload_bytes + other.payload_bytes,
            self.file_bytes + other.file_bytes,
            self.files + other.files,
            self.histories + other.histories,
        )


class Archiver:
    """One run's hold on a lake."""

    def __init__(
        self,
        context: Context,
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
        """Told of every commit, and once a run has begun; what is replaced is still there then."""
        self.files = open_files(context.lake, lambda: context.spark)
        self.manifest = Manifest(self.files)
        self.begun = 0
        """The commit that this run began with."""

    def begin(self) -> None:
        """Take the lake over, clear away what a run that was killed has left, and look at it.

        Raises ``OtherStore``, and changes nothing, if the lake holds another store's log, and
        ``LakeCorrupt`` if its manifest has lost commits.
        """
        store = store_of(self.context)
        # Listed before the manifest is read: a run that is still at work commits in between.
        known = [path for table in TABLES for path in self.files.walk(table)]

        def check(lake: Lake) -> None:
            _check_commits(lake, known)
            check_owner(self.context, self.files, lake, store, adopt=self._adopts)
            check_left_out(self.context, lake)
            # Before leftovers are removed: if the last commit is lost, its files look like some.
            self._check_kept(lake)

        self.begun = self.manifest.begin(self.context.run, self.context.clock.now(), store, check)
        # Listed first: what a run that begins after the next line puts there is not among it.
        there = {path: size for table in TABLES for path, size in self.files.walk(table).items()}
        self.manifest.hold()
        lake = self.manifest.lake
        self.files.remove([path for path in there if is_data(path) and path not in lake.files])
        for name in self.files.names(STAGING):
            if name.isdigit() and int(name) < self.begun:
                self.files.remove_tree(staging_folder(int(name)))
        self._remove_unfinished_commits()
        missing = lost(there, lake.files.values())
        if missing:
            raise corrupt(missing, "Files of the lake are missing or of another size")
        self.on_commit(self)

    def _remove_unfinished_commits(self) -> None:
        """Of commits that others have made since: what they would have been can be no more."""
        finished = set(self.files.names(MANIFEST))
        for path in self.files.walk(MANIFEST):
            name = path.rpartition("/")[2]
            if name not in finished and name[1:21].isdigit() and int(name[1:21]) <= self.begun:
                self.files.remove([path])

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
    ) -> Sequence[File]:
        """Put staged files into place and commit them, in the place of those ``removed``."""
        self.manifest.hold()
        self._check_store()
        added: Sequence[File] = ()
        if staged is not None:
            added = staged.put_into_place(start, end, self.manifest.next)
        ranged = (None, None) if kind == "compact" else (start, end)
        try:
            self.manifest.commit(
                kind,
                self.context.run,
                self.context.clock.now(),
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
            # No commit has them, and none will: their names carry the number that was not got.
            self.files.remove([file.path for file in added])
            raise
        self.on_commit(self)
        self.files.remove([file.path for file in removed])
        return added

    def archive(self) -> Archived:
        """Bring in what the log has and the lake has not."""
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
        """From where to where the log is not in the lake."""
        lake, ask = self.manifest.lake, self.context.remote.ask
        self._check_store()
        # In this order: what is published between the two is above the end.
        end = int(ask(lambda q: q.log_end()))
        check_position(lake.through, end, f"The lake {self.context.lake}")
        # In every pass: a store may be rolled back while a run goes on.
        check_last(self.context, lake)
        first = int(ask(lambda q: q.log_start()))
        self._check_kept(lake)
        return max(first, lake.through), end

    def _check_kept(self, lake: Lake) -> None:
        """Raise ``OffsetsGone`` if the log no longer has what the lake has not got yet."""
        trimmed = int(self.context.remote.ask(lambda q: q.log_trimmed()))
        if lake.began is not None and trimmed > lake.through and not self._skip_missing:
            raise OffsetsGone(
                f"The lake ends at {lake.through}, and retention has removed entries of the log up "
                f"to {trimmed - 1}: some were not archived. Serve with --archive to keep them "
                "until they are, and give --skip-missing to go on without.",
                field="lake",
            )

    def _check_store(self) -> StoreIdentity:
        """The store whose log is archived, which the server still has.

        Asked after the rows were read: a server that was restarted on another store in the
        meantime brings nothing in.
        """
        store = self.manifest.lake.store
        assert store is not None, "a run begins with its store"
        check_store(store_of(self.context), store, f"The lake {self.context.lake}")
        return store

    def _bounds(self, start: int, end: int, entries: int) -> list[int]:
        ask = self.context.remote.ask
        return [int(one) for one in ask(lambda q: q.log_splits(start, end, entries))]

    def _archive_range(self, start: int, end: int) -> Archived:
        told = digest_of(self._log(start, end, payload=False), MESSAGES)
        if told.payload_bytes > STEP_BYTES and told.rows > 1:
            # Large payloads: as many entries as are one step.
            entries = max(1, told.rows * STEP_BYTES // told.payload_bytes // 2)
            bounds = self._bounds(start, end, entries)
            if len(bounds) > 2:
                pieces = pairwise(bounds)
                return sum((self._archive_range(*piece) for piece in pieces), Archived())
        staged = self._staged(start, end, told)
        last = mark_at(self.context, told.last) if told.rows else None
        added = self.commit("archive", staged, start, end, entries=told.rows, last=last)
        return Archived(
            entries=told.rows,
            payload_bytes=told.payload_bytes,
            file_bytes=sum(file.bytes for file in added),
            files=len(added),
        )

    def _staged(self, start: int, end: int, told: Digest) -> Staged | None:
        """The range, written and read back, if it is what was told."""
        if not told.rows:
            return None
        parts = max(1, -(-told.payload_bytes // FILE_BYTES))
        staged = stage(
            self.context.spark,
            self.files,
            self._log(start, end, payload=True).coalesce(parts),
            MESSAGES,
            begun=self.begun,
            most=told.rows * FILE_BYTES // max(told.payload_bytes, 1),
            largest=told.largest,
        )
        compare(told, staged.digest, f"entries {start} to {end} of the log")
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
        """Tell the broker what is safe here. What was told before is told again: it may be new."""
        through = self.manifest.lake.through
        if self._tells and through > 0:
            store = self._check_store()
            check_last(self.context, self.manifest.lake)
            self.context.remote.ask(lambda q: q.archived(through - 1, store))


def _check_commits(lake: Lake, paths: Sequence[str]) -> None:
    """Refuse a lake with files of commits that its manifest does not have and did have.

    A run that was killed leaves files of the next commit only, so files of a later one were
    committed. They may be the only copies: they are no leftovers.
    """
    lost = [path for path in paths if (data_commit(path) or 0) > lake.number + 1]
    if not lake.number:
        # Without a manifest nothing was ever begun here.
        lost = [path for path in paths if is_data(path)]
    if lost:
        raise corrupt(
            lost,
            f"The manifest ends with commit {lake.number}, and there are files of later ones. "
            f"Restore {MANIFEST} first; nothing was removed. The files",
        )


def compare(wanted: Digest, found: Digest, what: str) -> None:
    """Refuse rows that were read back and are not those that were to be written."""
    if not wanted.same(found):
        raise LakeCorrupt(
            f"Of {what}, {wanted.rows} rows were to be written and {found.rows} were read back, "
            f"with the digests {wanted.digest} and {found.digest}."
        )
