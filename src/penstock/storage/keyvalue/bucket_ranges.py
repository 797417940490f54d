"""Buckets of a range of message ids: where retention asks whether a message is still in a queue.

The deliveries of consecutive messages are one range of claim ids a lane and exponent, so one
question is up to fifty ranges, nearly all of them empty. ``stored_in`` leaps from a bucket that is
there to the next range that is not below it: it costs as many seeks as there are lanes in use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from penstock.storage.keyvalue.keys import EXPONENT_SHIFT, bucket_of
from penstock.storage.keyvalue.stage import Stage

__all__ = ["ClaimRange", "InBucket", "stored_in"]

#: Claim ids, from and to.
ClaimRange: TypeAlias = tuple[int, int]


class InBucket(Struct, frozen=True):
    """A bucket, and the claim ids that are asked for in it."""

    bucket_id: int
    first: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether all that the bucket can hold is asked for."""
        size = 10 ** (self.bucket_id >> EXPONENT_SHIFT)
        return self.first <= self.bucket_id and self.bucket_id + size <= self.end


def stored_in(stage: Stage, prefix: bytes, ranges: Sequence[ClaimRange]) -> Iterator[InBucket]:
    """Stored buckets that may hold a claim id of one of the ranges, which rise."""
    ends = [end for _, end in ranges]
    last = prefix + ends[-1].to_bytes(8, "big")
    index = 0
    position = 0
    while index < len(ranges):
        start = max(position, bucket_of(ranges[index][0]))
        for key, _ in stage.scan(prefix + start.to_bytes(8, "big"), last):
            position = int.from_bytes(key[-8:], "big")
            if position >= ends[index]:
                index = bisect_right(ends, position)
                break
            yield InBucket(position, *ranges[index])
        else:
            return
