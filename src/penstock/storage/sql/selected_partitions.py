"""Claims with a selector on ordered queues: the next delivery of a partition has to match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from penstock.model.message import MessageId
from penstock.storage.claim_selector import ClaimSelector
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.deliveries import DeliveryGroup
from penstock.storage.sql.granting import Claim
from penstock.storage.sql.selected_claim import decide
from penstock.storage.sql.work import Work

__all__ = ["count_matching", "first_matching"]

#: Partitions whose groups are read in one statement.
_BATCH: Final = 100


class _Pick(Protocol):
    """A candidate delivery."""

    @property
    def message(self) -> MessageId: ...


class _First(Protocol):
    """The next delivery of a partition."""

    @property
    def pick(self) -> _Pick: ...

    @property
    def partition(self) -> bytes: ...


F = TypeVar("F", bound=_First)


async def first_matching(
    core: Core, work: Work, queue: Queue, asked: Claim, firsts: Sequence[F]
) -> list[F]:
    """The partitions whose next delivery matches, as many as the claim can use.

    ``firsts`` are in claim order. A delivery without attempts left is not handed out, so the
    partitions behind it may be needed.
    """
    selector = asked.selector
    assert selector is not None
    found: list[F] = []
    remaining = asked.limit
    for start in range(0, len(firsts), _BATCH):
        some = firsts[start : start + _BATCH]
        rows = await work.session.fetch(
            "partition_groups",
            queue=queue.number,
            partitions=sorted(first.partition for first in some),
            most=1,
        )
        groups = [DeliveryGroup.read(row) for row in rows]
        failing = {
            message
            for group in groups
            if moves.is_exhausted(queue, group.record)
            for message in group.ids()
        }
        offsets = _offsets([first.pick for first in some], groups)
        messages = await decide(core, work, selector, offsets)
        for first, offset in zip(some, offsets, strict=True):
            message = messages.get(offset)
            if message is not None and selector.takes(message):
                found.append(first)
                remaining -= first.pick.message not in failing
        if remaining <= 0:
            break
    return found


async def count_matching(
    core: Core,
    work: Work,
    selector: ClaimSelector,
    picks: Sequence[_Pick],
    groups: Iterable[DeliveryGroup],
) -> int:
    """How many of the candidates match before the first that does not."""
    offsets = _offsets(picks, groups)
    messages = await decide(core, work, selector, offsets)
    for count, offset in enumerate(offsets):
        message = messages.get(offset)
        if message is None or not selector.takes(message):
            return count
    return len(offsets)


def _offsets(picks: Sequence[_Pick], groups: Iterable[DeliveryGroup]) -> list[int]:
    """The newest entries of the candidates. The group of a replaced message has one member."""
    replaced = {
        group.first: group.record.entry for group in groups if group.record.entry is not None
    }
    return [replaced.get(pick.message, pick.message) for pick in picks]
