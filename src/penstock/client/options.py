"""What a program may choose about its client, and the bounds of every choice.

The defaults are for a service in the same network: a restart of the server, which takes a few
seconds, is then invisible, and a server that is gone is noticed after half a minute.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.client.body import Memory, plain_memory
from penstock.errors import BadInput
from penstock.model.limits import MAX_BATCH, shown
from penstock.model.queue import Backoff
from penstock.storage.contract import Jitter, full_jitter

__all__ = ["ClientOptions", "IdPrefix", "check_options", "random_prefix"]

#: Makes the part of an idempotency id that sets a client apart from all others.
IdPrefix: TypeAlias = Callable[[], str]

_HOUR_MS: Final = 3600 * 1000
#: 128 bits: two clients never draw the same.
_PREFIX_BYTES: Final = 16


def random_prefix() -> str:
    """A prefix that no other client has."""
    # The one place where the client's randomness enters by default.
    return os.urandom(_PREFIX_BYTES).hex()  # noqa: TID251


class ClientOptions(Struct, frozen=True, kw_only=True):
    """How a client gathers, waits and tries again."""

    linger_ms: int = 5
    """How long a single publish or settlement waits for others while requests are under way."""
    max_batch: int = 500
    """Single publishes or settlements that share a request."""
    max_batch_bytes: int = 512 * 1024
    """Payload bytes of those."""
    max_under_way: int = 2
    """Requests of a topic or queue under way before single calls begin to wait for others."""
    max_connections: int = 100
    """Connections for calls, and as many again for calls that wait at the server."""
    connect_timeout_ms: int = 5_000
    timeout_ms: int = 30_000
    """For an answer, on top of what a call itself waits for."""
    bulk_timeout_ms: int = 600_000
    """For an answer of replay, purge, preview, route and sweep: they may have much to do."""
    retries: int = 100
    """How often a call is repeated at the most."""
    retry_ms: int = 30_000
    """For how long after its first failure a call is repeated. 0: never."""
    backoff: Backoff = Backoff(base_ms=25, max_ms=1_000)
    """The wait before a repetition: a random time below a ceiling that doubles."""
    retry_when_full: bool = False
    """Repeat a publish that a queue refused because it is full, within the same bounds."""
    idempotent: bool = True
    """Give every publish an idempotency id, so that a repeated one is stored once (P4).

    Without, a publish whose answer was lost is not repeated, and raises ``Unreachable``.
    """
    jitter: Jitter = full_jitter
    id_prefix: IdPrefix = random_prefix
    memory: Memory = plain_memory
    """Makes what large replies are received into."""


#: Whole numbers: field, least, most.
_BOUNDS: Final = (
    ("linger_ms", 0, 60_000),
    ("max_batch", 1, MAX_BATCH),
    ("max_batch_bytes", 1, 1024**3),
    ("max_under_way", 1, 1_000),
    ("max_connections", 1, 10_000),
    ("connect_timeout_ms", 1, _HOUR_MS),
    ("timeout_ms", 1, _HOUR_MS),
    ("bulk_timeout_ms", 1, 24 * _HOUR_MS),
    ("retries", 0, 1_000_000),
    ("retry_ms", 0, 24 * _HOUR_MS),
)


def check_options(options: ClientOptions) -> ClientOptions:
    """Return ``options`` if every one of them makes sense."""
    if not isinstance(options, ClientOptions):
        raise BadInput("options is a ClientOptions.", field="options")
    for field, least, most in _BOUNDS:
        value = getattr(options, field)
        if type(value) is not int or not least <= value <= most:
            raise BadInput(
                f"{field} is {shown(value)}; it is a whole number from {least} to {most}.",
                field=field,
                limit=most,
            )
    return options
