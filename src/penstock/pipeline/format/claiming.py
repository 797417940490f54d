"""Claims the deliveries of a consuming stream, and acks again those that its sink already has.

A claim may be lost after its row reached the sink and before the ack: the lease lapsed while the
query was down. Such a delivery is handed out again. It is recognised by its message id and acked,
and its row is not processed a second time, unless the delivery was replayed meanwhile.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from penstock.errors import PenstockError
from penstock.model.delivery import Delivery, Receipt
from penstock.model.limits import DLQ_SUFFIX, MAX_CLAIM, MAX_CLAIM_BYTES
from penstock.model.queue import Ordering, QueuePolicy
from penstock.pipeline.format.consumer_options import ConsumerOptions
from penstock.pipeline.format.leases import Leases, acks, settle
from penstock.pipeline.format.recovery import ended, replayed
from penstock.pipeline.format.suspects import batch_limit
from penstock.pipeline.remote import Remote

__all__ = ["Claiming"]

_log: Final = logging.getLogger(__name__)

#: Payload bytes after which no more is claimed for a micro-batch.
_BATCH_BYTES: Final = 64 * 1024 * 1024


class Claiming:
    """The claims of one stream: its planner's side."""

    def __init__(self, options: ConsumerOptions, remote: Callable[[], Remote]) -> None:
        self.consumer = options.consumer
        """The name of the consumer; the stream makes it unique."""
        self.queue = options.queue
        self.unacked: dict[int, int] = {}
        """Deliveries that the sink has and that are not acked: see ``Batch.unacked``."""
        self._options = options
        self._remote = remote
        self._leases: Leases | None = None
        self._policy: QueuePolicy | None = None
        #: Claimed, and left for the next batches.
        self._ahead: deque[Delivery] = deque()
        #: Whether the next claim may find rows that have to be in a small batch.
        self._careful = True

    # -- claiming ----------------------------------------------------------------------

    def next(self, most: int, wait_ms: int) -> list[Delivery]:
        """Deliveries for a batch, up to ``most``; waits for the first."""
        while True:
            found = self._fill(most, wait_ms)
            fresh = self._ack_again(found)
            if fresh or not found:
                return self._limited(fresh)
            # All of them were acked again. Their successors may be claimed now.
            wait_ms = 0

    def take_again(self, message_ids: Iterable[int]) -> list[Delivery]:
        """Claim these deliveries, as far as they wait; others are left for the next batches."""
        wanted = set(message_ids)
        found: list[Delivery] = []
        examined = 0
        # Deliveries of an earlier batch are at the front of the queue, except behind a priority.
        while wanted and examined < 2 * (len(found) + len(wanted)):
            some = self._claim(min(MAX_CLAIM, len(wanted)), 0)
            if not some:
                break
            examined += len(some)
            for delivery in some:
                message_id = int(delivery.message.id)
                if message_id in wanted:
                    wanted.discard(message_id)
                    found.append(delivery)
                else:
                    self._ahead.append(delivery)
        return found

    def max_attempts(self, delivery: Delivery | None = None) -> int | None:
        """The limit of attempts; None: no limit, in a dead-letter queue."""
        if self.queue.endswith(DLQ_SUFFIX):
            return None
        if delivery is not None and delivery.message.max_attempts is not None:
            return delivery.message.max_attempts
        return self.policy.max_attempts

    @property
    def policy(self) -> QueuePolicy:
        """The queue's policy when it was first needed."""
        if self._policy is None:
            queue = self.queue
            self._policy = self._remote().ask(lambda q: q.queue(queue)).policy
        return self._policy

    @property
    def is_ordered(self) -> bool:
        """Whether rows with one partition key have an order."""
        return self.policy.ordering is Ordering.PARTITION

    def _fill(self, most: int, wait_ms: int) -> list[Delivery]:
        found: list[Delivery] = []
        while self._ahead and len(found) < most:
            found.append(self._ahead.popleft())
        remaining = _BATCH_BYTES - sum(delivery.message.size for delivery in found)
        while len(found) < most and remaining > 0:
            count = min(MAX_CLAIM, most - len(found))
            if self._careful:
                count = min(count, self._careful_count(found))
                if count < 1:
                    break
            try:
                some = self._claim(count, 0 if found else wait_ms)
            except PenstockError:
                if found:
                    break  # Use what was claimed so far.
                raise
            if not some:
                break
            found += some
            size = sum(delivery.message.size for delivery in some)
            remaining -= size
            # A claim of large payloads gives fewer than there are, and so does one of an ordered
            # queue: a partition may have more for the next claim.
            if len(some) < count and size < MAX_CLAIM_BYTES // 2:
                break
        return found

    def _careful_count(self, found: Sequence[Delivery]) -> int:
        """How many to claim next: one, then as many as its batch may have."""
        if not found:
            return 1
        limits = [limit for one in found if (limit := self._limit(one)) is not None]
        self._careful = bool(limits)
        return min(limits) - len(found) if limits else MAX_CLAIM

    def _claim(self, count: int, wait_ms: int) -> list[Delivery]:
        options = self._options
        some = self._remote().ask(
            lambda q: q.claim(
                options.queue,
                limit=count,
                consumer=self.consumer,
                lease_ms=options.lease_ms,
                wait_ms=wait_ms,
            )
        )
        if some:
            lease_ms = some[0].lease_deadline - some[0].claimed_at
            self.hold([delivery.receipt for delivery in some], lease_ms)
        return some

    def _limited(self, found: list[Delivery]) -> list[Delivery]:
        """As many as may share a batch; the others are left for the next one."""
        most = len(found)
        for index, delivery in enumerate(found):
            if index >= most:
                break
            limit = self._limit(delivery)
            if limit is not None:
                self._careful = True
                # A row that has to be in a smaller batch than those before it waits for the next.
                most = min(most, max(index, limit))
        self._ahead.extendleft(reversed(found[most:]))
        return found[:most]

    def _limit(self, delivery: Delivery) -> int | None:
        return batch_limit(delivery.attempts, self.max_attempts(delivery))

    # -- deliveries that the sink has --------------------------------------------------

    def _ack_again(self, found: list[Delivery]) -> list[Delivery]:
        """Ack those that the sink has; returns the others."""
        known = {int(one.message.id): one for one in found if int(one.message.id) in self.unacked}
        if not known:
            return found
        queue = self.queue
        claimed = {message_id: self.unacked[message_id] for message_id in known}
        again = self._remote().ask(lambda q: replayed(q, queue, claimed))
        mine = [one for message_id, one in known.items() if message_id not in again]
        self.ack({int(one.message.id): one.receipt for one in mine}, self.unacked)
        for message_id in again:
            del self.unacked[message_id]
        _log.info("%d deliveries in %r were acked again: the sink has them.", len(mine), queue)
        is_mine = {delivery.receipt for delivery in mine}
        return [delivery for delivery in found if delivery.receipt not in is_mine]

    def ack(
        self, receipts: Mapping[int, Receipt | None], claimed_at: Mapping[int, int]
    ) -> list[int]:
        """Ack deliveries that the sink has, and remember those whose claims were lost.

        Returns the message ids of those.
        """
        queue = self.queue
        held = {receipt: one for one, receipt in receipts.items() if receipt is not None}
        if self._leases is not None:
            self._leases.ending(held)
        stale = self._remote().ask(lambda q: settle(q, queue, acks(held)))
        lost = [held[receipt] for receipt in stale]
        lost += [message_id for message_id, receipt in receipts.items() if receipt is None]
        self.drop(held)
        since = {message_id: claimed_at[message_id] for message_id in lost}
        for message_id in receipts:
            self.unacked.pop(message_id, None)
        self.unacked.update(since)
        return lost

    def forget_ended(self) -> None:
        """Forget deliveries that are not handed out again: someone else has settled them."""
        if self.unacked:
            queue, message_ids = self.queue, list(self.unacked)
            for message_id in self._remote().ask(lambda q: ended(q, queue, message_ids)):
                del self.unacked[message_id]

    # -- leases ------------------------------------------------------------------------

    def hold(self, receipts: Iterable[Receipt], lease_ms: int | None = None) -> None:
        """Keep these claims alive, with the lease that the queue granted if it is known."""
        if self._leases is None:
            options = self._options
            self._leases = Leases(
                options.server, options.queue, self.consumer, ordered=self.is_ordered
            )
        self._leases.hold(receipts, lease_ms or self._options.lease_ms)

    def drop(self, receipts: Iterable[Receipt]) -> None:
        """Stop keeping these alive, because they are settled."""
        if self._leases is not None:
            self._leases.drop(receipts)

    @property
    def held(self) -> list[Receipt]:
        """The claims that are kept alive."""
        return [] if self._leases is None else list(self._leases)

    def close(self) -> list[Receipt]:
        """Stop keeping claims alive; returns those that are in no batch."""
        if self._leases is not None:
            self._leases.close()
            self._leases = None
        unused = [delivery.receipt for delivery in self._ahead]
        self._ahead.clear()
        return unused
