"""The context of one handling: the delivery, and the messages published with its ack.

A handler requests it by annotation. Thread handlers may use all of it; no method blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ParamSpec, Protocol

from msgspec.structs import replace

from penstock.consume.lease import Lease
from penstock.model.delivery import Delivery
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import DEFAULT_PRIORITY, check_name
from penstock.model.message import NO_HEADERS, HeaderValue, Message, NewMessage, Outgoing
from penstock.model.payload import to_payload
from penstock.tracing import traced_headers

__all__ = ["Context", "Sendable"]

P = ParamSpec("P")


class Sendable(Protocol[P]):
    """A task, which makes messages of calls."""

    @property
    def queue(self) -> str:
        """The topic of its messages."""
        ...

    def message(self, *args: P.args, **kwargs: P.kwargs) -> NewMessage:
        """The message of a call."""
        ...


class Context:
    """One handling of one delivery."""

    def __init__(self, lease: Lease, handler: str, stopping: asyncio.Event) -> None:
        self.lease = lease
        self.handler = handler
        """The name of the function that handles it."""
        self._stopping = stopping
        self._outgoing: dict[str, list[NewMessage]] = {}

    @property
    def delivery(self) -> Delivery:
        """The delivery."""
        return self.lease.delivery

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return self.lease.queue

    @property
    def message(self) -> Message:
        """The message's metadata."""
        return self.lease.message

    @property
    def headers(self) -> Mapping[str, HeaderValue]:
        """The message's headers."""
        return self.lease.headers

    @property
    def attempts(self) -> int:
        """Grants so far, including this one (C2)."""
        return self.lease.attempts

    @property
    def lost(self) -> bool:
        """Whether the claim was lost and the outcome will be dropped. Long work should check it."""
        return self.lease.lost

    @property
    def stopping(self) -> bool:
        """Whether the app is stopping and the handler is in its grace period."""
        return self._stopping.is_set()

    @property
    def outgoing(self) -> tuple[Outgoing, ...]:
        """The messages published with the ack, by topic."""
        return tuple(Outgoing(topic, tuple(messages)) for topic, messages in self._outgoing.items())

    def send(self, task: Sendable[P], *args: P.args, **kwargs: P.kwargs) -> None:
        """Send a call of a task in the commit of the ack, as ``publish`` does."""
        message = task.message(*args, **kwargs)
        headers = traced_headers(message.headers)
        self._outgoing.setdefault(task.queue, []).append(replace(message, headers=headers))

    def publish(
        self,
        topic: str,
        payload: object,
        *,
        headers: Mapping[str, HeaderValue] = NO_HEADERS,
        id: str | None = None,
        key: str | None = None,
        partition_key: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        content_type: str | None = None,
        delay_ms: Duration | None = None,
        deliver_at: int | None = None,
        ttl_ms: Duration | None = None,
        expires_at: int | None = None,
        auto_create: bool = True,
        max_attempts: int | None = None,
    ) -> None:
        """Publish a message in the commit of the ack: both happen, or neither.

        Nothing is published if the handler raises, and nothing twice if it is retried. The
        message continues the trace of the handled one.
        """
        check_name(topic, "topic")
        raw, natural_type = to_payload(payload)
        message = NewMessage(
            raw,
            traced_headers(dict(headers)),
            id,
            key,
            partition_key,
            priority,
            natural_type if content_type is None else content_type,
            deliver_at,
            expires_at,
            to_ms(delay_ms),
            to_ms(ttl_ms),
            auto_create,
            max_attempts,
        )
        self._outgoing.setdefault(topic, []).append(message)
