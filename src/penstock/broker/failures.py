"""Failed deliveries by what went wrong: which errors there are, how many of each, since when."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from penstock.broker.scope import Scope, check_count, to_where
from penstock.errors import BadInput
from penstock.filters import Filter
from penstock.model.delivery import Snapshot
from penstock.model.failures import (
    FAILURE_SCAN,
    FailureGroup,
    Failures,
    error_pattern,
    fingerprint,
)
from penstock.model.limits import DLQ_SUFFIX, check_queue_name, shown
from penstock.model.message import MessageId
from penstock.model.states import State

__all__ = ["Failing", "check_failures"]

#: Failed deliveries per turn: a few milliseconds.
_PAGE: Final = 500
#: Groups of one reply; the rarest of more are left out.
_MAX_GROUPS: Final = 500
#: Patterns that are counted while the queue is read.
_MAX_PATTERNS: Final = 10_000
_SAMPLE: Final = 3
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")

_pattern: Final = lru_cache(maxsize=4096)(error_pattern)


def check_failures(queue: str, where: str | None, fingerprint: str | None, limit: int) -> None:
    """Refuse what the verb refuses (E1)."""
    if check_queue_name(queue).endswith(DLQ_SUFFIX):
        raise BadInput(
            f"{shown(queue)} is a dead-letter queue; name the queue whose failures you want.",
            field="queue",
        )
    to_where(where)
    check_count("limit", limit, FAILURE_SCAN)
    given: object = fingerprint
    if given is not None and not (isinstance(given, str) and _FINGERPRINT.fullmatch(given)):
        raise BadInput(
            f"{shown(fingerprint)} is not a fingerprint; take one from an earlier reply.",
            field="fingerprint",
        )


class Failing(Scope):
    """The verb that groups failures."""

    async def failures(
        self,
        queue: str,
        *,
        where: str | None = None,
        fingerprint: str | None = None,
        limit: int = FAILURE_SCAN,
    ) -> Failures:
        """The queue's failed deliveries, grouped by error."""
        check_failures(queue, where, fingerprint, limit)
        condition = to_where(where)
        groups = _Groups(fingerprint)
        cursor: str | None = None
        scanned = 0
        while scanned < limit:
            await self._engine.turns.take(self.tenant)
            size = min(_PAGE, limit - scanned)
            items, cursor = await self._failed(queue, condition, size, cursor)
            scanned += len(items)
            for item in items:
                groups.add(item)
            if cursor is None:
                break
        return Failures(groups.largest(), scanned, cursor is not None)

    async def _failed(
        self, queue: str, condition: Filter | None, limit: int, cursor: str | None
    ) -> tuple[tuple[Snapshot, ...], str | None]:
        page = await self._engine.peek(
            self.tenant, queue, State.FAILED, condition, limit, cursor, payloads=False
        )
        return page.items, page.cursor


class _Groups:
    """Counts by pattern."""

    def __init__(self, wanted: str | None) -> None:
        self._wanted = wanted
        self._by_pattern: dict[str, _Group] = {}

    def add(self, item: Snapshot) -> None:
        pattern = _pattern(item.error)
        group = self._by_pattern.get(pattern)
        if group is None:
            if len(self._by_pattern) >= _MAX_PATTERNS:
                return
            group = self._by_pattern[pattern] = _Group(fingerprint(pattern))
        group.add(item, with_ids=group.fingerprint == self._wanted)

    def largest(self) -> tuple[FailureGroup, ...]:
        found = [
            FailureGroup(
                fingerprint=group.fingerprint,
                error=pattern,
                count=group.count,
                first_at=group.first_at,
                last_at=group.last_at,
                sample=tuple(group.sample),
                ids=tuple(group.ids),
            )
            for pattern, group in self._by_pattern.items()
            if self._wanted in (None, group.fingerprint)
        ]
        found.sort(key=lambda group: (-group.count, group.error))
        return tuple(found[:_MAX_GROUPS])


class _Group:
    __slots__ = ("count", "fingerprint", "first_at", "ids", "last_at", "sample")

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.count = 0
        self.first_at = self.last_at = 0
        self.sample: list[Snapshot] = []
        self.ids: list[MessageId] = []

    def add(self, item: Snapshot, *, with_ids: bool) -> None:
        at = item.at or 0
        self.first_at = at if not self.count else min(self.first_at, at)
        self.last_at = max(self.last_at, at)
        self.count += 1
        if len(self.sample) < _SAMPLE:
            self.sample.append(item)
        if with_ids:
            self.ids.append(item.message.id)
