"""Packs deliveries into groups with identical history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from penstock.model.limits import MAX_PRIORITY
from penstock.model.states import State
from penstock.storage import dump
from penstock.storage.copied_receipts import RECEIPT_KIND, encode_claim
from penstock.storage.sql.deliveries import (
    DEAD,
    DeliveryGroup,
    DeliveryRecord,
    Mark,
    Phase,
    segment_of,
)

__all__ = ["GroupWriter"]

_PHASES: Final = {
    State.AVAILABLE: Phase.RETURNED,
    State.DELAYED: Phase.DELAYED,
    State.IN_FLIGHT: Phase.IN_FLIGHT,
    State.DONE: Phase.DONE,
    State.EXPIRED: Phase.EXPIRED,
}


class GroupWriter:
    """Adds deliveries in claim order; consecutive ones that are alike become one group."""

    def __init__(self) -> None:
        self._group: DeliveryGroup | None = None
        self._members: list[int] = []
        self._receipts: list[str] = []
        self._leases = 0
        #: How many deliveries each queue has in each phase, as they are counted.
        self.counts: Counter[tuple[int, int]] = Counter()

    def add(
        self,
        queue: int,
        delivery: dump.Delivery,
        message: int,
        *,
        entry: int | None,
        position: int | None,
        partition: str | None,
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """The rows that are complete with this delivery of a message, whose id is the new one."""
        phase = _phase(delivery)
        record = _record(delivery, entry, position, partition)
        segment, index = segment_of(message)
        rank = MAX_PRIORITY - delivery.message.priority
        group = self._group
        alone = record.keyed or entry is not None or position is not None
        if (
            alone
            or group is None
            or (group.queue, group.phase, group.rank, group.segment)
            != (queue, phase, rank, segment)
            or group.record != record
            or index <= self._members[-1]
        ):
            yield from self.flush()
            self._members, self._receipts = [], []
            self._group = DeliveryGroup(queue, phase, rank, segment, self._members, record)
        self._members.append(index)
        if delivery.receipt is not None:
            self._receipts.append(delivery.receipt)
        counted = Phase.RETURNED if phase is Phase.FRESH else phase
        self.counts[queue, int(counted)] += 1

    def flush(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """The row of the last group."""
        group, self._group = self._group, None
        if group is None:
            return
        if group.phase in (Phase.IN_FLIGHT, Phase.DEAD_IN_FLIGHT):
            # Below all numbers of later claims, which contain the time.
            self._leases += 1
            group.record = replace(group.record, lease=self._leases, row_key=self._leases)
            for receipt, message in zip(self._receipts, group.ids(), strict=True):
                claim = (group.queue, group.rank, self._leases, int(message))
                yield "penstock_document", (RECEIPT_KIND, receipt, encode_claim(claim))
        yield "penstock_run", group.row()


def _phase(delivery: dump.Delivery) -> Phase:
    untouched = not delivery.attempts and not delivery.history and delivery.position is None
    if delivery.state is State.AVAILABLE and not delivery.dead and untouched:
        return Phase.FRESH
    phase = _PHASES[delivery.state]
    return Phase(phase + DEAD) if delivery.dead else phase


def _record(
    delivery: dump.Delivery, entry: int | None, position: int | None, partition: str | None
) -> DeliveryRecord:
    message = delivery.message
    marks = tuple(
        Mark.of(
            step.at,
            step.transition,
            step.state,
            dead=step.dead,
            consumer=step.consumer,
            error=step.error,
        )
        for step in delivery.history
        if step.state is not None
    )
    return DeliveryRecord(
        joined_at=message.published_at,
        expires_at=message.expires_at,
        due_at=delivery.due_at,
        attempts=delivery.attempts,
        released=delivery.released,
        claimed_at=delivery.claimed_at,
        consumer=delivery.consumer,
        at=delivery.at,
        error=delivery.error,
        result=delivery.result,
        marks=marks,
        entry=entry,
        keyed=message.key is not None,
        partition=partition,
        deadline=delivery.deadline,
        max_attempts=message.max_attempts,
        position=position,
    )
