"""The broker's part of settle: refuse the call if one settlement is malformed (E1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from penstock.broker.claim import check_lease
from penstock.broker.publish import Publishing, is_long
from penstock.broker.scope import count_of
from penstock.consume.single_settlements import SingleSettlements, check_current
from penstock.errors import BadInput, SchemaViolation, TooLarge, TopicChanged
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Outcome,
    Reject,
    Release,
    Settlement,
    SettleReply,
)
from penstock.model.limits import (
    MAX_BATCH,
    MAX_NACK_DELAY_MS,
    check_name,
    check_queue_name,
    check_whole,
)
from penstock.model.message import NewMessage
from penstock.model.payload import to_result
from penstock.model.queue import TopicPolicy
from penstock.model.settling_exceptions import SettlingException
from penstock.storage.contract import Outgoing
from penstock.tracing import traced_settle

__all__ = ["Settling", "check_publishes", "check_settlements"]

#: Topics that one settle publishes to, with one batch per topic.
MAX_PUBLISHES: Final = 100
_KINDS: Final = (Ack, Nack, Reject, Release, Extend)


class Settling(Publishing, SingleSettlements):
    """The verbs that end claims."""

    @traced_settle
    async def settle(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        *,
        publish: Sequence[Outgoing] = (),
    ) -> SettleReply:
        """End claims, each on its own; with ``publish``, all of it in one commit or nothing."""
        check_queue_name(queue)
        check_publishes(publish)
        publish = tuple(publish)
        cost = count_of(settlements)
        for item in publish:
            check_name(item.topic, "topic")
            cost += count_of(item.messages)
        shares = self._engine.shares
        if not shares.enter(self.tenant, cost):
            await shares.wait(self.tenant, cost)
        try:
            if not publish:
                settlements = check_settlements(settlements, self._limits.payload_bytes)
                return await self._engine.settle(self.tenant, queue, settlements)
            tries = 0
            while True:
                try:
                    return await self._settle_and_publish(queue, settlements, publish)
                except (TopicChanged, SchemaViolation) as error:
                    tries += 1
                    await self._check_again(error, tries, *(item.topic for item in publish))
        finally:
            shares.leave(self.tenant, cost)

    async def _settle_and_publish(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        publish: tuple[Outgoing, ...],
    ) -> SettleReply:
        large: dict[int, tuple[Sequence[NewMessage], TopicPolicy | None]] = {}
        for index, item in enumerate(publish):
            if is_long(item.messages):
                large[index] = await self._checked(item.topic, item.messages)
        demands = [
            self._remembered(item.topic) or await self._demand(item.topic) for item in publish
        ]
        # No await between this and the engine: the caller could change its lists.
        settlements = check_settlements(settlements, self._limits.payload_bytes)
        by: dict[str, TopicPolicy | None] = {}
        outgoing: list[Outgoing] = []
        for index, item in enumerate(publish):
            demand = demands[index]
            messages, policy = large.get(index) or (
                self._check_batch(item.topic, item.messages, demand),
                demand.policy,
            )
            if by.setdefault(item.topic, policy) != policy:
                raise TopicChanged(f"The policy of topic {item.topic!r} changes.", field="publish")
            outgoing.append(Outgoing(item.topic, messages))
        return await self._engine.settle(self.tenant, queue, settlements, outgoing, checked=by)

    async def _settle_one(self, delivery: Delivery, settlement: Settlement) -> Outcome:
        reply = await self.settle(delivery.queue, (settlement,))
        return check_current(delivery, reply.outcomes[0])


def check_publishes(publish: Sequence[Outgoing]) -> None:
    """Refuse a list that is too long or has an item that is not an ``Outgoing``."""
    if not isinstance(publish, list | tuple) or any(
        not isinstance(item, Outgoing) for item in publish
    ):
        raise BadInput("publish must be a list or tuple of Outgoing.", field="publish")
    if len(publish) > MAX_PUBLISHES:
        raise TooLarge(
            f"A settle publishes to {len(publish)} topics; the limit is {MAX_PUBLISHES}.",
            field="publish",
            limit=MAX_PUBLISHES,
        )


def check_settlements(
    settlements: Sequence[Settlement | SettlingException], result_limit: int
) -> Sequence[Settlement]:
    """The settlements, exceptions converted; refuses the call if any of them is malformed."""
    if not isinstance(settlements, list | tuple):
        raise BadInput("settlements must be a list or tuple.", field="settlements")
    if not settlements:
        raise BadInput("There must be at least one settlement.", field="settlements", limit=1)
    if len(settlements) > MAX_BATCH:
        raise TooLarge(
            f"{len(settlements)} settlements; the limit is {MAX_BATCH}.",
            field="settlements",
            limit=MAX_BATCH,
        )
    converted: list[Settlement | SettlingException] = []
    for index, item in enumerate(settlements):
        if not isinstance(item, _KINDS):
            if isinstance(item, SettlingException):
                # The exception has checked its own fields.
                converted = converted or list(settlements)
                converted[index] = item.to_settlement()
                continue
            raise BadInput(
                "A settlement must be an Ack, Nack, Reject, Retry, Release or Extend.",
                field="settlements",
            )
        if type(item.receipt) is not str:
            raise BadInput("A receipt must be the text that claim returned.", field="receipt")
        if isinstance(item, Ack):
            if item.result is not None:
                if type(item.result) is not bytes:
                    item = Ack(item.receipt, to_result(item.result))  # noqa: PLW2901
                    converted = converted or list(settlements)
                    converted[index] = item
                _check_result(item.result, result_limit)
        elif isinstance(item, Extend):
            if item.lease_ms is not None:
                check_lease(item.lease_ms)
        else:
            _check_return(item)
    return cast(Sequence[Settlement], converted or settlements)


def _check_return(item: Nack | Reject | Release) -> None:
    if not isinstance(item, Release):
        _check_error(item.error)
    if not isinstance(item, Reject) and item.delay_ms is not None:
        check_whole("delay_ms", item.delay_ms, 0, MAX_NACK_DELAY_MS)


def _check_result(result: bytes | None, limit: int) -> None:
    if result is not None and len(result) > limit:
        raise TooLarge(
            f"A result of {len(result)} bytes is over the limit of {limit}.",
            field="result",
            limit=limit,
        )


def _check_error(error: object) -> None:
    if error is not None and type(error) is not str:
        raise BadInput(f"An error must be text, not {type(error).__name__}.", field="error")
