"""Settle over HTTP: single settlements of a queue share requests, and each gets its own outcome.

A request whose answer was lost is retried. An ack that took effect the first time succeeds
again; an extend counts from the later time. A nack, reject or release that took effect the first
time is answered ``stale`` the second: the claim is over, and the program has to do the same in
either case. The server recognises a settle with ``publish`` by the claims that it ends and gives
its first answer again; one that ends no claim is not retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.broker.publish import check_batch
from penstock.broker.settle import check_publishes, check_settlements
from penstock.client.address import Address
from penstock.client.call_batcher import CallBatcher
from penstock.client.calling import Answer, Calls, read
from penstock.client.options import ClientOptions
from penstock.client.publish import Publishing, as_sendable, check_shape
from penstock.client.scope import UNENCODABLE, encoded
from penstock.client.transport import Request
from penstock.consume.single_settlements import SingleSettlements, check_current
from penstock.errors import BadInput, BadReply, StaleReceipt
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Outcome,
    Release,
    Settlement,
    SettleReply,
)
from penstock.model.limits import MAX_PAYLOAD_BYTES, check_name, check_queue_name
from penstock.model.message import Outgoing
from penstock.model.payload import plain_settlements
from penstock.model.settling_exceptions import SettlingException
from penstock.tracing import traced_messages, traced_settle
from penstock.wire.bodies import ClaimBody, SettleBody
from penstock.wire.codecs import MSGPACK, encode_msgpack
from penstock.wire.problems import read_problem, to_error

__all__ = ["Settling", "check_outcomes"]

_REPLY: Final = msgspec.msgpack.Decoder(SettleReply)
#: What a settlement adds to a request besides its result or error, approximately.
_SETTLEMENT_BYTES: Final = 60
_CONFLICT: Final = 409


class Settling(Publishing, SingleSettlements):
    """The verbs that end claims."""

    def __init__(self, calls: Calls, address: Address, options: ClientOptions) -> None:
        super().__init__(calls, address, options)
        # One request at a time: callers that are answered together go on together, in requests and
        # commits that are twice as large.
        self._settlements: CallBatcher[str, Settlement, Outcome] = CallBatcher(
            self._settle_singles, replace(options, max_under_way=1)
        )

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
        if publish:
            publish = self._complete(publish)
        return await self._settle(queue, settlements, publish)

    @traced_settle
    async def _settle_one(self, delivery: Delivery, settlement: Settlement) -> Outcome:
        queue = check_queue_name(delivery.queue)
        size = _SETTLEMENT_BYTES + _carried(settlement)
        return check_current(delivery, await self._settlements.add(queue, settlement, size))

    async def _settle_singles(self, queue: str, settlements: list[Settlement]) -> Sequence[Outcome]:
        return (await self._settle(queue, settlements, ())).outcomes

    async def _settle(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        publish: Sequence[Outgoing],
    ) -> SettleReply:
        answer = await self._send_settlements(queue, settlements, publish, None)
        reply = _read(answer)
        check_outcomes(reply.outcomes, settlements)
        # The caller called once; hide the client's own retries.
        return replace(reply, repeated=False) if answer.repeated and reply.repeated else reply

    async def _send_settlements(
        self,
        queue: str,
        settlements: Sequence[Settlement | SettlingException],
        publish: Sequence[Outgoing],
        claim: ClaimBody | None,
    ) -> Answer:
        wait_ms = 0 if claim is None else claim.wait_ms
        request = Request(
            "POST",
            self._target(f"/v1/queues/{queue}/settlements"),
            _encode(settlements, publish, claim),
            MSGPACK,
            repeatable=not publish or any(type(item) is not Extend for item in settlements),
            accepts=_CONFLICT if claim is None else 0,
            timeout_ms=wait_ms,
            waits=wait_ms > 0,
        )
        try:
            return await self._calls.call(request)
        except BadInput:
            _check(settlements, publish)
            raise

    def _complete(self, publish: Sequence[Outgoing]) -> Sequence[Outgoing]:
        check_publishes(publish)
        outgoing: list[Outgoing] = []
        for item in publish:
            check_name(item.topic, "topic")
            outgoing.append(Outgoing(item.topic, traced_messages(check_shape(item.messages))))
        return outgoing


def _read(answer: Answer) -> SettleReply:
    if answer.status != _CONFLICT:
        return read(_REPLY, answer)
    problem = read_problem(answer.status, answer.body)
    error = to_error(problem)
    if isinstance(error, StaleReceipt) and isinstance(problem.outcomes, tuple):
        # Nothing took effect, so any durability is true.
        return SettleReply(problem.outcomes, (), "fsync")
    raise error


def _check(
    settlements: Sequence[Settlement | SettlingException], publish: Sequence[Outgoing]
) -> Sequence[Settlement]:
    """The settlements, exceptions converted. Raises the broker's error if its checks find one."""
    checked = check_settlements(settlements, MAX_PAYLOAD_BYTES)
    for item in publish:
        check_batch(item.messages, MAX_PAYLOAD_BYTES)
    return checked


def _carried(settlement: Settlement) -> int:
    """The size of the result or error; one of another type is refused later."""
    if isinstance(settlement, Release | Extend):
        return 0
    carried = settlement.result if isinstance(settlement, Ack) else settlement.error
    return len(carried) if isinstance(carried, bytes | str) else 0


def check_outcomes(outcomes: Sequence[Outcome], settlements: Sequence[object]) -> None:
    """Refuse a reply that does not answer every settlement."""
    if len(outcomes) != len(settlements):
        raise BadReply(f"{len(outcomes)} answers to {len(settlements)} settlements.")


def _encode(
    settlements: Sequence[Settlement | SettlingException],
    publish: Sequence[Outgoing],
    claim: ClaimBody | None,
) -> bytes:
    # For mypy: tuples encode like lists, and copies are not worth it.
    body = SettleBody(plain_settlements(settlements), publish, claim)  # type: ignore[arg-type]
    try:
        return encode_msgpack(body)
    except UNENCODABLE:
        checked = _check(settlements, publish)
        sendable = [Outgoing(item.topic, as_sendable(item.messages)) for item in publish]
        return encoded(SettleBody(list(checked), sendable, claim), lambda: None)
