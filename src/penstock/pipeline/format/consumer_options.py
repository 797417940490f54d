"""The options of a stream that consumes a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.model.limits import MAX_LEASE_MS, MIN_LEASE_MS, check_name, check_queue_name
from penstock.pipeline.format.options import SERVER_OPTIONS, Given
from penstock.pipeline.remote import Server

__all__ = ["ConsumerOptions", "consumer_options"]

_OPTIONS: Final = (
    "queue",
    "consumer",
    "leaseMs",
    "maxOffsetsPerTrigger",
    "entriesPerPartition",
    "payload",
    "failOnDataLoss",
)
_MAX_TRIGGER: Final = 1_000_000
#: The stream appends a hyphen and its own eight characters.
_MAX_NAME: Final = 119


class ConsumerOptions(Struct, frozen=True, kw_only=True):
    """The queue to consume, and how."""

    server: Server
    queue: str
    consumer: str = "spark"
    """The beginning of the consumer's name."""
    lease_ms: int = 60_000
    per_trigger: int = 10_000
    """The most deliveries per micro-batch."""
    per_partition: int = 2_000
    payload: bool = True
    fail_on_data_loss: bool = True


def consumer_options(options: Mapping[str, str]) -> ConsumerOptions:
    """The options of ``readStream.format("penstock").option("queue", …)``, checked (E1)."""
    given = Given(options)
    given.refuse_others((*SERVER_OPTIONS, *_OPTIONS), "Consuming a queue")
    usual = ConsumerOptions(server=given.server(), queue=check_queue_name(given.needed("queue")))
    lease_ms = given.number("leaseMs", MIN_LEASE_MS, MAX_LEASE_MS)
    per_trigger = given.number("maxOffsetsPerTrigger", 1, _MAX_TRIGGER)
    per_partition = given.number("entriesPerPartition", 1, _MAX_TRIGGER)
    return ConsumerOptions(
        server=usual.server,
        queue=usual.queue,
        consumer=check_name(given.text("consumer") or usual.consumer, "consumer")[:_MAX_NAME],
        lease_ms=lease_ms or usual.lease_ms,
        per_trigger=per_trigger or usual.per_trigger,
        per_partition=per_partition or usual.per_partition,
        payload=given.truth("payload", True),
        fail_on_data_loss=given.truth("failOnDataLoss", True),
    )
