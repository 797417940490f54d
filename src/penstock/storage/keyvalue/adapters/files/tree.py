"""Creates the directories of a store, with a README that explains them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from penstock.errors import CommitsMissing
from penstock.storage.keyvalue.adapters.files.frames import DamagedFrame, TornFrame
from penstock.storage.keyvalue.adapters.files.journal import (
    START,
    Journal,
    journal_path,
    read_title,
)
from penstock.storage.keyvalue.adapters.files.payload_index import PayloadIndex
from penstock.storage.keyvalue.adapters.files.recovery import Recovered, opened
from penstock.storage.keyvalue.adapters.files.snapshot import snapshot_path, write_snapshot
from penstock.storage.keyvalue.adapters.files.spreading import spread_directories
from penstock.storage.keyvalue.adapters.mark_file import MARK_FILE
from penstock.storage.keyvalue.adapters.store_folder import FILE_MODE, FOLDER_MODE

__all__ = [
    "README",
    "create_store",
    "is_files_store",
    "lay_out",
    "lost_files",
    "open_journal",
]

README: Final = """\
This directory is a Penstock store (files:///path). Its contents:

journal/    The truth: every commit since the last snapshot, and the snapshot.
            Never edit, move or delete anything in it.
messages/   One file per message, named by its offset in the log, with exactly the
            published bytes. A thousand to a directory.
queues/     One directory per queue, and in it one per state:

                queues/<queue>/available/5-00000000000000042.orders
                               in_flight/
                               delayed/20260102T030405.678Z-5-00000000000000042.orders
                               failed/
                               done/
                               expired/

            A name is 9 minus the priority, the message id and the topic, so that
            `ls` lists the messages in the order in which they are claimed. Delayed
            ones begin with the time (UTC) at which they are due. A message that went
            to the back of its queue has its position instead, then its message id.
            Every file is a hard link to the file in messages/. The waiting dead
            letters of a queue are its failed/ directory.
inbox/      inbox/<topic>/: a file that is moved there is published under that topic:

                mkdir -p inbox/orders && mv order.json inbox/orders/

            Names that begin with a dot are ignored. The message has the header file
            with the name of the file.
refused/    refused/<topic>/: files of the inbox that could not be published, each with
            a file NAME.error.txt that says why.
tenants/    queues/, inbox/ and refused/ of every tenant other than "default".
PENSTOCK    The newest commit that is known to be synced.
PLACE       Tells this store from its copies.

Read, search and copy anything you like. Changing a file in messages/ or queues/
damages a message; Penstock detects that and refuses to deliver it. Removing a name
in queues/ changes nothing: the directories are derived from the journal, follow it
within moments, and are rebuilt after a crash. To take a consistent copy, stop the
server (or any program that has the store open) and copy the whole directory.
"""
_FOLDERS: Final = ("messages", "inbox")


def create_store(root: Path) -> None:
    """Create the first journal and snapshot, in a directory without a mark file.

    Others are left from a creation that was interrupted, unless they have commits.
    """
    folder = root / "journal"
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    if _has_commits(folder):
        raise CommitsMissing(f"The file {root / MARK_FILE} is missing, but the store has commits.")
    (root / "queues").mkdir(mode=FOLDER_MODE, exist_ok=True)
    Journal.create(folder, 1, START).close()
    write_snapshot(folder, 1, START, {}, PayloadIndex().copy(), clean=True)


def lay_out(root: Path) -> None:
    """Create what may be missing beside the journals: directories, and the README."""
    for name in _FOLDERS:
        (root / name).mkdir(mode=FOLDER_MODE, exist_ok=True)
    spread_directories(root / "messages")
    readme = root / "README"
    if not readme.exists():
        with open(os.open(readme, os.O_WRONLY | os.O_CREAT, FILE_MODE), "w") as file:
            file.write(README)


def _has_commits(folder: Path) -> bool:
    """Whether the directory holds more than an interrupted creation leaves."""
    first = journal_path(folder, 1)
    present = [*folder.glob("*.journal"), *folder.glob("*.snapshot")]
    if not present:
        return False
    if first not in present or not {first, snapshot_path(folder, 1)}.issuperset(present):
        return True  # A creation begins with the first journal.
    with opened(first) as buffer:
        try:
            return read_title(buffer, "journal", 1)[1].end != len(buffer)
        except TornFrame:
            return False
        except DamagedFrame:
            return True


def open_journal(folder: Path, found: Recovered, *, salvaging: bool) -> Journal:
    """The journal to continue, without a torn end or files that belong to no journal."""
    if found.unfinished is not None:
        found.unfinished.unlink()
    path = journal_path(folder, found.number)
    if salvaging:
        _set_aside(folder, found)
    # A killed process leaves frames that are not synced. New frames will say that they are.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if path.stat().st_size > found.size:
            os.ftruncate(descriptor, found.size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Journal(path, found.number, found.salt, found.size, found.end)


def is_files_store(root: Path) -> bool:
    """Whether a directory holds a store of this kind."""
    return (root / "journal").is_dir()


def lost_files(root: Path) -> list[Path]:
    """Everything that salvaging has set aside."""
    return sorted((root / "journal").glob("lost-*/*"))


def _set_aside(folder: Path, found: Recovered) -> None:
    """Keep a copy of what salvaging drops, in ``lost-<frame>``."""
    path = journal_path(folder, found.number)
    later = [other for other in folder.glob("*.journal") if int(other.stem) > found.number]
    if path.stat().st_size == found.size and not later:
        return
    lost = folder / f"lost-{found.end.sequence + 1}"
    lost.mkdir(mode=FOLDER_MODE, exist_ok=True)
    shutil.copyfile(path, lost / path.name)
    for other in later:
        other.rename(lost / other.name)
