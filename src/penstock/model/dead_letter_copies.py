"""Dead-letter copies: the message that a queue appends to its ``dead_letter_topic``.

Every engine decides with ``copies`` and ``is_circular`` whether an ended delivery is copied, and
builds the message with ``dead_letter_copy``. The oracle has its own rules, so that a mistake here
is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.model.limits import MAX_EVENT_ERROR_CHARS, MAX_HEADERS, MAX_HEADERS_BYTES
from penstock.model.message import HeaderValue, Message, NewMessage
from penstock.model.queue import QueuePolicy
from penstock.model.states import State, Transition

__all__ = [
    "HOPS",
    "MAX_HOPS",
    "EndedDelivery",
    "copied_bytes",
    "copies",
    "dead_letter_copy",
    "hops_of",
    "is_circular",
    "is_copied",
]

#: Copies of copies: queues that dead-letter into each other stop after so many.
MAX_HOPS: Final = 16
HOPS: Final = "dead_letter_hops"
_DROPPED: Final = "dead_letter_dropped_headers"
#: The headers of an earlier copy, which those of the next one replace.
_STORY: Final = frozenset(
    {
        *("dead_letter_original_queue", "dead_letter_original_topic", "dead_letter_message_id"),
        *("dead_letter_state", "dead_letter_transition", "dead_letter_attempts", "dead_letter_at"),
        *("dead_letter_error", "dead_letter_key", HOPS, _DROPPED),
    }
)
#: What a number counts in the size of headers, as in a publish.
_NUMBER_BYTES: Final = 8


class EndedDelivery(NamedTuple):
    """A delivery that failed, expired or was acked."""

    queue: str
    message: Message
    payload: bytes
    state: State
    transition: Transition
    error: str | None
    """The last error that was reported."""
    attempts: int
    at: int
    is_kept: bool = True
    """False if it failed, and its queue keeps no dead letters."""


def copies(policy: QueuePolicy, state: State) -> bool:
    """Whether the queue copies deliveries that end in this state."""
    if policy.dead_letter_topic is None:
        return False
    return state is State.FAILED or (state is State.EXPIRED and policy.dead_letter_expired)


def is_circular(policy: QueuePolicy, message: Message) -> bool:
    """Whether a copy would go in a circle: the message is a copy of this topic, or of many."""
    return message.topic == policy.dead_letter_topic or hops_of(message) >= MAX_HOPS


def is_copied(policy: QueuePolicy, state: State, message: Message) -> bool:
    """Whether the queue copies the message when its delivery ends in this state."""
    return copies(policy, state) and not is_circular(policy, message)


def copied_bytes(message: Message) -> int:
    """What a copy of the message counts: its payload and its original headers."""
    return message.size + (_size(message.headers) if message.headers else 0)


def dead_letter_copy(ended: EndedDelivery, *, auto_create: bool) -> NewMessage:
    """The message to append to the queue's ``dead_letter_topic``.

    It has no key, so that it replaces no other copy, and no expiry, delay or limit of attempts.
    """
    message = ended.message
    story: dict[str, HeaderValue] = {
        "dead_letter_original_queue": ended.queue,
        "dead_letter_original_topic": message.topic,
        "dead_letter_message_id": int(message.id),
        "dead_letter_state": str(ended.state),
        "dead_letter_transition": str(ended.transition),
        "dead_letter_attempts": ended.attempts,
        "dead_letter_at": ended.at,
        HOPS: hops_of(message) + 1,
    }
    if ended.error is not None:
        story["dead_letter_error"] = ended.error[:MAX_EVENT_ERROR_CHARS]
    if message.key is not None:
        story["dead_letter_key"] = message.key
    return NewMessage(
        ended.payload,
        _with_original(story, message.headers),
        partition_key=message.partition_key,
        priority=message.priority,
        content_type=message.content_type,
        auto_create=auto_create,
    )


def hops_of(message: Message) -> int:
    """How often the message was copied already. A producer may have set the header to anything."""
    hops = message.headers.get(HOPS)
    return hops if type(hops) is int and hops > 0 else 0


def _with_original(
    story: dict[str, HeaderValue], original: Mapping[str, HeaderValue]
) -> dict[str, HeaderValue]:
    """The story and the original headers; those that exceed the limits are dropped, and counted."""
    kept = {name: value for name, value in original.items() if name not in _STORY}
    if len(story) + len(kept) <= MAX_HEADERS and _size(story) + _size(kept) <= MAX_HEADERS_BYTES:
        return {**kept, **story}
    story[_DROPPED] = 0
    slots, left = MAX_HEADERS - len(story), MAX_HEADERS_BYTES - _size(story)
    fitting: dict[str, HeaderValue] = {}
    for name in sorted(kept):
        size = _size({name: kept[name]})
        if len(fitting) < slots and size <= left:
            fitting[name] = kept[name]
            left -= size
    story[_DROPPED] = len(kept) - len(fitting)
    return {**fitting, **story}


def _size(headers: Mapping[str, HeaderValue]) -> int:
    """The bytes that a publish counts."""
    return sum(
        len(name.encode()) + (len(value.encode()) if isinstance(value, str) else _NUMBER_BYTES)
        for name, value in headers.items()
    )
