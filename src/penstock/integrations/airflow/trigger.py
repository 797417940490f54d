"""The trigger: each delivery of a queue becomes an event, and is acked once Airflow has stored it.

Airflow runs it as a shared stream with a producer of its own, its "ack mode": the triggerer
reports to the producer which events are in the metadata database. Nothing is acked before, so a
triggerer that is killed, loses the trigger to another one, or cannot reach its database loses no
message: the delivery is released, or its lease lapses, and the next run of the trigger gets it
(C5). An event may therefore be stored twice; both have the id of the message.

==================================================  =================================
the triggerer                                       the delivery
==================================================  =================================
has stored the event                                is acked
has not stored it within its ack timeout            is nacked, and fails in the end
has not taken it, or ends before it is stored       is released, without an attempt
is killed                                           comes back when the lease lapses
==================================================  =================================
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from penstock.consume.consumption import Consumption
from penstock.consume.lease import Lease
from penstock.errors import BadInput, PenstockError
from penstock.extras import importing
from penstock.integrations.airflow.connections import server_of
from penstock.wire.codecs import encode_json
from penstock.wire.payloads import show
from penstock.worker.source import opened

with importing("airflow", "airflow"):
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent
    from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer

__all__ = ["DEFAULT_MAX_IN_FLIGHT", "PenstockTrigger"]

#: Events that Airflow may have in hand. It refuses more than 1024 (its
#: ``shared_stream_subscriber_queue_size``) and stores about a hundred per second.
DEFAULT_MAX_IN_FLIGHT: Final = 100
MAX_IN_FLIGHT: Final = 1000

_CLASS: Final = "penstock.integrations.airflow.trigger.PenstockTrigger"
_NOT_STORED: Final = "Airflow did not store the event within its ack timeout."

_log = logging.getLogger(__name__)


class Held(msgspec.Struct, eq=False):
    """A delivery on its way through the triggerer."""

    lease: Lease
    is_taken: bool = False
    """The trigger has made its event."""
    is_queued: bool = False
    """The triggerer has queued that event for its database."""


class PenstockTrigger(BaseEventTrigger):
    """Watches a queue.

    ``url`` is that of a server without access control; otherwise ``conn_id`` names an Airflow
    connection. A missing queue is created if ``filter`` is given. Triggers with equal arguments
    are one trigger to Airflow; others on the same queue share its messages.
    """

    def __init__(
        self,
        *,
        queue_name: str,
        url: str | None = None,
        conn_id: str | None = None,
        filter: str | None = None,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    ) -> None:
        super().__init__()
        if (url is None) == (conn_id is None):
            raise BadInput("A trigger takes one of url and conn_id.", field="url")
        if not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise BadInput(
                f"max_in_flight must be from 1 to {MAX_IN_FLIGHT}.", field="max_in_flight"
            )
        self.queue_name = queue_name
        self.url = url
        self.conn_id = conn_id
        self.filter = filter
        self.max_in_flight = max_in_flight

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments, from which a triggerer makes the trigger again."""
        return _CLASS, {
            "queue_name": self.queue_name,
            "url": self.url,
            "conn_id": self.conn_id,
            "filter": self.filter,
            "max_in_flight": self.max_in_flight,
        }

    def shared_stream_key(self) -> Hashable:
        """All arguments, so that no other trigger shares the stream."""
        return json.dumps(self.serialize(), sort_keys=True)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Producer:
        """The producer, which makes Airflow confirm what it has stored."""
        return Producer(cls(**kwargs))

    async def filter_shared_stream(
        self, stream: AsyncIterator[Held]
    ) -> AsyncIterator[TriggerEvent]:
        """An event per delivery; a task that waits for the trigger gets one."""
        async for held in stream:
            held.is_taken = True
            yield TriggerEvent(event_payload(held.lease))
            # The triggerer asks for more as soon as it has queued the event. Cancelled before,
            # it would report the delivery as handled.
            held.is_queued = True
            if self.task_instance is not None:
                await asyncio.Event().wait()

    def run(self) -> AsyncIterator[TriggerEvent]:
        """Refuse: a triggerer that calls this cannot say what it has stored."""
        raise BadInput(
            "This triggerer has no shared streams. penstock[airflow] needs Airflow 3.3.",
            field="trigger",
        )


def event_payload(lease: Lease) -> dict[str, Any]:
    """A delivery in JSON, in the form of the HTTP API."""
    message = msgspec.json.decode(encode_json(lease.message))
    payload = msgspec.json.decode(encode_json(show(lease.payload, lease.message.content_type)))
    return {"queue": lease.queue, "attempts": lease.attempts, "message": message, **payload}


class Producer(SharedStreamProducer):
    """Claims the deliveries of a trigger, and settles them as Airflow reports."""

    def __init__(self, trigger: PenstockTrigger) -> None:
        self._trigger = trigger
        self._open = AsyncExitStack()
        self._held: set[Held] = set()

    async def open_stream(self) -> AsyncIterator[tuple[Held, Held]]:
        """Deliveries as they come; their leases are extended until they are settled."""
        leases = await self._consume()
        async for lease in leases:
            held = Held(lease)
            self._held.add(held)
            yield held, held

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Settle what is decided, in one call. Events are stored in order, so one lane will do."""
        await asyncio.gather(*(self._settle(held, outcome) for held, outcome in batch))

    async def aclose(self) -> None:
        """Release the deliveries that are left, and disconnect."""
        async with self._open:
            await asyncio.gather(*(self._settle(held, None) for held in tuple(self._held)))

    async def _settle(self, held: Held, outcome: AdvanceOutcome | None) -> None:
        self._held.discard(held)
        lease = held.lease
        try:
            if outcome is not None and outcome.is_clean and held.is_queued:
                await lease.ack()
            elif outcome is not None and outcome.failed and held.is_taken:
                await lease.nack(_NOT_STORED)
            else:
                await lease.release()
        except PenstockError as error:
            # Raising would end the stream. The delivery comes back, and has a second event.
            _log.warning("%r was not settled: %s", lease, error)

    async def _consume(self) -> Consumption:
        trigger = self._trigger
        server = await server_of(trigger.url, trigger.conn_id)
        url, credential, ca, cert, key = server
        connecting = opened(url, credential, ca=ca, cert=cert, key=key)
        q = await self._open.enter_async_context(connecting)
        if trigger.filter is not None:
            await q.ensure_queue(trigger.queue_name, trigger.filter)
        leases = q.consume(trigger.queue_name, max_in_flight=trigger.max_in_flight)
        assert isinstance(leases, Consumption)
        return await self._open.enter_async_context(leases)
