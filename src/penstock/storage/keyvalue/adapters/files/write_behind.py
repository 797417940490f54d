"""Writes message files and the directories of queues behind the journal, on a thread of its own.

A commit is durable in the journal and visible in memory before this thread hears of it, so nothing
here delays a reply. Until a payload has its file it is read from the journal. Commits wait while
more than ``MAX_BEHIND_BYTES`` are not in files. An error, such as a full disk, is logged and
retried.
"""

from __future__ import annotations

import errno
import logging
import threading
from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.adapters.files.held_files import HeldFiles
from penstock.storage.keyvalue.adapters.files.message_files import MessageFiles
from penstock.storage.keyvalue.adapters.files.payload_region import PayloadRegion
from penstock.storage.keyvalue.adapters.files.queue_folders import QueueFolders

__all__ = ["MAX_BEHIND_BYTES", "WriteBehind"]

#: Some ten seconds of writing message files of 1 KiB.
MAX_BEHIND_BYTES: Final = 256 * 1024 * 1024
#: What a payload costs besides its bytes: a part of a block, an inode, names.
_OVERHEAD_BYTES: Final = 256
_RETRY_S: Final = 1.0
_log = logging.getLogger("penstock.storage")


class WriteBehind:
    """One thread that writes and removes message files and shows deliveries in directories."""

    def __init__(self, root: Path, files: MessageFiles, folders: QueueFolders) -> None:
        self._root = root
        self._files = files
        self._held = HeldFiles(root, files)
        self._folders = folders
        self._changed = threading.Condition()
        #: Payloads to write, and arrays of offsets to remove, in the order of their commits.
        self._work: deque[PayloadRegion | array[int]] = deque()
        #: The regions in ``_work``, by their first offset.
        self._regions: list[PayloadRegion] = []
        self._behind_bytes = 0
        #: Payloads whose files were written out of order.
        self._early: set[int] = set()
        #: How much work was ever added, and done.
        self._added = self._done = 0
        #: Records to show: key to the value that is shown now. The oldest first.
        self._unshown: dict[bytes, bytes | None] = {}
        self._is_showing = False
        self._current: Callable[[bytes], bytes | None] = lambda _: None
        self._begin_rebuild: Callable[[], Iterator[None]] | None = None
        self._rebuild: Iterator[None] | None = None
        self._failure: OSError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-files", daemon=True)

    def start(
        self,
        current: Callable[[bytes], bytes | None],
        rebuild: Callable[[], Iterator[None]] | None,
    ) -> None:
        """Begin. ``current`` returns the value of a record; ``rebuild`` runs in small steps."""
        self._current = current
        self._begin_rebuild = rebuild
        self._rebuild = rebuild and rebuild()
        self._thread.start()

    # -- called by the thread that commits -------------------------------------------------

    def add(
        self,
        region: PayloadRegion | None,
        removed: Iterable[array[int]] = (),
        changed: Iterable[tuple[bytes, bytes | None]] = (),
    ) -> None:
        """Take over the payloads of one commit, and the former values of its records."""
        with self._changed:
            for offsets in removed:
                self._work.append(offsets)
                self._added += 1
            if region is not None:
                self._work.append(region)
                insort(self._regions, region, key=_first)
                self._behind_bytes += _cost(region)
                self._added += 1
            for key, value in changed:
                self._unshown.setdefault(key, value)
            self._changed.notify_all()

    @property
    def has_room(self) -> bool:
        """Whether a commit need not wait."""
        return self._behind_bytes < MAX_BEHIND_BYTES

    @property
    def behind_bytes(self) -> int:
        """About how much space the missing message files will take."""
        return self._behind_bytes

    def wait_for_room(self) -> None:
        """Wait while too much is behind. Raises if files cannot be written at all."""
        self._wait_until(lambda: self.has_room)

    def read(self, offset: int) -> bytes | None:
        """A payload that has no file yet."""
        region = self._region(offset)
        return None if region is None else region.read(offset)

    def _region(self, offset: int) -> PayloadRegion | None:
        """The region that may have the payload: later commits have higher offsets."""
        with self._changed:
            index = bisect_right(self._regions, offset, key=_first)
            return self._regions[index - 1] if index else None

    # -- waiting ---------------------------------------------------------------------------

    @property
    def ticket(self) -> int:
        """The number of the newest work, for ``wait_for``."""
        return self._added

    def wait_for(self, ticket: int) -> None:
        """Wait until all files up to the ticket are written. Raises if they cannot be."""
        self._wait_until(lambda: self._done >= ticket)

    def flush(self) -> None:
        """Wait until all files are written and all deliveries are shown. Raises if they cannot."""
        self._wait_until(
            lambda: (
                self._done == self._added
                and not (self._unshown or self._is_showing or self._rebuild is not None)
            )
        )

    def remove_kept(self) -> None:
        """Remove files that were kept for readers of the store; after ``flush``."""
        self._held.remove_kept()

    def _wait_until(self, is_reached: Callable[[], bool]) -> None:
        with self._changed:
            while not is_reached():
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def close(self) -> None:
        """Stop after the work in progress."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                if self._work:
                    self._do_next()
                self._show_next()
            except OSError as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001  (commits would wait for this thread forever)
                self._failed(OSError(errno.EIO, repr(error)))
            else:
                if self._failure is not None:
                    _log.warning("The files of %s are written again.", self._root)
                    self._failure = None

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._work or self._unshown or self._rebuild is not None or self._closing):
                self._changed.notify_all()
                self._changed.wait()
            return not self._closing

    def _do_next(self) -> None:
        work = self._work[0]
        if isinstance(work, PayloadRegion):
            self._write(work)
        else:
            self._held.remove(work)
        with self._changed:
            self._work.popleft()
            self._done += 1
            if isinstance(work, PayloadRegion):
                self._regions.remove(work)
                self._behind_bytes -= _cost(work)
            self._changed.notify_all()

    def _write(self, region: PayloadRegion) -> None:
        write = self._files.restore if region.is_doubtful else self._files.write
        for offset, payload in region.rest():
            if offset in self._early:
                self._early.remove(offset)
            else:
                write(offset, payload)

    def write_early(self, offset: int) -> None:
        """On the thread: write a file now, because a delivery of it is about to be shown."""
        region = self._region(offset)
        if region is None or offset in self._early:
            return
        payload = region.read(offset)
        if payload is not None and offset not in region.offsets[: region.next]:
            self._files.restore(offset, payload)
            self._early.add(offset)

    def _show_next(self) -> None:
        """Show the deliveries of one record, or take one step of rebuilding everything."""
        with self._changed:
            key = next(iter(self._unshown), None)
            shown = None if key is None else self._unshown.pop(key)
            self._is_showing = key is not None
        if key is not None:
            try:
                self._folders.show(key, shown, self._current(key), self.write_early)
            except StoreCorrupt as error:
                # The engine reports it when it reads the record.
                _log.warning("A record of %s cannot be shown: %s", self._root, error)
            except OSError:
                with self._changed:
                    self._unshown[key] = shown
                raise
            finally:
                self._is_showing = False
        elif self._rebuild is not None:
            try:
                next(self._rebuild)
            except StopIteration:
                self._rebuild = None
            except OSError:
                # A generator that has raised cannot continue.
                self._rebuild = self._begin_rebuild and self._begin_rebuild()
                raise

    def _failed(self, error: OSError) -> None:
        if self._failure is None:
            _log.error(
                "The files of %s cannot be written: %s. The journal has everything; this is "
                "retried every %.0f s.",
                self._root,
                error,
                _RETRY_S,
            )
        with self._changed:
            self._failure = error
            self._changed.notify_all()
            if not self._closing:
                self._changed.wait(_RETRY_S)


def _first(region: PayloadRegion) -> int:
    return region.first


def _cost(region: PayloadRegion) -> int:
    return region.size + _OVERHEAD_BYTES * len(region.offsets)
