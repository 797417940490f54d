"""Shows every delivery as a name in a directory: ``queues/<queue>/<state>/<name>``.

A name is a hard link to the message file, so ``ls``, ``cat``, ``grep`` and ``rsync`` see what a
consumer would get. Names sort in claim order. The directories are derived from the records and
never read, and are rebuilt after a crash. Applying a change twice is harmless.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock.model.limits import DLQ_SUFFIX, is_dead_letter
from penstock.model.states import State
from penstock.storage.keyvalue.adapters.files.message_files import MessageFiles
from penstock.storage.keyvalue.adapters.store_folder import FOLDER_MODE
from penstock.storage.keyvalue.encoding import unseal, untangle
from penstock.storage.keyvalue.keys import (
    ACTIVE_PREFIX,
    DELAYED_PREFIX,
    DONE_PREFIX,
    EXPIRED_PREFIX,
    FAILED_PREFIX,
    LANE_SPAN,
    NUMBER_MASK,
    SPEC_PREFIX,
)
from penstock.storage.keyvalue.metadata import offset_and_topic
from penstock.storage.keyvalue.records import read_available, read_in_flight, read_settled

__all__ = ["SHOWN_PREFIXES", "QueueFolders", "delivery_name", "tenant_folder"]

#: Records whose changes are shown.
SHOWN_PREFIXES: Final = (
    SPEC_PREFIX,
    ACTIVE_PREFIX,
    FAILED_PREFIX,
    DELAYED_PREFIX,
    DONE_PREFIX,
    EXPIRED_PREFIX,
)
_SETTLED_STATES: Final = {
    DONE_PREFIX: State.DONE,
    FAILED_PREFIX: State.FAILED,
    EXPIRED_PREFIX: State.EXPIRED,
}
_STATES: Final = tuple(State)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: A file system without hard links, or a message with more links than it allows.
_NO_LINK: Final = frozenset({errno.EPERM, errno.EMLINK, errno.ENOTSUP})


def tenant_folder(root: Path, tenant: str) -> Path:
    """Where the ``queues`` and the ``inbox`` of a tenant are."""
    return root if tenant == "default" else root / "tenants" / quote(tenant, safe="")


def delivery_name(claim_id: int, message_id: int, topic: str) -> str:
    """A name that sorts in claim order: 9 minus the priority, the position, the topic.

    The position is the message id, unless a retry went to the back of its queue; then the message
    id follows.
    """
    lane, position = divmod(claim_id & NUMBER_MASK, LANE_SPAN)
    number = f"{lane}-{position:017}"
    if position != message_id:
        number += f"-{message_id}"
    return f"{number}.{quote(topic, safe='')}"


def due_prefix(due_at: int) -> str:
    """The time at which a delayed delivery is due, in UTC: ``20260102T030405.678Z-``."""
    moment = _EPOCH + timedelta(milliseconds=due_at)
    return f"{moment:%Y%m%dT%H%M%S}.{due_at % 1000:03}Z-"


class QueueFolders:
    """The directories of all queues of a store."""

    def __init__(self, root: Path, files: MessageFiles) -> None:
        self._root = root
        self._files = files

    def show(
        self,
        key: bytes,
        before: bytes | None,
        after: bytes | None,
        prepare: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Apply the change of one record. ``prepare`` makes sure that a message file exists."""
        if key.startswith(SPEC_PREFIX):
            self._show_queue(key, exists=after is not None)
            return
        old, new = self._deliveries(key, before), self._deliveries(key, after)
        gone = {offset: path for path, offset in old.items() if new.get(path) != offset}
        for path, offset in new.items():
            if old.get(path) == offset:
                continue
            prepare(offset)
            source = gone.pop(offset, None)
            if source is None or not self._move(source, path):
                self._link(offset, path)
        for path in gone.values():
            if path not in new:
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def rebuild(
        self,
        records: Callable[[bytes], Iterator[tuple[bytes, bytes]]],
        has_payload: Callable[[int], bool],
        prepare: Callable[[int], None],
    ) -> Iterator[None]:
        """Remove everything that is shown and show it again, in small steps.

        ``records`` returns the records with a prefix. Message files without a record are removed.
        """
        for root in (self._root, *(self._root / "tenants").glob("*")):
            yield from _remove_tree(root / "queues")
        (self._root / "queues").mkdir(mode=FOLDER_MODE, exist_ok=True)
        yield from self._remove_leftovers(has_payload)
        for prefix in SHOWN_PREFIXES:
            for key, value in records(prefix):
                self.show(key, None, value, prepare)
                yield

    def _remove_leftovers(self, has_payload: Callable[[int], bool]) -> Iterator[None]:
        for folder in _entries(self._root / "messages"):
            offsets = [int(path.name) for path in _entries(folder) if path.name.isdecimal()]
            self._files.remove(offset for offset in offsets if not has_payload(offset))
            yield

    # -- what is shown -----------------------------------------------------------------

    def _folder(self, tenant: str, queue: str) -> str:
        return f"{tenant_folder(self._root, tenant)}/queues/{quote(queue, safe='')}"

    def _show_queue(self, key: bytes, *, exists: bool) -> None:
        tenant, _, queue = key[len(SPEC_PREFIX) :].decode().partition("/")
        folder, dead = self._folder(tenant, queue), self._folder(tenant, queue + DLQ_SUFFIX)
        if not exists:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(dead, ignore_errors=True)
            return
        for state in _STATES:
            _make_folder(f"{folder}/{state}")
            if state not in (State.AVAILABLE, State.FAILED, State.EXPIRED):
                _make_folder(f"{dead}/{state}")
        with suppress(FileExistsError):
            # The waiting dead letters are the failed deliveries of the queue (D1).
            os.symlink(f"../{quote(queue, safe='')}/failed", f"{dead}/available")

    def _deliveries(self, key: bytes, value: bytes | None) -> dict[str, int]:
        """The paths that show the deliveries of a record, with the offsets of their payloads."""
        if value is None:
            return {}
        prefix = next(prefix for prefix in SHOWN_PREFIXES if key.startswith(prefix))
        name, end = untangle(key, len(prefix))
        tenant, queue, *_ = name.decode().split("/")
        folder = self._folder(tenant, queue)
        if prefix == DELAYED_PREFIX:
            body = unseal(value, "delayed")
            rows = read_settled(body) if is_dead_letter(queue) else read_available(body)[0]
            due = due_prefix(int.from_bytes(key[end : end + 8], "big"))
            return _named(f"{folder}/{State.DELAYED}/{due}", rows)
        if prefix == ACTIVE_PREFIX:
            available, position = read_available(value)
            in_flight, _ = read_in_flight(value, position)
            return _named(f"{folder}/{State.AVAILABLE}/", available) | _named(
                f"{folder}/{State.IN_FLIGHT}/", in_flight
            )
        if prefix == EXPIRED_PREFIX:
            value = unseal(value, "expired bucket")
        return _named(f"{folder}/{_SETTLED_STATES[prefix]}/", read_settled(value))

    # -- names -------------------------------------------------------------------------

    def _link(self, offset: int, path: str) -> None:
        source = self._files.path(offset)
        try:
            os.link(source, path)
        except FileNotFoundError:
            _make_folder(os.path.dirname(path))
            with suppress(FileNotFoundError):  # Retention has removed the message.
                _replace_link(source, path)
        except FileExistsError:
            with suppress(FileNotFoundError):
                _replace_link(source, path)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            with suppress(FileExistsError):
                os.symlink(os.path.relpath(source, os.path.dirname(path)), path)

    @staticmethod
    def _move(source: str, path: str) -> bool:
        """Rename a link; False if there is none, or if the new name exists."""
        if os.path.lexists(path):
            with suppress(FileNotFoundError):
                os.unlink(source)
            return False
        try:
            os.rename(source, path)
        except FileNotFoundError:
            return False
        return True


def _named(folder: str, rows: Iterable[tuple[object, ...]]) -> dict[str, int]:
    """Paths in ``folder`` and offsets of rows that begin with message id and claim id."""
    found: dict[str, int] = {}
    for message_id, claim_id, *_, metadata in rows:
        assert isinstance(message_id, int)
        assert isinstance(claim_id, int)
        assert isinstance(metadata, bytes)
        offset, topic = offset_and_topic(metadata)
        found[folder + delivery_name(claim_id, message_id, topic)] = offset
    return found


def _replace_link(source: str, path: str) -> None:
    """Make ``path`` a link to ``source``, whatever it was."""
    if os.path.lexists(path) and os.path.samefile(source, path):
        return
    with suppress(FileNotFoundError):
        os.unlink(path)
    os.link(source, path)


def _make_folder(path: str) -> None:
    os.makedirs(path, FOLDER_MODE, exist_ok=True)


def _remove_tree(folder: Path) -> Iterator[None]:
    """Remove a directory of two levels in small steps. Between two, others may remove parts."""
    for states in [state for queue in _entries(folder) for state in _entries(queue)]:
        if states.is_symlink():
            continue
        for entry in _entries(states):
            with suppress(OSError):
                entry.unlink()
            yield
    shutil.rmtree(folder, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    """What a directory contains; nothing if it was removed."""
    try:
        return [folder / name for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
