"""The options of a client, and their bounds.

The defaults suit a service in the same network: a restart of the server, which takes a few
seconds, goes unnoticed, and a server that is gone is noticed after half a minute.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.client.body import Memory, plain_memory
from penstock.errors import BadInput
from penstock.model.limits import MAX_BATCH, check_whole
from penstock.model.queue import Backoff
from penstock.storage.contract import Jitter, full_jitter

__all__ = ["ClientOptions", "IdPrefix", "check_options", "random_prefix"]

#: Generates the part of an idempotency id that is unique to the client.
IdPrefix: TypeAlias = Callable[[], str]

_HOUR_MS: Final = 3600 * 1000
#: 128 bits: two clients never generate the same.
_PREFIX_BYTES: Final = 16


def random_prefix() -> str:
    """A prefix that no other client has."""
    # The client's only default source of randomness.
    return os.urandom(_PREFIX_BYTES).hex()  # noqa: TID251


class ClientOptions(Struct, frozen=True, kw_only=True):
    """How a client batches, waits and retries."""

    linger_ms: int = 5
    """How long a single publish or settlement waits for others while requests are in progress."""
    max_batch: int = 500
    """Single publishes or settlements that share a request."""
    max_batch_bytes: int = 512 * 1024
    """Payload bytes of these."""
    max_under_way: int = 2
    """Requests in progress per topic before single publishes start to wait for others."""
    max_connections: int = 100
    """Connections for ordinary calls, and as many again for calls that wait at the server."""
    connect_timeout_ms: int = 5_000
    timeout_ms: int = 30_000
    """The wait for an answer, in addition to what the call itself waits for."""
    bulk_timeout_ms: int = 600_000
    """The wait for an answer of replay, purge, preview, route and sweep, which may take long."""
    retries: int = 100
    """The maximum number of retries per call."""
    retry_ms: int = 30_000
    """For how long after its first failure a call is retried. 0: never."""
    backoff: Backoff = Backoff(base_ms=25, max_ms=1_000)
    """The wait before a retry: a random time below a ceiling that doubles."""
    retry_when_full: bool = False
    """Retry a publish that was refused because a queue is full, within the same bounds."""
    idempotent: bool = True
    """Give every publish an idempotency id, so that a retried one is stored once (P4).

    Without it, a publish whose answer was lost is not retried, and raises ``Unreachable``.
    """
    jitter: Jitter = full_jitter
    id_prefix: IdPrefix = random_prefix
    memory: Memory = plain_memory
    """Allocates the buffers of large replies."""


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
    """Return ``options`` if all of them are valid."""
    if not isinstance(options, ClientOptions):
        raise BadInput("options must be a ClientOptions.", field="options")
    for field, least, most in _BOUNDS:
        check_whole(field, getattr(options, field), least, most)
    return options
