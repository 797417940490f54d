"""Settle and claim in one call, which some engines answer with one commit."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api import ANONYMOUS
from penstock.broker.claim import Claiming, Wanted, check_claim, check_wait
from penstock.broker.scope import count_of, to_where
from penstock.broker.settle import Settling, check_settlements
from penstock.model.delivery import Delivery, SettleAndClaimReply, Settlement, SettleReply
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import check_name, check_queue_name
from penstock.model.settling_exceptions import SettlingException
from penstock.storage.contract import Outgoing
from penstock.tracing import no_settle_span, traced_settle_and_claim

__all__ = ["SettlingAndClaiming"]


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
        wanted = Wanted(limit, consumer, lease_ms, None if where is None else to_where(where))
        if publish or where is not None or not (await self._throttle(queue)).is_unlimited:
            with no_settle_span():
                settled = await self.settle(queue, settlements, publish=publish)
            deliveries = await self._claim_now(queue, limit, consumer, lease_ms, wanted.where)
        else:
            checked = check_settlements(settlements, self._limits.payload_bytes)
            settled, deliveries = await self._settle_and_claim(queue, checked, wanted)
        if not deliveries and wait_ms:
            deliveries = await self._claim_waiting(queue, wanted, wait_ms)
        return SettleAndClaimReply.of(settled, deliveries)

    async def _settle_and_claim(
        self,
        queue: str,
        settlements: Sequence[Settlement],
        wanted: Wanted,
    ) -> tuple[SettleReply, list[Delivery]]:
        """Settle and claim within the tenant's share of the store."""
        cost = count_of(settlements) + wanted.limit
        shares = self._engine.shares
        if not shares.enter(self.tenant, cost):
            await shares.wait(self.tenant, cost)
        try:
            return await self._engine.settle_and_claim(
                self.tenant, queue, settlements, wanted.consumer, wanted.limit, wanted.lease_ms
            )
        finally:
            shares.leave(self.tenant, cost)
