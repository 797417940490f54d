"""Penstock: a durable message queue.

Publish once to an immutable log; every queue is a filter over that log with its own
delivery state; workers claim and settle, and no acknowledged message is ever lost.

::

    async with penstock.open("rocksdb:///data/penstock") as q:
        await q.create_queue("billing", "topic = 'orders' AND amount >= 100")
        await q.publish("orders", {"order": 7}, headers={"amount": 250})
        for delivery in await q.claim("billing", limit=10):
            await q.ack(delivery)
"""

from __future__ import annotations

from penstock import errors
from penstock.broker import Broker, BrokerOptions, open  # noqa: A004
from penstock.errors import PenstockError
from penstock.model.delivery import Ack, Delivery, Extend, Nack, Reject, Release, ReplaySource
from penstock.model.limits import Limits
from penstock.model.message import Message, NewMessage
from penstock.model.queue import Backoff, Ordering, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import EngineOptions, Outgoing

__all__ = [
    "Ack",
    "Backoff",
    "Broker",
    "BrokerOptions",
    "Delivery",
    "EngineOptions",
    "Extend",
    "Limits",
    "Message",
    "Nack",
    "NewMessage",
    "Ordering",
    "Outgoing",
    "PenstockError",
    "QueuePolicy",
    "Reject",
    "Release",
    "ReplaySource",
    "Start",
    "State",
    "TopicPolicy",
    "errors",
    "open",
]
