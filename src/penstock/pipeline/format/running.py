"""The batch that runs: its rows and their claims, also after a restart and after a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from penstock.model.delivery import Delivery, Nack, Receipt
from penstock.pipeline.format.batch import Batch
from penstock.pipeline.format.claimed_slices import Slice, fresh_slice
from penstock.pipeline.format.claiming import Claiming
from penstock.pipeline.format.claims import Claim, claim_of
from penstock.pipeline.format.leases import releases, settle
from penstock.pipeline.format.recovery import recover, retried_apart
from penstock.pipeline.format.suspects import batch_limit
from penstock.pipeline.remote import Remote

__all__ = ["Row", "Running", "give_back", "recovered", "resumed", "rows_of", "slices_of"]


class Row(Struct, frozen=True):
    """A delivery of the batch that runs."""

    receipt: Receipt | None
    attempts: int
    max_attempts: int | None


class Running(Struct):
    """The batch that runs, or has run and is not acked yet."""

    batch: Batch
    rows: dict[int, Row]
    """By message id; not those that are settled already."""
    deliveries: list[Delivery] | None = None
    """Of a batch that this process has claimed."""
    is_planned: bool = False

    @property
    def receipts(self) -> list[Receipt]:
        """The claims that are held, as far as is known."""
        return [row.receipt for row in self.rows.values() if row.receipt is not None]


def rows_of(deliveries: Sequence[Delivery], claiming: Claiming) -> dict[int, Row]:
    """The rows of deliveries that have just been claimed."""
    return {
        int(one.message.id): Row(one.receipt, one.attempts, claiming.max_attempts(one))
        for one in deliveries
    }


def resumed(remote: Remote, claiming: Claiming, batch: Batch) -> Running:
    """A batch of an earlier process that runs again: without settled rows, and claimed again.

    The earlier process may still be giving its claims back. It cannot after they are released
    here, so what the histories say from then on is final.
    """
    running = recovered(remote, claiming, batch)
    held = running.receipts
    if held and batch.stream:
        remote.ask(lambda q: settle(q, claiming.queue, releases(held)))
        claiming.drop(held)
        running = recovered(remote, claiming, batch)
    waiting = [message_id for message_id, row in running.rows.items() if row.receipt is None]
    running.rows |= rows_of(claiming.take_again(waiting), claiming)
    return running


def recovered(remote: Remote, claiming: Claiming, batch: Batch) -> Running:
    """A batch of an earlier process, with the claims that are still live."""
    queue, most = claiming.queue, claiming.max_attempts()
    if not batch.stream:
        # Of an older version: the offset has the receipts.
        running = Running(
            batch, {one.message_id: Row(one.receipt, one.attempts, most) for one in batch.claims}
        )
        claiming.hold(running.receipts)
        return running
    found = remote.ask(lambda q: recover(q, queue, claiming.consumer, batch))
    held = list(found.held.values())
    if found.given_up:
        # Some are held if the process was killed while it gave them back.
        remote.ask(lambda q: settle(q, queue, releases(held)))
        return Running(batch, {})
    running = Running(
        batch,
        {
            one.message_id: Row(found.held.get(one.message_id), one.attempts, most)
            for one in batch.claims
            if one.message_id not in found.ended
        },
    )
    claiming.hold(running.receipts)
    return running


def give_back(remote: Remote, claiming: Claiming, running: Running) -> None:
    """Give the claims of a failed batch back: each of its rows has used up an attempt.

    If too many rows share a batch for the next attempt, the batch is given up: it is empty from
    now on, and its rows are claimed for later batches.
    """
    limits = [
        limit
        for row in running.rows.values()
        if (limit := batch_limit(row.attempts + 1, row.max_attempts)) is not None
    ]
    name, number = claiming.consumer, running.batch.number
    why = f"Micro-batch {number} of {name} failed; it is run again."
    if limits and len(running.rows) > min(limits):
        why = retried_apart(name, number)
    # Without the backoff of the queue: the batch may be run again at any moment.
    nacks = [Nack(receipt, why, 0) for receipt in running.receipts]
    remote.ask(lambda q: settle(q, claiming.queue, nacks))


def slices_of(running: Running) -> Iterator[Slice]:
    """The partitions of the batch."""
    begin, batch = 0, running.batch
    for part in batch.parts():
        if running.deliveries is not None:
            own = running.deliveries[begin : begin + len(part)]
            begin += len(part)
            yield fresh_slice([claim_of(delivery) for delivery in own], own, batch.store)
        else:
            # Also a slice that has no rows left, so that the others keep their numbers.
            yield Slice(list(_current(part, running.rows)), None, batch.store)


def _current(part: Sequence[Claim], rows: Mapping[int, Row]) -> Iterator[Claim]:
    for claim in part:
        row = rows.get(claim.message_id)
        if row is not None:
            yield replace(claim, attempts=row.attempts, receipt=row.receipt)
