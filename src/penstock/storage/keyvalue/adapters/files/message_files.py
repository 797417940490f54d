"""Message files: one file per payload, ``messages/<thousand>/<offset>``, with exactly its bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.errors import StoreUnavailable
from penstock.storage.keyvalue.adapters.store_folder import FILE_MODE, FOLDER_MODE

__all__ = ["MessageFiles"]

_PER_FOLDER: Final = 1000
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class MessageFiles:
    """Writes, reads and removes the files. Paths are strings, because ``Path`` is slow."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/messages"

    def path(self, offset: int) -> str:
        """Where the payload of the log entry at ``offset`` is."""
        return f"{self._root}/{offset // _PER_FOLDER:014}/{offset:017}"

    def write(self, offset: int, payload: bytes | memoryview) -> None:
        """Create the file. It is not synced: the journal has the payload until a checkpoint."""
        path = self.path(offset)
        try:
            descriptor = os.open(path, _CREATE, FILE_MODE)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), FOLDER_MODE, exist_ok=True)
            descriptor = os.open(path, _CREATE, FILE_MODE)
        except FileExistsError:
            # From a write that failed, or a commit that a power loss revoked. A new file, because
            # the old one may be linked into a queue.
            os.unlink(path)
            descriptor = os.open(path, _CREATE, FILE_MODE)
        try:
            written = os.write(descriptor, payload)
            while written < len(payload):
                written += os.write(descriptor, memoryview(payload)[written:])
        finally:
            os.close(descriptor)

    def restore(self, offset: int, payload: bytes | memoryview) -> bool:
        """Write the file unless it has this payload already. Returns whether it was written."""
        if self.read(offset) == payload:
            return False
        self.write(offset, payload)
        return True

    def read(self, offset: int) -> bytes | None:
        """The payload, or None if there is no file."""
        try:
            descriptor = os.open(self.path(offset), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable(f"A message file cannot be opened: {error}.") from error
        try:
            size = os.fstat(descriptor).st_size
            content = os.read(descriptor, size)
            while len(content) < size and (more := os.read(descriptor, size - len(content))):
                content += more
            return content
        except OSError as error:
            raise StoreUnavailable(f"A message file cannot be read: {error}.") from error
        finally:
            os.close(descriptor)

    def remove(self, offsets: Iterable[int]) -> None:
        """Remove the files, and directories that become empty."""
        folder = ""
        for offset in offsets:
            path = self.path(offset)
            if os.path.dirname(path) != folder:
                self._remove_folder(folder)
                folder = os.path.dirname(path)
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._remove_folder(folder)

    @staticmethod
    def _remove_folder(path: str) -> None:
        if path:
            with suppress(OSError):
                os.rmdir(path)
