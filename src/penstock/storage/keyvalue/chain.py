"""The chain of commits: how a store notices that acknowledged commits are missing (X1).

Every commit puts one *link* into its batch: its number, the hash of the previous link, and the last
synced commit at that time. The last ``RING`` links are kept, in a ring of records. A *mark*
outside the ordered store names a recent link that is known to be synced. When a store is opened,

- links whose numbers or hashes are not consecutive mean that commits between them are missing;
- a last link below the mark means that synced commits at the end are missing;
- a missing mark is damage too: every link written since the first mark records that there is one.

Only commits after the mark can be lost unnoticed, and only from the end, which looks like the torn
tail of a crash. ``marks.py`` limits how many.

The hash covers links, not the records of a commit; the checksums of the underlying store cover
those. A link contains the time, so copies of one store that diverged differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from xxhash import xxh3_64_digest

from penstock.errors import CommitsMissing
from penstock.model.clock import Clock
from penstock.storage.keyvalue.adapters import Adapter, Mark
from penstock.storage.keyvalue.batch import Batch
from penstock.storage.keyvalue.encoding import prefix_end, seal, unseal
from penstock.storage.keyvalue.keys import LINK_PREFIX, link_key
from penstock.storage.keyvalue.log import Log
from penstock.storage.keyvalue.stage import Stage

__all__ = ["RING", "Chain", "Link", "UnsyncedGap", "check_links", "has_gap", "read_links"]

#: Links kept. A mark is never further back than that, and opening reads all of them.
RING: Final = 4096
_NO_HASH: Final = bytes(8)
#: Number, hash of the previous link, time, end of the log, last synced commit, flags.
_LINK: Final = struct.Struct("<Q8sqQQB")
_MARKED: Final = 1
_FIRST: Final = 2


class Link(NamedTuple):
    """One commit, as its link describes it."""

    number: int
    previous: bytes
    at: int
    log_end: int
    synced: int
    flags: int
    hash: bytes

    @property
    def is_first(self) -> bool:
        """Whether the chain begins here, so that no earlier link is expected."""
        return bool(self.flags & _FIRST)

    @property
    def has_mark(self) -> bool:
        """Whether a mark existed when this commit was made."""
        return bool(self.flags & _MARKED)


class UnsyncedGap(CommitsMissing):
    """Commits are missing that were not known to be synced, but later ones exist.

    After commits with durability ``os``, a power loss can cause this: the file system may keep the
    beginning of a newer write-ahead log but not the end of an older one.
    """


def read_links(values: Iterable[bytes]) -> list[Link]:
    """The links in order of number."""
    links = []
    for value in values:
        content = unseal(value, "commit link")
        links.append(_link(content))
    links.sort()
    return links


def _link(content: bytes) -> Link:
    number, previous, at, log_end, synced, flags = _LINK.unpack(content)
    return Link(number, previous, at, log_end, synced, flags, xxh3_64_digest(content))


def has_gap(links: list[Link]) -> bool:
    """Whether a commit is missing before another one."""
    if links and not links[0].is_first and len(links) < RING:
        return True
    return any(after.number != before.number + 1 for before, after in pairwise(links))


def check_links(links: list[Link], mark: Mark | None) -> Link | None:
    """The last link of a complete chain; None for a store that has no chain yet.

    Raises ``CommitsMissing``, or ``UnsyncedGap`` if a power loss explains the gap.
    """
    if not links:
        if mark is not None:
            raise _missing(1, mark.number, 0, mark.log_end)
        return None
    first, last = links[0], links[-1]
    known = max(mark.number if mark else 0, *(link.synced for link in links))
    if not first.is_first and len(links) < RING:
        raise _missing(max(1, last.number - RING + 1), first.number - 1, None, None)
    for before, after in pairwise(links):
        if after.number != before.number + 1:
            if before.number >= known:
                raise UnsyncedGap(
                    f"Unsynced commits {before.number + 1} to {after.number - 1} are missing, "
                    "but later ones exist."
                )
            raise _missing(before.number + 1, after.number - 1, before.log_end, after.log_end)
        if after.previous != before.hash and not after.is_first:
            raise CommitsMissing(
                f"Commit {after.number} does not follow commit {before.number} of this store: "
                "some files belong to another copy of the store."
            )
    _check_mark(links, mark)
    return last


def _check_mark(links: list[Link], mark: Mark | None) -> None:
    first, last = links[0], links[-1]
    if mark is None:
        if any(link.has_mark for link in links):
            raise CommitsMissing(
                "The file PENSTOCK of the store, which names its last commit, is missing or has "
                "been emptied; commits may be missing too."
            )
        return
    if mark.number > last.number:
        raise _missing(last.number + 1, mark.number, last.log_end, mark.log_end)
    if mark.number < first.number:
        raise CommitsMissing(
            f"The file PENSTOCK names commit {mark.number}, but the store begins with commit "
            f"{first.number}: the file is older than the store."
        )
    if links[mark.number - first.number].hash != mark.hash:
        raise CommitsMissing(
            f"Commit {mark.number} is not the one that the file PENSTOCK names: some files belong "
            "to another copy of the store."
        )


def _missing(low: int, high: int, start: int | None, end: int | None) -> CommitsMissing:
    detail = f"Commits {low} to {high} are missing"
    if start is not None and end is not None and end > start:
        detail += f", with up to {end - start} log entries from offset {start} to {end - 1}"
    return CommitsMissing(f"{detail}: files of the store were removed, truncated or replaced.")


class Chain:
    """The end of the chain, extended by every commit. Used on the event loop only."""

    __slots__ = (
        "_adapter",
        "_clock",
        "_has_mark",
        "_hash",
        "_is_first",
        "_last",
        "_log",
        "_synced_link",
        "_synced_number",
        "loaded",
        "marked",
        "number",
    )

    def __init__(self, adapter: Adapter, clock: Clock, log: Log) -> None:
        self._adapter = adapter
        self._clock = clock
        self._log = log
        self._hash = _NO_HASH
        self._is_first = True
        self._has_mark = False
        #: The newest link, and the newest one that is known to be synced, encoded.
        self._last = self._synced_link = b""
        self._synced_number = 0
        #: The newest commit; its write may still be in progress.
        self.number = 0
        #: The newest commit when the store was opened.
        self.loaded: Link | None = None
        #: The newest commit that a mark names, or 0.
        self.marked = 0

    def load(self) -> None:
        """Check the chain after opening and continue from its end."""
        pairs = self._adapter.scan(LINK_PREFIX, prefix_end(LINK_PREFIX))
        mark = self._adapter.read_mark()
        links = read_links(value for _, value in pairs)
        last = check_links(links, mark)
        if last is not None:
            self.loaded = last
            self.number = last.number
            self._hash = last.hash
            self._last = _LINK.pack(*last[:-1])
            self._is_first = False
            self.synced_now()  # Opening a store syncs what it recovers.
        if mark is not None:
            self.marked_now(mark)

    def restart(self, stage: Stage, above: int) -> None:
        """Begin a new chain, numbered above ``above`` and above every link, skipping the checks."""
        for key, value in self._adapter.scan(LINK_PREFIX, prefix_end(LINK_PREFIX)):
            above = max(above, _LINK.unpack(unseal(value, "commit link"))[0])
            stage.delete(key)
        self.number = self._synced_number = self.marked = above

    @property
    def is_full(self) -> bool:
        """Whether the next link would overwrite the one that the mark names."""
        return self.number - self.marked >= RING - 1

    def extend(self, batch: Batch) -> None:
        """Add the link of the commit to its batch."""
        synced = self._synced_number
        if self.number - synced >= RING // 2:
            batch.sync = True  # A mark needs a synced commit.
        self.number = number = self.number + 1
        flags = (_MARKED if self._has_mark else 0) | (_FIRST if self._is_first else 0)
        at, log_end = self._clock.now(), self._log.next_offset
        self._last = content = _LINK.pack(number, self._hash, at, log_end, synced, flags)
        self._hash = xxh3_64_digest(content)
        self._is_first = False
        batch.writes[link_key(number % RING)] = seal(content)

    def synced_now(self) -> None:
        """Record that everything up to the newest commit is synced."""
        self._synced_link = self._last
        self._synced_number = self.number

    def marked_now(self, mark: Mark) -> None:
        """Record that the adapter has stored the mark."""
        self.marked = mark.number
        self._has_mark = True

    def mark(self) -> Mark | None:
        """The mark for the newest synced commit; None if it is already marked."""
        if self._synced_number <= self.marked:
            return None
        link = _link(self._synced_link)
        return Mark(link.number, link.hash, link.at, link.log_end)
