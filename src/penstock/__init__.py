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
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock import sync
    from penstock.api import QueueApi
    from penstock.broker import Broker, BrokerOptions
    from penstock.client import Client, ClientOptions, connect
    from penstock.consume import Lease, LeaseBatch
    from penstock.model.delivery import Ack, Delivery, Extend, Nack, Release, ReplaySource
    from penstock.model.limits import Limits
    from penstock.model.message import Message, NewMessage, Outgoing
    from penstock.model.queue import (
        Backoff,
        Ordering,
        QueuePolicy,
        RetryPosition,
        Start,
        TopicPolicy,
    )
    from penstock.model.settling_exceptions import Reject, Retry
    from penstock.model.states import State
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
    "LeaseBatch",
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
    "RetryPosition",
    "Start",
    "State",
    "TopicPolicy",
    "connect",
    "errors",
    "open",
    "sync",
]

#: Modules and the public names that they define. They are imported on first use: a program does
#: not pay for what it does not use.
_NAMES = {
    "penstock.api": ("QueueApi",),
    "penstock.broker": ("Broker", "BrokerOptions"),
    "penstock.client": ("Client", "ClientOptions", "connect"),
    "penstock.consume": ("Lease", "LeaseBatch"),
    "penstock.model.delivery": ("Ack", "Delivery", "Extend", "Nack", "Release", "ReplaySource"),
    "penstock.model.limits": ("Limits",),
    "penstock.model.message": ("Message", "NewMessage", "Outgoing"),
    "penstock.model.queue": (
        "Backoff",
        "Ordering",
        "QueuePolicy",
        "RetryPosition",
        "Start",
        "TopicPolicy",
    ),
    "penstock.model.settling_exceptions": ("Reject", "Retry"),
    "penstock.model.states": ("State",),
    "penstock.opening": ("open",),
    "penstock.storage.contract": ("EngineOptions",),
    "penstock.worker": ("App", "Context"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import names of other modules on first use."""
    if name == "sync":
        return import_module("penstock.sync")
    if name not in _MODULES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
