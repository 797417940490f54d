"""A lease: one delivery while a program holds it.

::

    async with lease:  # ack on exit, with lease.result if there is one
        await charge(lease.payload)

- ``penstock.Reject`` and ``penstock.Retry`` in the body settle the delivery as they say.
- Any other ordinary exception in the body is logged with its traceback, the delivery is nacked with
  it, and **the exception ends there**: a loop over ``consume`` continues with the next delivery.
- A cancellation, ``KeyboardInterrupt`` and ``SystemExit`` release the delivery and propagate.
- If the claim is lost while the body runs (the lease lapsed, or the partition moved), the body
  is cancelled at its next ``await``, as by ``asyncio.timeout``. That is logged, and the loop
  continues. Nothing is settled: another consumer may have the delivery (S1).

Each lease is settled once. If the body settles it, the exit does not. The consumption that
made the lease extends it while it is held.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, overload

import msgspec

from penstock.api import QueueApi
from penstock.consume.failure import describe
from penstock.consume.hold import Fate, Hold, Work
from penstock.consume.settlement_batcher import Answer
from penstock.consume.single_settlements import check_current
from penstock.errors import BadInput, PenstockError, StaleReceipt
from penstock.model.delivery import Ack, Delivery, Nack, Outcome, Receipt, Release, Settlement
from penstock.model.delivery import Reject as RejectSettlement
from penstock.model.duration import Duration, to_ms
from penstock.model.message import HeaderValue, Message, Outgoing
from penstock.model.payload import to_result
from penstock.model.settling_exceptions import Reject, Retry, SettlingException
from penstock.tracing import traced_settle

__all__ = ["Lease", "Settle"]

T = TypeVar("T")

#: Settles deliveries of a queue.
Settle: TypeAlias = Callable[[str, Sequence[Settlement]], Awaitable[Sequence[Answer]]]

_log = logging.getLogger("penstock.consume")


class Lease:
    """A claimed delivery, and the ways to settle it."""

    __slots__ = ("_hold", "_send", "_verbs", "result")

    def __init__(self, verbs: QueueApi, hold: Hold, send: Settle) -> None:
        self._verbs = verbs
        self._hold = hold
        self._send = send
        #: The result of the ack on a clean exit; stored like a payload.
        self.result: object = None

    # -- properties --------------------------------------------------------------------

    @property
    def delivery(self) -> Delivery:
        """The delivery."""
        return self._hold.delivery

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return self._hold.delivery.queue

    @property
    def receipt(self) -> Receipt:
        """The fencing token of this claim."""
        return self._hold.delivery.receipt

    @property
    def message(self) -> Message:
        """The message's metadata."""
        return self._hold.delivery.message

    @property
    def headers(self) -> Mapping[str, HeaderValue]:
        """The message's headers."""
        return self._hold.delivery.message.headers

    @property
    def payload(self) -> bytes:
        """The published bytes (P3)."""
        return self._hold.delivery.payload

    @property
    def attempts(self) -> int:
        """Grants so far, including this one (C2)."""
        return self._hold.delivery.attempts

    @property
    def held(self) -> bool:
        """Whether the claim is held and not yet settled."""
        return self._hold.fate is Fate.HELD

    @property
    def lost(self) -> bool:
        """Whether the claim ended without being settled here."""
        return self._hold.fate is Fate.LOST

    @property
    def settled(self) -> bool:
        """Whether it was settled here."""
        return self._hold.fate is Fate.SETTLED

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, type: type[T]) -> T: ...

    def json(self, type: Any = Any) -> Any:
        """The payload decoded from JSON, as a value of ``type`` if one is given."""
        try:
            return msgspec.json.decode(self.payload, type=type)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise BadInput(
                f"The payload of message {self.message.id} cannot be read: {error}.",
                field="payload",
            ) from error

    # -- settling ----------------------------------------------------------------------

    async def ack(self, result: object = None, *, publish: Sequence[Outgoing] = ()) -> Outcome:
        """Mark as done. ``publish`` is published in the same commit: both happen, or neither."""
        return await self._settle("ack", Ack(self.receipt, to_result(result)), publish)

    async def nack(self, error: str | None = None, *, delay_ms: Duration | None = None) -> Outcome:
        """Retry later, or fail when no attempts are left."""
        return await self._settle("nack", Nack(self.receipt, error, delay_ms))

    async def reject(self, error: str | None = None) -> Outcome:
        """Fail immediately, without a retry."""
        return await self._settle("reject", RejectSettlement(self.receipt, error))

    async def release(self, delay_ms: Duration | None = None) -> Outcome:
        """Return the delivery unprocessed, to be handed out again now or after ``delay_ms``.

        The grant does not count as an attempt.
        """
        return await self._settle("release", Release(self.receipt, delay_ms))

    async def extend(self, lease_ms: Duration | None = None) -> Outcome:
        """Set the end of the lease to ``lease_ms`` from now; by default, the queue's lease.

        A held lease is extended automatically, and never to less than the ``lease_ms`` given
        here, so this is rarely needed. It does not shorten the lease: the next automatic extension
        might come too late.
        """
        hold = self._hold
        hold.check()
        wanted_ms = to_ms(lease_ms)
        if type(wanted_ms) is int and wanted_ms > 0:  # The verb refuses others.
            wanted_ms = max(wanted_ms, hold.lease_ms)
        try:
            outcome = await self._verbs.extend(hold.delivery, wanted_ms)
        except StaleReceipt:
            if hold.fate is Fate.HELD:
                hold.end(Fate.LOST)
            raise
        hold.wish_ms = wanted_ms or 0
        return outcome

    def let_lapse(self) -> None:
        """Stop extending it, and do not settle it: it comes back when its lease is over."""
        self._hold.check()
        self._hold.end(Fate.DROPPED)

    # -- async with --------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._hold.check()
        self._hold.work = Work((self._hold,))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        hold = self._hold
        work, hold.work = hold.work, None
        if work is not None and work.end(error):
            _log.warning("%s was lost: its work was cancelled", hold)
            return True
        if error is None:
            await self._ack_on_exit()
            return False
        if isinstance(error, Exception):
            await self._settle_failed(error)
            return True
        if hold.fate is Fate.HELD:
            await self._release_on_exit(error)
        return False

    async def _settle_failed(self, error: Exception) -> None:
        hold = self._hold
        if isinstance(error, SettlingException):
            _log.info("%s: %s: %s", hold, type(error).__name__.lower(), error)
        else:
            _log.warning("%s: processing failed", hold, exc_info=error)
        if hold.fate is not Fate.HELD:
            return
        if isinstance(error, Reject):
            await self._end_quietly(self.reject(error.reason))
        elif isinstance(error, Retry):
            await self._end_quietly(self.nack(error.reason, delay_ms=error.delay_ms))
        else:
            await self._end_quietly(self.nack(describe(error)))

    async def _ack_on_exit(self) -> None:
        hold = self._hold
        if hold.fate is Fate.LOST:
            _log.warning("%s was lost before its work was done: nothing is acked", hold)
        if hold.fate is not Fate.HELD:
            return
        try:
            await self._end_quietly(self.ack(self.result))
        except BadInput as error:
            # The result cannot be stored: handled like any other error of the body.
            _log.warning("%s: its result was refused", hold, exc_info=error)
            await self._end_quietly(self.nack(describe(error)))

    async def _release_on_exit(self, error: BaseException) -> None:
        if isinstance(error, GeneratorExit):
            # A coroutine that is being closed may not await.
            self._hold.end(Fate.DROPPED)
            return
        try:
            await self.release()
        except PenstockError as refusal:
            _log.warning("%s: it was not released: %s", self._hold, refusal)
            if self._hold.fate is Fate.HELD:
                self._hold.end(Fate.DROPPED)

    async def _end_quietly(self, settling: Awaitable[Outcome]) -> None:
        """Settle; a stale receipt is only logged."""
        try:
            await settling
        except StaleReceipt:
            _log.warning("%s was lost before it could be settled", self._hold)
        except BadInput:
            raise
        except PenstockError:
            # The caller gets the error, and the claim lapses.
            self._hold.end(Fate.DROPPED)
            raise

    # -- internals ---------------------------------------------------------------------

    async def _settle(
        self, verb: str, settlement: Settlement, publish: Sequence[Outgoing] = ()
    ) -> Outcome:
        hold = self._hold
        hold.begin(verb)
        try:
            if publish:
                outcome = await self._settle_and_publish(settlement, publish)
            else:
                outcome = await self._settle_one(self.queue, settlement)
        except StaleReceipt:
            hold.end(Fate.LOST)
            raise
        except PenstockError:
            hold.undo()
            raise
        except BaseException:
            # Cancelled: it may have taken effect. If it did not, the claim lapses.
            hold.end(Fate.DROPPED)
            raise
        hold.end(Fate.SETTLED)
        return outcome

    @traced_settle
    async def _settle_one(self, queue: str, settlement: Settlement) -> Outcome:
        (answer,) = await self._send(queue, (settlement,))
        if isinstance(answer, PenstockError):
            raise answer
        return check_current(self.delivery, answer)

    async def _settle_and_publish(
        self, settlement: Settlement, publish: Sequence[Outgoing]
    ) -> Outcome:
        reply = await self._verbs.settle(self.queue, (settlement,), publish=publish)
        return check_current(self.delivery, reply.outcomes[0])

    def __del__(self) -> None:
        if self._hold.fate is Fate.HELD:
            # It counts as in flight until the claim lapses. Otherwise a loop that settles nothing
            # would claim the whole queue, and use up the attempts of every delivery.
            self._hold.fate = Fate.DROPPED

    def __repr__(self) -> str:
        return f"<Lease of message {self.message.id} in {self.queue!r}: {self._hold.fate.name}>"
