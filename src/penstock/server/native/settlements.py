"""Settlements: end claims, each independently; with publish, all in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from penstock.broker.settle import MAX_PUBLISHES
from penstock.broker.waiting import check_wait
from penstock.errors import (
    BadInput,
    Busy,
    QueueFull,
    SchemaViolation,
    StaleReceipt,
    TooLarge,
    TooManyQueues,
    UnknownQueue,
)
from penstock.model.delivery import (
    Extend,
    Outcome,
    SettleAndClaimReply,
    Settlement,
    SettleReply,
    Verdict,
)
from penstock.model.limits import MAX_BATCH
from penstock.model.message import NewMessage, Outgoing
from penstock.server.call import Call
from penstock.server.claiming import limit_of, or_wait, within_bounds
from penstock.server.decoding import Lists, format_of, item_bytes
from penstock.server.replies import Plain, problem_reply
from penstock.server.request_parsing import ConvertedBody
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import ClaimBody, SettleBody
from penstock.wire.codecs import JSON
from penstock.wire.payloads import (
    JsonMessage,
    JsonOutgoing,
    JsonSettleBody,
    JsonSettleReply,
    to_new_message,
)
from penstock.wire.problems import to_problem
from penstock.wire.splitting import Bounds, Piece

__all__ = ["ROUTES"]


class SettlementsBody(ConvertedBody[SettleBody, JsonSettleBody]):
    """Settlements and messages published with them; a large body is decoded in pieces."""

    def __init__(self) -> None:
        super().__init__(SettleBody, JsonSettleBody, _from_json)
        settlements = {"settlements": Settlement}
        self._lists = Lists(SettleBody, settlements)
        self._json_lists = Lists(JsonSettleBody, settlements)
        self._outgoing = Lists(Outgoing, {"messages": NewMessage})
        self._json_outgoing = Lists(JsonOutgoing, {"messages": JsonMessage})

    async def decode_large(self, body: bytes, media: str, payload_bytes: int) -> SettleBody:
        """Decode the value, its lists and their nested lists in pieces."""
        coded = format_of(media)
        each = Bounds(MAX_BATCH, item_bytes(payload_bytes))
        # A list of messages may be as large as the body, and is split in turn.
        whole = len(body)
        topics = Bounds(MAX_PUBLISHES, whole, whole, piece_items=1, large_member="")
        bounds = {"settlements": each, "publish": topics}
        outgoing: Lists[Any] = self._json_outgoing if coded.is_json else self._outgoing
        convert = to_new_message if coded.is_json else None

        async def read(piece: Piece) -> Outgoing:
            begin, end = piece.begin, piece.end
            inner = {"messages": each}
            item = await outgoing.decode(coded, body, inner, convert, begin=begin, end=end)
            return Outgoing(item.topic, item.messages)

        lists: Lists[Any] = self._json_lists if coded.is_json else self._lists
        found = await lists.decode(coded, body, bounds, nested={"publish": read})
        return SettleBody(found.settlements, found.publish, found.claim)


def _from_json(body: JsonSettleBody) -> SettleBody:
    return SettleBody(
        body.settlements,
        [
            Outgoing(item.topic, [to_new_message(message) for message in item.messages])
            for item in body.publish
        ],
        body.claim,
    )


async def settle(
    call: Call,
    query: Empty,  # noqa: ARG001
    body: SettleBody,
) -> SettleReply | SettleAndClaimReply | Plain:
    """End claims; if none took effect and there is no claim, the whole call is refused."""
    for outgoing in body.publish:
        call.check("publish", outgoing.topic)
    if body.claim is not None:
        return await _settle_and_claim(call, body, body.claim)
    reply = await call.broker.settle(call.name, body.settlements, publish=body.publish)
    _count(call, body, reply.outcomes)
    if any(outcome.verdict is Verdict.OK for outcome in reply.outcomes):
        return reply
    return _nothing_settled(call, reply)


async def _settle_and_claim(call: Call, body: SettleBody, asked: ClaimBody) -> SettleAndClaimReply:
    check_wait(asked.wait_ms)
    call.hold.check()
    reply = await call.broker.settle_and_claim(
        call.name,
        body.settlements,
        publish=body.publish,
        limit=await limit_of(call, asked),
        consumer=asked.consumer,
        lease_ms=asked.lease_ms,
        where=asked.where,
    )
    _count(call, body, reply.outcomes)
    try:
        deliveries = await within_bounds(call.broker, call.hold, reply.deliveries)
        deliveries = await or_wait(call, asked, deliveries)
    except Busy:
        if not any(outcome.ok for outcome in reply.outcomes):
            raise
        deliveries = []  # The caller must learn what was settled; its next claim is refused.
    return replace(reply, deliveries=deliveries)


def _count(call: Call, body: SettleBody, outcomes: Sequence[Outcome]) -> None:
    """Count the outcomes, and free the credit of streams."""
    if call.service.streams.held:
        _give_credit(call, body, outcomes)
    call.service.metrics.settled(body.settlements, outcomes)


def _give_credit(call: Call, body: SettleBody, outcomes: Sequence[Outcome]) -> None:
    streams = call.service.streams
    for settlement, outcome in zip(body.settlements, outcomes, strict=True):
        if outcome.verdict is Verdict.OK:
            held = (call.broker.tenant, call.name, settlement.receipt)
            if type(settlement) is Extend:
                streams.extended(held, outcome.until)
            else:
                streams.settled(held)


def _nothing_settled(call: Call, reply: SettleReply) -> Plain:
    error = StaleReceipt("None of the receipts belongs to a current claim.", field="receipt")
    problem = replace(to_problem(error, call.request_id), outcomes=reply.outcomes)
    return problem_reply(error, call.request_id, problem)


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/queues/{queue}/settlements",
        verb="settle",
        summary="Ack, nack, reject, release or extend claims, publish with them, then claim",
        need=Need("consume", "queue"),
        handler=settle,
        query=Empty,
        body=SettlementsBody(),
        replies=((JSON, JsonSettleReply),),
        errors=(
            BadInput,
            Busy,
            UnknownQueue,
            StaleReceipt,
            TooLarge,
            SchemaViolation,
            TooManyQueues,
            QueueFull,
        ),
        tag="flow",
    ),
)
