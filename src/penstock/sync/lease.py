"""A delivery as long as a program holds it, for programs that wait.

Generated from ``penstock.consume.lease`` by ``generate.py``: change that, and generate again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from penstock.model.delivery import Delivery, Outcome, Receipt
from penstock.model.message import HeaderValue, Message, Outgoing
from penstock.sync.blocking import BlockingLease

__all__ = ["SyncLease"]

T = TypeVar("T")


class SyncLease(BlockingLease):
    """A claimed delivery, and what can be done with it."""

    @property
    def delivery(self) -> Delivery:
        """The delivery itself."""
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
        """What was published (P3)."""
        return self._lease.payload

    @property
    def attempts(self) -> int:
        """Grants so far, this one included (C2)."""
        return self._lease.attempts

    @property
    def held(self) -> bool:
        """Whether it is still to be settled."""
        return self._lease.held

    @property
    def lost(self) -> bool:
        """Whether the claim is over without having been settled here."""
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
        """The payload read as JSON, as a value of ``type`` if one is given."""
        return self._lease.json(type)

    def ack(self, result: bytes | None = None, *, publish: Sequence[Outgoing] = ()) -> Outcome:
        """Done. With ``publish``, the messages are published in the same commit or nothing is."""
        return self._run(self._lease.ack, result, publish=publish)

    def nack(self, error: str | None = None, *, delay_ms: int | None = None) -> Outcome:
        """Not done: again later, or failed when no attempts are left."""
        return self._run(self._lease.nack, error, delay_ms=delay_ms)

    def reject(self, error: str | None = None) -> Outcome:
        """Never again: failed at once."""
        return self._run(self._lease.reject, error)

    def release(self) -> Outcome:
        """Hand back untouched; the grant does not count."""
        return self._run(self._lease.release)

    def extend(self, lease_ms: int) -> Outcome:
        """Hold it for ``lease_ms`` from now.

        There is no need to while it is held: that happens by itself, and never shortens what
        was asked for here.
        """
        return self._run(self._lease.extend, lease_ms)

    def let_lapse(self) -> None:
        """Neither settle nor extend it any more: it comes back when its lease is over."""
        self._do(self._lease.let_lapse)
