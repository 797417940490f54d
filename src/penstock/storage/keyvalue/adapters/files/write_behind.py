"""Writes message files and the directories of queues behind the journal, on a thread of its own.

A commit is durable in the journal and visible in memory before this thread hears of it, so nothing
here delays a reply. A payload stays in memory until its file is written; commits wait while these
payloads exceed ``MAX_PENDING_BYTES``. An error, such as a full disk, is logged and retried: the
payloads remain readable, and the journal has them.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.adapters.files.message_files import MessageFiles
from penstock.storage.keyvalue.adapters.files.queue_folders import QueueFolders

__all__ = ["MAX_PENDING_BYTES", "WriteBehind"]

MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
#: What a payload costs besides its bytes, in memory and as a file.
_OVERHEAD_BYTES: Final = 256
#: Files written between two records whose deliveries are shown, while there are more of both.
_FILES_A_TURN: Final = 256
_RETRY_S: Final = 1.0
_log = logging.getLogger("penstock.storage")


class WriteBehind:
    """One thread that writes and removes message files and shows deliveries in directories."""

    def __init__(self, root: Path, files: MessageFiles, folders: QueueFolders) -> None:
        self._root = root
        self._files = files
        self._folders = folders
        self._changed = threading.Condition()
        #: Payloads whose files are not written yet, by offset.
        self._pending: dict[int, bytes] = {}
        self._pending_bytes = 0
        #: Pending payloads whose files were written out of order.
        self._early: set[int] = set()
        #: Offsets to write, and arrays of offsets to remove, in the order of their commits.
        self._work: deque[int | array[int]] = deque()
        #: How much work was ever added, and done.
        self._added = self._done = 0
        #: Records to show: key to the value that is shown now. The oldest first.
        self._unshown: dict[bytes, bytes | None] = {}
        self._current: Callable[[bytes], bytes | None] = lambda _: None
        self._rebuild: Iterator[None] | None = None
        self._failure: OSError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-files", daemon=True)

    def start(
        self, current: Callable[[bytes], bytes | None], rebuild: Iterator[None] | None
    ) -> None:
        """Begin. ``current`` returns the value of a record; ``rebuild`` runs in small steps."""
        self._current = current
        self._rebuild = rebuild
        self._thread.start()

    # -- called by the thread that commits -------------------------------------------------

    def add(
        self,
        payloads: list[tuple[int, bytes]],
        removed: list[array[int]],
        changed: Iterable[tuple[bytes, bytes | None]],
    ) -> None:
        """Take over the files of one commit, and the former values of its records."""
        with self._changed:
            for offsets in removed:
                for offset in offsets:
                    self._forget(offset)
                self._work.append(offsets)
            for offset, payload in payloads:
                self._pending[offset] = payload
                self._pending_bytes += len(payload) + _OVERHEAD_BYTES
                self._work.append(offset)
            self._added += len(payloads) + len(removed)
            for key, value in changed:
                self._unshown.setdefault(key, value)
            self._changed.notify_all()

    @property
    def has_room(self) -> bool:
        """Whether a commit need not wait."""
        return self._pending_bytes < MAX_PENDING_BYTES

    @property
    def pending_bytes(self) -> int:
        """Bytes that are not yet in message files."""
        return self._pending_bytes

    def wait_for_room(self) -> None:
        """Wait while too much is pending. Raises if files cannot be written at all."""
        with self._changed:
            while not self.has_room:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def read(self, offset: int) -> bytes | None:
        """A payload whose file is not written yet."""
        return self._pending.get(offset)

    # -- waiting ---------------------------------------------------------------------------

    @property
    def ticket(self) -> int:
        """The number of the newest work, for ``wait_for``."""
        return self._added

    def wait_for(self, ticket: int) -> None:
        """Wait until all files up to the ticket are written. Raises if they cannot be."""
        with self._changed:
            while self._done < ticket:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def flush(self) -> None:
        """Wait until all files are written and all deliveries are shown. Raises if they cannot."""
        with self._changed:
            while self._done < self._added or self._unshown or self._rebuild is not None:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def close(self) -> None:
        """Stop after the file in progress."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                for _ in range(_FILES_A_TURN):
                    if not self._work or self._closing:
                        break
                    self._write_next()
                self._show_next()
            except OSError as error:
                self._failed(error)
            else:
                if self._failure is not None:
                    _log.warning("Message files of %s are written again.", self._root)
                    self._failure = None

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._work or self._unshown or self._rebuild is not None or self._closing):
                self._changed.notify_all()
                self._changed.wait()
            return not self._closing

    def _write_next(self) -> None:
        work = self._work[0]
        if isinstance(work, int):
            payload = self._pending.get(work)
            if work in self._early:
                self._early.remove(work)
            elif payload is not None:
                self._files.write(work, payload)
        else:
            self._files.remove(work)
        with self._changed:
            self._work.popleft()
            self._done += 1
            if isinstance(work, int):
                self._forget(work)
            self._changed.notify_all()

    def _forget(self, offset: int) -> None:
        payload = self._pending.pop(offset, None)
        if payload is not None:
            self._pending_bytes -= len(payload) + _OVERHEAD_BYTES

    def _show_next(self) -> None:
        """Show the deliveries of one record, or take one step of rebuilding everything."""
        key = next(iter(self._unshown), None)
        if key is not None:
            with self._changed:
                shown = self._unshown[key]
                del self._unshown[key]
            try:
                self._folders.show(key, shown, self._current(key), self._write_early)
            except StoreCorrupt as error:
                # The engine reports it when it reads the record.
                _log.warning("A record of %s cannot be shown: %s", self._root, error)
            except OSError:
                with self._changed:
                    self._unshown[key] = shown
                raise
        elif self._rebuild is not None:
            try:
                next(self._rebuild)
            except StopIteration:
                self._rebuild = None

    def _write_early(self, offset: int) -> None:
        """Write a pending file now, because a delivery of it is about to be shown."""
        payload = self._pending.get(offset)
        if payload is not None and offset not in self._early:
            self._files.write(offset, payload)
            self._early.add(offset)

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
