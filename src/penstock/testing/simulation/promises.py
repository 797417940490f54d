"""Promises: the replies to clients about the fixed queues (``policies``), and whether they hold.

- ``narrow``: a publish that began after a change of the policy was answered obeys the new filter
  (R1) and the new ``max_depth``; grants never exceed the ``throughput_limit`` in any period.
- ``line``: a partition has one owner per epoch (O1).
- Every queue: the receipt of an ack succeeds again only while its delivery is done by that ack
  (S1), and repeating it changes nothing (S2).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeAlias

from penstock.broker import Broker
from penstock.errors import PenstockError, UnknownMessage
from penstock.model.delivery import Ack, Delivery, Ownership, Receipt
from penstock.model.message import HeaderValue, MessageId, NewMessage, Published
from penstock.model.states import State
from penstock.testing.simulation.policies import FIXED, LINE, NARROW, TENANTS

__all__ = ["Promises"]

#: Acks that are repeated at the end of a run.
_MAX_ACKS: Final = 40
_PAGE: Final = 100


class _Policy(NamedTuple):
    """The part of the policy of ``narrow`` that programs change."""

    change: int
    """Distinguishes equal policies."""
    filter: str
    max_depth: int | None


#: Tenant, queue and message.
_Place: TypeAlias = tuple[str, str, MessageId]


class Promises:
    """The replies of one run that promise something for later."""

    def __init__(self) -> None:
        first = FIXED[NARROW]
        #: The last policy that a publish has obeyed.
        self._obeyed = _Policy(0, first.filter, first.max_depth)
        self._policy: _Policy | None = self._obeyed
        self._changes = 0
        self._changing = 0
        self._granted_at: list[int] = []
        #: When an embedded store was reopened: its token buckets are in memory, and full again.
        self._reopened_at: list[int] = []
        self._owners: dict[tuple[str, int], str] = {}
        #: Messages of the topic ``narrow``, and whether the queue must have them.
        self._routed: dict[MessageId, bool] = {}
        self._held: dict[Receipt, _Place] = {}
        self._acks: dict[Receipt, _Place] = {}
        #: The number of live deliveries in ``narrow`` as committed; None if that is not known.
        self.live: Callable[[], int | None] = lambda: None

    # -- policies ----------------------------------------------------------------------

    @property
    def policy(self) -> _Policy | None:
        """The policy of ``narrow`` that a call that begins now obeys; None if that is unknown."""
        return None if self._changing else self._policy

    @asynccontextmanager
    async def changing(self, filter_: str, max_depth: int | None) -> AsyncIterator[None]:
        """A change of the policy; its outcome is unknown if it fails or overlaps another."""
        self._changes += 1
        self._changing += 1
        change, self._policy = self._changes, None
        try:
            yield
            if change == self._changes and self._changing == 1:
                self._policy = _Policy(change, filter_, max_depth)
        finally:
            self._changing -= 1

    def published(
        self, begun: _Policy | None, messages: Sequence[NewMessage], reply: Sequence[Published]
    ) -> list[str]:
        """Check a reply; ``begun`` is the policy when the call began. Returns the violations."""
        if begun is not None and begun == self.policy and not any(m.duplicate for m in reply):
            takes = _takes(begun.filter)
            for message, item in zip(messages, reply, strict=False):
                self._routed[item.id] = takes(message.headers)
                if self._routed[item.id]:
                    self._obeyed = begun
        return self._judge_depth()

    def _judge_depth(self) -> list[str]:
        """``max_depth`` holds from the first publish on that obeyed it."""
        policy = self._obeyed
        if policy != self.policy or policy.max_depth is None:
            return []
        live = self.live()
        if live is None or live <= policy.max_depth:
            return []
        return [f"max_depth of {NARROW!r} is {policy.max_depth}, and it has {live} deliveries"]

    # -- claims ------------------------------------------------------------------------

    def reopened(self, now: int) -> None:
        """Record that an embedded store was opened again."""
        self._reopened_at.append(now)

    def granted(self, tenant: str, delivery: Delivery) -> None:
        """Record a delivery that a claim returned."""
        self._held[delivery.receipt] = (tenant, delivery.queue, delivery.message.id)
        if (tenant, delivery.queue) == (TENANTS[0], NARROW):
            self._granted_at.append(delivery.claimed_at)

    def acked(self, receipt: Receipt) -> None:
        """Record a successful ack."""
        if receipt in self._held:
            self._acks[receipt] = self._held[receipt]

    def owned(self, tenant: str, queue: str, reply: Ownership) -> list[str]:
        """Check a reply to a join."""
        if (tenant, queue) != (TENANTS[0], LINE):
            return []
        found = []
        for partition, epoch in reply.partitions.items():
            owner = self._owners.setdefault((partition, epoch), reply.consumer)
            if owner != reply.consumer:
                both = f"{owner!r} and {reply.consumer!r}"
                found.append(f"O1: partition {partition!r} in epoch {epoch} has owners {both}")
        return found

    # -- at the end --------------------------------------------------------------------

    async def judge(self, server: Broker) -> list[str]:
        """Check what must hold when all clients are done."""
        found = self._judge_depth() + self._judge_throughput()
        found += await self._judge_routed(server.for_tenant(TENANTS[0]))
        current: set[_Place] = set()
        for receipt, place in list(self._acks.items())[-_MAX_ACKS:]:
            found += await _repeat_ack(server.for_tenant(place[0]), receipt, place, current)
        return found

    def _judge_throughput(self) -> list[str]:
        rate = FIXED[NARROW].throughput_limit
        assert rate is not None
        times = sorted(self._granted_at)
        for first, began in enumerate(times):
            for last in range(first, len(times)):
                count, ms = last - first + 1, times[last] - began
                buckets = 1 + sum(began <= at <= times[last] for at in self._reopened_at)
                if count > rate * buckets + rate * ms / 1000:
                    return [f"{NARROW!r} granted {count} deliveries in {ms} ms"]
        return []

    async def _judge_routed(self, broker: Broker) -> list[str]:
        there: set[MessageId] = set()
        for state in State:
            cursor: str | None = None
            while True:
                page = await broker.peek(NARROW, state, limit=_PAGE, cursor=cursor)
                there.update(item.message.id for item in page.items)
                if (cursor := page.cursor) is None:
                    break
        return [
            f"R1: message {message} is {'not ' if takes else ''}in {NARROW!r}"
            for message, takes in self._routed.items()
            if takes != (message in there)
        ]


async def _state(broker: Broker, queue: str, message: MessageId) -> State | None:
    """The state of a delivery; None if there is none."""
    try:
        found = await broker.message(message)
    except UnknownMessage:
        return None
    return next((one.state for one in found.deliveries if one.queue == queue), None)


def _takes(filter_: str) -> Callable[[Mapping[str, HeaderValue]], bool]:
    only_red = "red" in filter_
    return lambda headers: not only_red or headers.get("color") == "red"


async def _repeat_ack(
    broker: Broker, receipt: Receipt, place: _Place, current: set[_Place]
) -> list[str]:
    """Repeat an ack, which must change nothing, and may succeed only if the delivery is done by it.

    ``current`` are the deliveries for which another ack succeeded.
    """
    _, queue, message = place
    try:
        before = await _state(broker, queue, message)
        reply = await broker.settle(queue, [Ack(receipt)])
        after = await _state(broker, queue, message)
    except PenstockError:
        return []  # The queue was deleted.
    name = f"an ack of message {message} in {queue!r}"
    if before != after:
        return [f"S2: {name} was repeated, and changed it from {before} to {after}"]
    if not reply.outcomes[0].ok:
        return []
    if before != State.DONE or place in current:
        return [f"S1: {name}, which is {before}, succeeded with an old receipt"]
    current.add(place)
    return []
