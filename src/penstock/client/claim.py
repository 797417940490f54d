"""Claim over HTTP, and the heartbeats of ordered queues. Claims of one delivery share requests.

A claim whose answer was lost is retried. That is safe (C1), but the deliveries granted to the
first attempt stay leased until their leases lapse (C5), and that grant counts as an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from penstock.api import ANONYMOUS
from penstock.broker.claim import check_claim, check_wait
from penstock.broker.scope import to_where
from penstock.client.address import Address
from penstock.client.calling import Calls, read
from penstock.client.claim_batcher import ClaimBatcher, ClaimKind
from penstock.client.options import ClientOptions
from penstock.client.replay import is_sendable
from penstock.client.scope import Scope
from penstock.client.transport import Request
from penstock.errors import PenstockError
from penstock.model.claim_queues import check_claim_order, check_claim_queues
from penstock.model.delivery import ClaimOrder, Delivery, Ownership, Release, Settlement
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import check_name, check_queue_name
from penstock.tracing import traced_claim
from penstock.wire.bodies import ClaimBody, ClaimQueuesBody, ClaimReply, JoinBody, SettleBody
from penstock.wire.codecs import MSGPACK, encode_msgpack

__all__ = ["Claiming"]

_CLAIMS: Final = msgspec.msgpack.Decoder(ClaimReply)
_OWNERSHIP: Final = msgspec.msgpack.Decoder(Ownership)


class Claiming(Scope):
    """The verbs that take deliveries."""

    def __init__(self, calls: Calls, address: Address, options: ClientOptions) -> None:
        super().__init__(calls, address, options)
        self._claims = ClaimBatcher(self._claim_singles, self._give_back)

    @traced_claim
    async def claim(
        self,
        queue: str | Sequence[str],
        *,
        limit: int = 1,
        consumer: str = ANONYMOUS,
        lease_ms: Duration | None = None,
        wait_ms: Duration = 0,
        order: ClaimOrder = "given",
        where: str | None = None,
    ) -> list[Delivery]:
        """Lease up to ``limit`` deliveries, waiting up to ``wait_ms`` for the first.

        Of several queues, ``given`` uses a queue only if those before it have too few deliveries;
        ``fair`` gives every queue its turn. With ``where`` only deliveries that match this filter
        are leased, of the first 1,000 that wait; the others stay as they are.
        """
        if where is not None and not is_sendable(where):
            to_where(where)
        check_claim_order(order)
        names = check_claim_queues(queue) if isinstance(queue, list | tuple) else None
        name = "" if names else check_queue_name(queue)
        check_name(consumer, "consumer")
        lease_ms, wait_ms = to_ms(lease_ms), to_ms(wait_ms)
        check_claim(limit, lease_ms)
        check_wait(wait_ms)
        if names:
            several = ClaimQueuesBody(names, order, limit, lease_ms, wait_ms, consumer, where)
            return await self._send_claim("/v1/claims", several)
        if limit == 1 and where is None:
            return await self._claims.claim(ClaimKind(name, consumer, lease_ms, wait_ms))
        body = ClaimBody(limit, lease_ms, wait_ms, consumer, where)
        return await self._send_claim(f"/v1/queues/{name}/claims", body)

    async def _claim_singles(self, kind: ClaimKind, limit: int, wait_ms: int) -> list[Delivery]:
        body = ClaimBody(limit, kind.lease_ms, wait_ms, kind.consumer, apart=limit > 1)
        return await self._send_claim(f"/v1/queues/{kind.queue}/claims", body)

    async def _send_claim(self, path: str, body: ClaimBody | ClaimQueuesBody) -> list[Delivery]:
        request = Request(
            "POST",
            self._target(path),
            encode_msgpack(body),
            MSGPACK,
            timeout_ms=body.wait_ms,
            waits=body.wait_ms > 0,
        )
        return read(_CLAIMS, await self._calls.call(request)).deliveries

    async def _give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries whose callers have gone; it counts as no attempt."""
        releases: list[Settlement] = [Release(delivery.receipt) for delivery in deliveries]
        body = encode_msgpack(SettleBody(releases))
        # If the server is gone, their leases lapse.
        with suppress(PenstockError):
            await self._send("POST", f"/v1/queues/{queue}/settlements", body)

    async def join(self, queue: str, consumer: str) -> Ownership:
        """Join an ordered queue, or heartbeat."""
        check_queue_name(queue)
        body = encode_msgpack(JoinBody(check_name(consumer, "consumer")))
        return read(_OWNERSHIP, await self._send("POST", f"/v1/queues/{queue}/consumers", body))

    async def leave(self, queue: str, consumer: str) -> None:
        """Release the consumer's partitions immediately."""
        check_queue_name(queue)
        check_name(consumer, "consumer")
        await self._send("DELETE", f"/v1/queues/{queue}/consumers/{consumer}")
