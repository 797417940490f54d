"""The result of a delivery: how it ended in a queue or in its dead-letter queue."""

from __future__ import annotations

from penstock.errors import UnknownDelivery
from penstock.model.delivery import Result, ResultStatus
from penstock.model.message import Message
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.queue import Queue

__all__ = ["result_of"]


def result_of(queue: Queue, message: Message) -> Result | None:
    """How the delivery of a message ended; None if it has not ended or is not routed yet."""
    home, dead = queue.home, queue.home.dead
    assert dead is not None
    acked = _done(dead, message)
    if acked is not None:
        return acked
    found = _ended(home, dead, message)
    if found is not None:
        return None if queue.is_dead_letter else found
    if home.cursor is not None and home.cursor <= message.offset:
        return None
    if _unended(home, message) is None:
        raise UnknownDelivery(
            f"Queue {queue.name!r} has no delivery of message {message.id}.", field="id"
        )
    return None


def _ended(home: Queue, dead: Queue, message: Message) -> Result | None:
    """The result in the queue itself: done, expired, or failed, which makes it a dead letter."""
    done = _done(home, message)
    if done is not None:
        return done
    expired = home.expired.find(message.priority, message.id)
    if expired is not None:
        return Result(
            message_id=message.id,
            status=ResultStatus.EXPIRED,
            error=home.trail(message.id).last_error if expired.attempts else None,
            attempts=expired.attempts,
            at=expired.at,
        )
    failed = _unended(dead, message)
    if failed is None:
        return None
    return Result(
        message_id=message.id,
        status=ResultStatus.FAILED,
        error=dead.trail(message.id).last_error,
        attempts=failed.attempts,
        at=failed.at,
    )


def _done(queue: Queue, message: Message) -> Result | None:
    done = queue.done.find(message.priority, message.id)
    if done is None:
        return None
    return Result(
        message_id=message.id,
        status=ResultStatus.DONE,
        result=queue.result(message.id),
        attempts=done.attempts,
        at=done.at,
    )


def _unended(queue: Queue, message: Message) -> Entry | None:
    """The delivery in flight, delayed or available."""
    claim_id = queue.claim_id(message.priority, message.id)
    held = queue.shelf.held(claim_id)
    if held is not None:
        return held
    delayed = queue.find_delayed(claim_id)
    return queue.shelf.find(claim_id) if delayed is None else delayed[1]
