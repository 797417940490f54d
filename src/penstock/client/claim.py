"""Claim over HTTP, and the heartbeats of ordered queues.

A claim whose answer was lost is retried. That is safe (C1), but the deliveries granted to the
first attempt stay leased until their leases lapse (C5), and that grant counts as an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.api import ANONYMOUS
from penstock.broker.claim import check_claim, check_wait
from penstock.broker.scope import to_where
from penstock.client.calling import read
from penstock.client.replay import is_sendable
from penstock.client.scope import Scope
from penstock.client.transport import Request
from penstock.model.claim_queues import check_claim_order, check_claim_queues
from penstock.model.delivery import ClaimOrder, Delivery, Ownership
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import check_name, check_queue_name
from penstock.tracing import traced_claim
from penstock.wire.bodies import ClaimBody, ClaimQueuesBody, ClaimReply, JoinBody
from penstock.wire.codecs import MSGPACK, encode_msgpack

__all__ = ["Claiming"]

_CLAIMS: Final = msgspec.msgpack.Decoder(ClaimReply)
_OWNERSHIP: Final = msgspec.msgpack.Decoder(Ownership)


class Claiming(Scope):
    """The verbs that take deliveries."""

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
        path = "/v1/claims" if names else f"/v1/queues/{check_queue_name(queue)}/claims"
        check_name(consumer, "consumer")
        lease_ms, wait_ms = to_ms(lease_ms), to_ms(wait_ms)
        check_claim(limit, lease_ms)
        check_wait(wait_ms)
        body = (
            ClaimQueuesBody(names, order, limit, lease_ms, wait_ms, consumer, where)
            if names
            else ClaimBody(limit, lease_ms, wait_ms, consumer, where)
        )
        request = Request(
            "POST",
            self._target(path),
            encode_msgpack(body),
            MSGPACK,
            timeout_ms=wait_ms,
            waits=wait_ms > 0,
        )
        return read(_CLAIMS, await self._calls.call(request)).deliveries

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
