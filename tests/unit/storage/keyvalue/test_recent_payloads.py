"""The newest payloads are kept in memory, up to a bound."""

from __future__ import annotations

from penstock.storage.keyvalue.recent_payloads import RecentPayloads


def test_newest_payloads_are_kept_and_older_ones_are_dropped() -> None:
    recent = RecentPayloads()
    megabyte = bytes(1024 * 1024)
    for offset in range(40):
        recent.add(offset, megabyte)
    kept = [offset for offset in range(40) if recent.get_many([offset])[0] is not None]
    assert kept == list(range(40 - len(kept), 40))
    assert 8 <= len(kept) <= 18


def test_none_is_kept_with_a_bound_of_zero() -> None:
    recent = RecentPayloads(0)
    recent.add(1, b"payload")
    assert recent.get_many([1]) == [None]


def test_an_empty_payload_is_kept_too() -> None:
    recent = RecentPayloads()
    recent.add(1, b"")
    assert recent.get_many([1]) == [b""]
    assert recent.get_many([2]) == [None]


def test_payloads_that_are_in_different_places_are_all_found() -> None:
    recent = RecentPayloads(40)
    for offset in (1, 2, 3):
        recent.add(offset, b"%d" % offset * 10)  # The first two are the older generation.
    recent.ahead = {7: b"7", 8: b"8"}
    payloads = {1: b"1" * 10, 3: b"3" * 10, 7: b"7", 8: b"8"}
    for offsets in (
        [7, 8],
        [8, 7],
        [1, 3],
        [3, 8],
        [7, 1],
        [5, 6, 7],
        [7, 9],
        [1, 5, 8],
        [5, 6],
        [],
    ):
        assert recent.get_many(offsets) == [payloads.get(offset) for offset in offsets]
