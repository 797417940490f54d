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
