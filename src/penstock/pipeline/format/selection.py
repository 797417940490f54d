"""Selects entries by a pattern of topics and by bounds of single topics, after they were read.

The server's filters have neither regular expressions nor offsets. Each distinct topic of a batch
is looked at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.limits import MAX_OFFSET

__all__ = ["Selection"]


class Selection:
    """Which entries of a range are rows."""

    def __init__(self, pattern: str | None, limits: Mapping[str, tuple[int, int]] | None) -> None:
        self._pattern = None if pattern is None else re.compile(pattern)
        self._limits = limits

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The selected entries of a batch, in order."""
        if self._pattern is None and self._limits is None:
            return batch
        topics = batch.column("topic").dictionary_encode()
        bounds = [self._bounds(topic) for topic in topics.dictionary.to_pylist()]
        low, high = (
            pa.array([bound[side] for bound in bounds], pa.int64()).take(topics.indices)
            for side in (0, 1)
        )
        offsets = batch.column("offset").cast(pa.int64())
        within = pc.and_(pc.greater_equal(offsets, low), pc.less(offsets, high))
        return batch.filter(within)

    def _bounds(self, topic: str) -> tuple[int, int]:
        if self._pattern is not None and self._pattern.fullmatch(topic) is None:
            return 0, 0
        if self._limits is None:
            return 0, MAX_OFFSET + 1
        return self._limits.get(topic, (0, 0))
