"""A delivery while a program holds it, for programs that block.

Generated from ``penstock.consume.lease`` by ``generate.py``: change that, and generate again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from penstock.model.delivery import Delivery, Outcome, Receipt
from penstock.model.duration import Duration
from penstock.model.message import HeaderValue, Message, Outgoing
from penstock.sync.blocking import BlockingLease

__all__ = ["SyncLease"]

T = TypeVar("T")


class SyncLease(BlockingLease):
    """A claimed delivery, and the ways to settle it."""

    @property
    def delivery(self) -> Delivery:
        """The delivery."""
        return self._lease.delivery

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return self._lease.queue

    @property
    def receipt(self) -> Receipt:
        """The fencing token of this claim."""
        return self._lease.receipt

    @property
    def message(self) -> Message:
        """The message's metadata."""
        return self._lease.message

    @property
    def headers(self) -> Mapping[str, HeaderValue]:
        """The message's headers."""
        return self._lease.headers

    @property
    def payload(self) -> bytes:
        """The published bytes (P3)."""
        return self._lease.payload

    @property
    def attempts(self) -> int:
        """Grants so far, including this one (C2)."""
        return self._lease.attempts

    @property
    def held(self) -> bool:
        """Whether the claim is held and not yet settled."""
        return self._lease.held

    @property
    def lost(self) -> bool:
        """Whether the claim ended without being settled here."""
        return self._lease.lost

    @property
    def settled(self) -> bool:
        """Whether it was settled here."""
        return self._lease.settled

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, type: type[T]) -> T: ...

    def json(self, type: Any = Any) -> Any:
        """The payload decoded from JSON, as a value of ``type`` if one is given."""
        return self._lease.json(type)

    def ack(self, result: object = None, *, publish: Sequence[Outgoing] = ()) -> Outcome:
        """Mark as done. ``publish`` is published in the same commit: both happen, or neither."""
        return self._run(self._lease.ack, result, publish=publish)

    def nack(self, error: str | None = None, *, delay_ms: Duration | None = None) -> Outcome:
        """Retry later, or fail when no attempts are left."""
        return self._run(self._lease.nack, error, delay_ms=delay_ms)

    def reject(self, error: str | None = None) -> Outcome:
        """Fail immediately, without a retry."""
        return self._run(self._lease.reject, error)

    def release(self, delay_ms: Duration | None = None) -> Outcome:
        """Return the delivery unprocessed, to be handed out again now or after ``delay_ms``.

        The grant does not count as an attempt.
        """
        return self._run(self._lease.release, delay_ms)

    def extend(self, lease_ms: Duration | None = None) -> Outcome:
        """Set the end of the lease to ``lease_ms`` from now; by default, the queue's lease.

        A held lease is extended automatically, and never to less than the ``lease_ms`` given
        here, so this is rarely needed. It does not shorten the lease: the next automatic extension
        might come too late.
        """
        return self._run(self._lease.extend, lease_ms)

    def let_lapse(self) -> None:
        """Stop extending it, and do not settle it: it comes back when its lease is over."""
        self._do(self._lease.let_lapse)
