from __future__ import annotations

from penstock.model.bucket import Bucket

NOW = 1_700_000_000_000


def test_a_full_bucket_is_one_second() -> None:
    bucket = Bucket.full(5, NOW)
    assert (bucket.tokens, bucket.is_full) == (5, True)
    assert bucket.refilled(NOW + 60_000).tokens == 5


def test_it_refills_evenly() -> None:
    empty = Bucket.full(3, NOW).charged(3)
    assert [empty.refilled(NOW + ms).tokens for ms in (0, 333, 334, 667, 1_000)] == [0, 0, 1, 2, 3]
    assert empty.next_at() == NOW + 334
    assert not empty.refilled(NOW + 999).is_full


def test_what_is_given_back_does_not_overflow() -> None:
    assert Bucket.full(5, NOW).charged(-3).tokens == 5
    assert Bucket.full(5, NOW).charged(4).charged(-1).tokens == 2


def test_time_is_counted_once_by_clocks_that_differ() -> None:
    """One server is ahead of the other by a few milliseconds."""
    bucket = Bucket.full(1_000, NOW).charged(1_000).refilled(NOW + 8)
    assert bucket.tokens == 8
    behind = bucket.charged(8).refilled(NOW + 3)
    assert behind.tokens == 0
    assert behind.refilled(NOW + 8).tokens == 0
    assert behind.refilled(NOW + 9).tokens == 1


def test_a_clock_that_was_set_back_holds_it_up_for_a_second_at_most() -> None:
    empty = Bucket.full(5, NOW).charged(5)
    back = empty.refilled(NOW - 3_600_000)
    assert back.tokens == 0
    assert back.refilled(NOW - 3_600_000 + 1_000).tokens == 5


def test_next_at_of_a_bucket_with_tokens_is_in_the_past() -> None:
    assert Bucket.full(5, NOW).next_at() == NOW
