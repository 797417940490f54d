"""Settle and claim over HTTP, in one request.

A request whose answer was lost is retried: the settlements as in ``settle``, and the deliveries
that the first attempt granted stay leased until their leases lapse, as in ``claim``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.api import ANONYMOUS
from penstock.broker.claim import check_claim, check_wait
from penstock.broker.scope import to_where
from penstock.client.calling import read
from penstock.client.claim import Claiming
from penstock.client.replay import is_sendable
from penstock.client.settle import Settling, check_outcomes
from penstock.model.delivery import SettleAndClaimReply, Settlement
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import check_name, check_queue_name
from penstock.model.message import Outgoing
from penstock.model.settling_exceptions import SettlingException
from penstock.tracing import traced_settle_and_claim
from penstock.wire.bodies import ClaimBody

__all__ = ["SettlingAndClaiming"]

_REPLY: Final = msgspec.msgpack.Decoder(SettleAndClaimReply)


class SettlingAndClaiming(Settling, Claiming):
    """The verb that ends claims and takes the next ones."""

    @traced_settle_and_claim
    async def settle_and_claim(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        *,
        publish: Sequence[Outgoing] = (),
        limit: int = 1,
        consumer: str = ANONYMOUS,
        lease_ms: Duration | None = None,
        wait_ms: Duration = 0,
        where: str | None = None,
    ) -> SettleAndClaimReply:
        """Settle, then lease up to ``limit`` deliveries of the queue, as two calls would.

        The outcomes come with the deliveries, so they wait for up to ``wait_ms`` too.
        """
        check_queue_name(queue)
        check_name(consumer, "consumer")
        lease_ms, wait_ms = to_ms(lease_ms), to_ms(wait_ms)
        check_claim(limit, lease_ms)
        check_wait(wait_ms)
        if publish:
            publish = self._complete(publish)
        if where is not None and not is_sendable(where):
            to_where(where)
        claim = ClaimBody(limit, lease_ms, wait_ms, consumer, where)
        answer = await self._send_settlements(queue, settlements, publish, claim)
        reply = read(_REPLY, answer)
        check_outcomes(reply.outcomes, settlements)
        return replace(reply, repeated=False) if answer.repeated and reply.repeated else reply
