"""Queue events: messages that say what happened to a delivery or a queue.

A queue whose policy names them publishes its events to the topic ``penstock.events``, in the commit
of what they report. They are messages like any other: a queue takes them by its filter, and a
webhook is such a queue.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import json

from penstock.errors import BadName
from penstock.model.message import HeaderValue, NewMessage

__all__ = [
    "EVENTS_TOPIC",
    "RESERVED_PREFIX",
    "MessageEvent",
    "check_unreserved",
    "event_message",
    "queue_event",
]

#: Names that only Penstock itself gives: of the topic of events and the queues of webhooks.
RESERVED_PREFIX: Final = "penstock."
EVENTS_TOPIC: Final = "penstock.events"

#: The end of a delivery that a queue reports, as its policy names it.
MessageEvent: TypeAlias = Literal["done", "failed", "expired"]

_encode: Final = json.Encoder().encode


def event_message(
    event: str, queue: str, body: dict[str, object], **headers: HeaderValue
) -> NewMessage:
    """A message in the topic of events. It creates no queue."""
    return NewMessage(
        _encode(body),
        {"event": event, "queue": queue, **headers},
        content_type="application/json",
        auto_create=False,
    )


def queue_event(event: str, queue: str, webhook: str, at: int, **values: object) -> NewMessage:
    """A message for one webhook only: the state of a queue, or a test."""
    body: dict[str, object] = {"event": event, "at": at, "queue": queue, **values}
    return event_message(event, queue, body, webhook=webhook)


def check_unreserved(name: str, field: str) -> str:
    """Return the name unless it is reserved for Penstock itself."""
    if name.startswith(RESERVED_PREFIX):
        raise BadName(
            f"{field} {name!r} begins with {RESERVED_PREFIX!r}, which is reserved.", field=field
        )
    return name
