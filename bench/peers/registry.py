"""The peers by name. A peer's module is imported when it is used: its client may be missing."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from bench.peers.peer import MissingPeer, Peer

__all__ = ["NAMES", "find_peer"]

#: In the order of the tables.
_CLASSES: Final = {
    "penstock": "bench.peers.penstock_http:Penstock",
    "penstock-consume": "bench.peers.penstock_http:PenstockConsume",
    "redis": "bench.peers.redis_streams:Redis",
    "rabbitmq": "bench.peers.rabbitmq:RabbitMQ",
    "beanstalkd": "bench.peers.beanstalkd:Beanstalkd",
    "celery": "bench.peers.celery_tasks:CeleryTasks",
    "penstock-postgresql": "bench.peers.penstock_http:PenstockPostgreSQL",
    "pgmq": "bench.peers.pgmq:Pgmq",
    "floor": "bench.peers.floor:Floor",
    "floor-uvloop": "bench.peers.floor:FloorUvloop",
}
NAMES: Final = tuple(_CLASSES)


def find_peer(name: str) -> type[Peer]:
    """Raises ``MissingPeer`` if there is no such peer, or if its client is not installed."""
    if name not in _CLASSES:
        raise MissingPeer(f"there is no peer {name!r}: choose from {', '.join(NAMES)}")
    module, _, attribute = _CLASSES[name].partition(":")
    try:
        found: type[Peer] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise MissingPeer(f"{error.name} is not installed: pip install '.[bench]'") from error
    return found
