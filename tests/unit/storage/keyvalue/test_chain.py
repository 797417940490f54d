"""Links of commits, and what is missing when they do not fit together (X1)."""

from __future__ import annotations

import struct

import pytest

from penstock.errors import CommitsMissing, StoreCorrupt
from penstock.storage.keyvalue.adapters import Mark
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.batch import Batch
from penstock.storage.keyvalue.chain import RING, Chain, Link, UnsyncedGap, check_links, read_links
from penstock.storage.keyvalue.log import Log
from penstock.storage.keyvalue.stage import Stage
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

#: The first link of a store: commit 1, at 1,700,000,000,000 ms, the log empty, nothing synced.
KEY = bytes.fromhex("010719 0001")
VALUE = bytes.fromhex(
    "0100000000000000 0000000000000000 0068e5cf8b010000 0000000000000000 0000000000000000 02"
    "e17206a5"
)


def new_chain() -> Chain:
    adapter = MemoryAdapter()
    return Chain(adapter, FakeClock(), Log(Stage(adapter)))


def commits(count: int, *, sync: bool = True, mark_after: int = 0) -> tuple[list[Link], list[Mark]]:
    """The links that ``count`` commits leave, and the marks that could be taken after each."""
    chain, values, marks = new_chain(), dict[bytes, bytes | None](), []
    for number in range(1, count + 1):
        batch = Batch()
        chain.extend(batch)
        values |= batch.writes
        if sync or batch.sync:
            chain.synced_now()
            mark = chain.mark()
            assert mark is not None
            marks.append(mark)
            if mark_after and number >= mark_after:
                chain.marked_now(mark)
    return read_links(value for value in values.values() if value), marks


def test_a_link_is_what_the_page_of_formats_shows() -> None:
    batch = Batch()
    new_chain().extend(batch)
    assert batch.writes == {KEY: VALUE}


def test_a_store_without_links_has_no_chain_yet() -> None:
    assert check_links([], None) is None


@law("X1")
def test_a_chain_that_is_whole_ends_with_its_last_link() -> None:
    links, marks = commits(5)
    for mark in marks:
        assert check_links(links, mark) == links[-1]


@law("X1")
def test_links_that_vanished_below_a_mark_are_missed() -> None:
    _, marks = commits(5)
    with pytest.raises(CommitsMissing, match="Commits 1 to 5"):
        check_links([], marks[-1])


@law("X1")
@pytest.mark.parametrize("gone", [(0,), (1,), (2, 3)], ids=["first", "second", "two"])
def test_a_missing_link_is_missed(gone: tuple[int, ...]) -> None:
    links, marks = commits(6)
    left = [link for place, link in enumerate(links) if place not in gone]
    with pytest.raises(CommitsMissing):
        check_links(left, marks[-1])
    with pytest.raises(CommitsMissing):
        check_links(left, None)


@law("X1")
def test_an_end_below_the_mark_is_missed_and_one_above_it_is_a_torn_tail() -> None:
    links, marks = commits(6)
    for end in range(1, 6):
        assert check_links(links[:end], marks[end - 1]) == links[end - 1]
        with pytest.raises(CommitsMissing, match=f"Commits {end + 1} to 6"):
            check_links(links[:end], marks[-1])


@law("X1")
def test_a_missing_mark_is_missed_once_there_was_one() -> None:
    assert check_links(commits(6)[0], None) is not None
    with pytest.raises(CommitsMissing, match="PENSTOCK"):
        check_links(commits(6, mark_after=3)[0], None)


@law("X1")
def test_links_of_another_copy_are_told_by_their_hash() -> None:
    links, marks = commits(6)
    forged = links[2]._replace(hash=b"12345678")
    with pytest.raises(CommitsMissing, match="another copy"):
        check_links([*links[:2], forged, *links[3:]], None)
    with pytest.raises(CommitsMissing, match="another copy"):
        check_links(links, Mark(marks[-1].number, b"12345678", 0, 0))


@law("X1")
def test_the_ring_keeps_the_newest_links() -> None:
    links, marks = commits(RING + 10)
    assert [link.number for link in links] == list(range(11, RING + 11))
    assert check_links(links, marks[-1]) == links[-1]
    with pytest.raises(CommitsMissing, match="older than the store"):
        check_links(links, marks[5])
    # An older log that is gone leaves the links that its own had replaced.
    stale = commits(RING)[0][:3]
    with pytest.raises(CommitsMissing):
        check_links(sorted([*stale, *links[3:]]), marks[-1])


@law("P1")
def test_a_gap_of_commits_that_were_never_synced_is_what_a_power_loss_leaves() -> None:
    links, _ = commits(6, sync=False)
    with pytest.raises(UnsyncedGap):
        check_links([*links[:2], *links[4:]], None)


def test_commits_without_a_sync_are_synced_in_time_for_a_mark() -> None:
    _, marks = commits(RING, sync=False)
    assert [mark.number for mark in marks] == [RING // 2 + 1]


@law("X1")
def test_a_damaged_link_is_refused() -> None:
    with pytest.raises(StoreCorrupt):
        read_links([VALUE[:5] + b"\x01" + VALUE[6:]])
    with pytest.raises((StoreCorrupt, struct.error)):
        read_links([b""])
