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

from importlib import import_module
from typing import TYPE_CHECKING

from penstock import errors
from penstock.api import QueueApi
from penstock.errors import PenstockError
from penstock.model.delivery import Ack, Delivery, Extend, Nack, Release, ReplaySource
from penstock.model.limits import Limits
from penstock.model.message import Message, NewMessage, Outgoing
from penstock.model.queue import Backoff, Ordering, QueuePolicy, Start, TopicPolicy
from penstock.model.settling_exceptions import Reject, Retry
from penstock.model.states import State

if TYPE_CHECKING:
    from penstock import sync
    from penstock.broker import Broker, BrokerOptions
    from penstock.client import Client, ClientOptions, connect
    from penstock.consume import Lease
    from penstock.opening import open  # noqa: A004
    from penstock.storage.contract import EngineOptions
    from penstock.worker import App, Context

__all__ = [
    "Ack",
    "App",
    "Backoff",
    "Broker",
    "BrokerOptions",
    "Client",
    "ClientOptions",
    "Context",
    "Delivery",
    "EngineOptions",
    "Extend",
    "Lease",
    "Limits",
    "Message",
    "Nack",
    "NewMessage",
    "Ordering",
    "Outgoing",
    "PenstockError",
    "QueueApi",
    "QueuePolicy",
    "Reject",
    "Release",
    "ReplaySource",
    "Retry",
    "Start",
    "State",
    "TopicPolicy",
    "connect",
    "errors",
    "open",
    "sync",
]

#: Names whose modules import HTTP, threads or the parser of filters, and their modules: a program
#: does not pay for what it does not use, and `penstock --help` for none of it.
_ELSEWHERE = {
    "App": "penstock.worker",
    "Broker": "penstock.broker",
    "BrokerOptions": "penstock.broker",
    "Client": "penstock.client",
    "ClientOptions": "penstock.client",
    "Context": "penstock.worker",
    "EngineOptions": "penstock.storage.contract",
    "Lease": "penstock.consume",
    "connect": "penstock.client",
    "open": "penstock.opening",
}


def __getattr__(name: str) -> object:
    """Import names of other modules on first use."""
    if name == "sync":
        return import_module("penstock.sync")
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value: object = getattr(import_module(_ELSEWHERE[name]), name)
    globals()[name] = value
    return value
