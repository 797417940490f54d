"""The message by which a queue reports the end of a delivery, if its policy has ``events``.

Every engine decides with ``reports`` and builds the message with ``delivery_event``. The oracle has
its own rules, so that a mistake here is noticed.
"""

from __future__ import annotations

from penstock.model.dead_letter_copies import HOPS, EndedDelivery, hops_of
from penstock.model.message import HeaderValue, Message, NewMessage
from penstock.model.queue import QueuePolicy
from penstock.model.queue_events import EVENTS_TOPIC, event_message
from penstock.model.states import State

__all__ = ["delivery_event", "reports"]


def reports(policy: QueuePolicy, state: State, message: Message | None = None) -> bool:
    """Whether the queue reports deliveries that end in this state.

    Deliveries of events are not reported: a queue that takes events would never be empty.
    """
    if message is not None and message.topic == EVENTS_TOPIC:
        return False
    return state.value in policy.events


def delivery_event(ended: EndedDelivery) -> NewMessage:
    """The message to append to the topic of events.

    It inherits the count of copies, which ends a loop through queues that copy events.
    """
    event = f"message.{ended.state.value}"
    body: dict[str, object] = {
        "event": event,
        "at": ended.at,
        "queue": ended.queue,
        "message_id": int(ended.message.id),
        "topic": ended.message.topic,
        "attempts": ended.attempts,
    }
    if ended.state is not State.DONE:
        body["error"] = ended.error
    headers: dict[str, HeaderValue] = {}
    if hops := hops_of(ended.message):
        headers[HOPS] = hops
    if ended.state is State.FAILED:
        body["dead_letter"] = headers["dead_letter"] = ended.is_kept
    return event_message(event, ended.queue, body, **headers)
