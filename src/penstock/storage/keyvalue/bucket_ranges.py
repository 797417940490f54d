"""Buckets for a range of message ids: retention checks whether a message is still in a queue.

The deliveries of consecutive messages form one range of claim ids per lane and exponent, so one
lookup covers up to fifty ranges, most of them empty. ``stored_in`` skips from each existing bucket
to the next range at or above it, so it costs one seek per lane in use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from penstock.storage.keyvalue.keys import EXPONENT_SHIFT, bucket_of
from penstock.storage.keyvalue.stage import Stage

__all__ = ["ClaimRange", "InBucket", "stored_in"]

#: Claim ids: start and end.
ClaimRange: TypeAlias = tuple[int, int]


class InBucket(Struct, frozen=True):
    """A bucket, and the range of claim ids that is wanted from it."""

    bucket_id: int
    first: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether the range covers everything that the bucket can hold."""
        size = 10 ** (self.bucket_id >> EXPONENT_SHIFT)
        return self.first <= self.bucket_id and self.bucket_id + size <= self.end


def stored_in(stage: Stage, prefix: bytes, ranges: Sequence[ClaimRange]) -> Iterator[InBucket]:
    """Stored buckets that may hold a claim id of one of the ranges, which are ascending."""
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
