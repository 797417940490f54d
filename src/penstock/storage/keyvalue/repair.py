"""Repairs an embedded store: continues without missing commits, on an operator's request.

A store that lost acknowledged commits does not open (``CommitsMissing``). ``examine`` reports what
is known to be missing and changes nothing. ``accept_loss`` keeps everything up to the first
missing commit:

- write-ahead logs after a gap, or journals from the first damage on, are set aside, so that no
  commit is kept without its predecessor;
- the chain of commits restarts above every number that was ever marked;
- offsets continue above everything that may have been assigned, so no offset means two messages;
- the store begins a new epoch, so earlier positions in its log are refused;
- a document of the kind ``loss`` records what was accepted, and when.

Data that RocksDB itself cannot read (a damaged log record, a damaged table) and damaged snapshots
are not repaired here: restore a backup.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from penstock.errors import StoreCorrupt
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters import Adapter, Mark
from penstock.storage.keyvalue.adapters.files.adapter import FilesAdapter
from penstock.storage.keyvalue.adapters.files.tree import is_files_store, lost_files
from penstock.storage.keyvalue.adapters.mark_file import MarkFile
from penstock.storage.keyvalue.adapters.rocksdb_wal import logs_after_gap, set_aside
from penstock.storage.keyvalue.chain import Link, has_gap, read_links
from penstock.storage.keyvalue.committer import Committer
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.encoding import prefix_end, seal
from penstock.storage.keyvalue.keys import LINK_PREFIX, document_key

if TYPE_CHECKING:
    from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter

__all__ = ["LOSS_KIND", "Loss", "accept_loss", "examine"]

LOSS_KIND: Final = "loss"
#: Offsets that are skipped: more than are ever assigned between two marks.
_SKIPPED_OFFSETS: Final = 1 << 24


class Loss(Struct, frozen=True, kw_only=True):
    """What is known to be missing from a store."""

    reason: str
    """Why the store does not open."""
    marked_commit: int | None = None
    """The last commit that is known to have been synced; later ones may be missing too."""
    marked_at: int | None = None
    marked_log_end: int | None = None
    kept_commit: int | None = None
    """The last commit that is kept; None until the loss is accepted."""
    kept_at: int | None = None
    kept_log_end: int | None = None
    set_aside: tuple[str, ...] = ()
    """Logs or journals that were set aside because commits before or in them are missing."""
    accepted_at: int | None = None

    @property
    def missing_commits(self) -> int | None:
        """How many commits are known to be missing."""
        if self.marked_commit is None or self.kept_commit is None:
            return None
        return max(0, self.marked_commit - self.kept_commit)

    @property
    def missing_offsets(self) -> tuple[int, int] | None:
        """The first and the last offset of the log that are known to be missing."""
        if self.marked_log_end is None or self.kept_log_end is None:
            return None
        if self.marked_log_end <= self.kept_log_end:
            return None
        return self.kept_log_end, self.marked_log_end - 1


def examine(path: Path) -> Loss | None:
    """What is known to be missing; None if the store opens. Does not change a refused store."""
    try:
        _open(path).close()
    except StoreCorrupt as error:
        mark = _readable_mark(path)
        if mark is None:
            return Loss(reason=error.detail)
        return Loss(
            reason=error.detail,
            marked_commit=mark.number,
            marked_at=mark.at,
            marked_log_end=mark.log_end,
        )
    return None


async def accept_loss(path: Path, options: EngineOptions) -> Loss | None:
    """Make the store open without what is missing. Returns None if nothing is missing."""
    loss = examine(path)
    if loss is None:
        return None
    in_files = is_files_store(path)
    logs = [] if in_files else _set_aside_logs(path)
    adapter = _open(path, salvaging=True)
    if in_files:
        logs = lost_files(path)
    try:
        links = _links(adapter)
        core = Core(adapter, options)
        core.load(restart_above=loss.marked_commit or 0)
        core.identity.new_epoch()
        now = options.clock.now()
        skipped = max(0, (loss.marked_log_end or 0) - core.log.next_offset) + _SKIPPED_OFFSETS
        core.log.reserve(skipped, now)
        last = links[-1] if links else None
        loss = msgspec.structs.replace(
            loss,
            kept_commit=last.number if last else 0,
            kept_at=last.at if last else None,
            kept_log_end=last.log_end if last else 0,
            set_aside=tuple(str(log) for log in logs),
            accepted_at=now,
        )
        record = seal(msgspec.json.encode(loss))
        core.stage.put(document_key(LOSS_KIND, f"{now}"), record)
        committer = Committer(adapter, core.stage, core.committed, core.notifier, None, core.chain)
        await committer.commit()
        await committer.close()
    finally:
        adapter.close()
    return loss


def _set_aside_logs(path: Path) -> list[Path]:
    """Set aside the write-ahead logs after the first missing commit. Returns their new paths."""
    logs = logs_after_gap(path)
    kept = [log for log in path.glob("*.log") if log not in logs]
    if _has_gap_with(path, kept):
        logs = kept + logs  # The gap is before the first log.
    if not logs:
        return []
    folder = set_aside(sorted(logs), f"lost-{min(logs).stem}")
    return [folder / log.name for log in sorted(logs)]


def _has_gap_with(path: Path, logs: list[Path]) -> bool:
    """Whether the store would have a gap if opened with these logs; tries it on a copy."""
    with TemporaryDirectory(dir=path, prefix="trial-") as folder:
        for file in path.iterdir():
            copy = Path(folder) / file.name
            if file.suffix == ".sst":
                copy.hardlink_to(file)  # Tables are immutable.
            elif file.is_file() and (file.suffix != ".log" or file in logs):
                shutil.copyfile(file, copy)
        adapter = _open(Path(folder), salvaging=True)
        try:
            return has_gap(_links(adapter))
        finally:
            adapter.close()


def _open(path: Path, *, salvaging: bool = False) -> FilesAdapter | RocksDBAdapter:
    if is_files_store(path):
        return FilesAdapter(path, salvaging=salvaging)
    # Imported here so that a store in files can be repaired without RocksDB.
    from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter  # noqa: PLC0415

    return RocksDBAdapter(path, salvaging=salvaging)


def _links(adapter: Adapter) -> list[Link]:
    return read_links(value for _, value in adapter.scan(LINK_PREFIX, prefix_end(LINK_PREFIX)))


def _readable_mark(path: Path) -> Mark | None:
    try:
        stored = MarkFile(path).read()
    except StoreCorrupt:
        return None
    return None if stored is None else stored[0]
