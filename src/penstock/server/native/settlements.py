"""Settlements: end claims, each on its own; with publish, all of it in one commit."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.errors import (
    BadInput,
    QueueFull,
    SchemaViolation,
    StaleReceipt,
    TooLarge,
    TooManyQueues,
    UnknownQueue,
)
from penstock.model.delivery import Extend, SettleReply, Verdict
from penstock.model.message import Outgoing
from penstock.server.call import Call
from penstock.server.reading import ConvertedBody
from penstock.server.replies import Plain, problem_reply
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import SettleBody
from penstock.wire.codecs import JSON
from penstock.wire.payloads import JsonSettleBody, to_new_message
from penstock.wire.problems import to_problem

__all__ = ["ROUTES"]


def _from_json(body: JsonSettleBody) -> SettleBody:
    return SettleBody(
        body.settlements,
        [
            Outgoing(item.topic, [to_new_message(message) for message in item.messages])
            for item in body.publish
        ],
    )


async def settle(call: Call, query: Empty, body: SettleBody) -> SettleReply | Plain:  # noqa: ARG001
    """End claims; a call of which nothing took effect is refused as a whole."""
    for outgoing in body.publish:
        call.check("publish", outgoing.topic)
    reply = await call.broker.settle(call.name, body.settlements, publish=body.publish)
    if call.service.streams.held:
        _give_credit(call, body, reply)
    call.service.metrics.settled(body.settlements, reply.outcomes)
    if any(outcome.verdict is Verdict.OK for outcome in reply.outcomes):
        return reply
    return _nothing_settled(call, reply)


def _give_credit(call: Call, body: SettleBody, reply: SettleReply) -> None:
    streams = call.service.streams
    for settlement, outcome in zip(body.settlements, reply.outcomes, strict=True):
        if outcome.verdict is Verdict.OK:
            held = (call.broker.tenant, call.name, settlement.receipt)
            if type(settlement) is Extend:
                streams.extended(held, outcome.until)
            else:
                streams.settled(held)


def _nothing_settled(call: Call, reply: SettleReply) -> Plain:
    error = StaleReceipt("None of the receipts is a current claim's.", field="receipt")
    problem = replace(to_problem(error, call.request_id), outcomes=reply.outcomes)
    return problem_reply(error, call.request_id, problem)


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/queues/{queue}/settlements",
        verb="settle",
        summary="Ack, nack, reject, release or extend claims, and publish with them",
        need=Need("consume", "queue"),
        handler=settle,
        query=Empty,
        body=ConvertedBody(SettleBody, JsonSettleBody, _from_json),
        replies=((JSON, SettleReply),),
        errors=(
            BadInput,
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
