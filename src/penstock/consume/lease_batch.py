"""A lease batch: deliveries that a program holds and settles together.

::

    async for batch in q.consume_batches("billing"):
        async with batch:  # acks all on exit
            await charge([lease.json(Order) for lease in batch])

A lease of the batch may be settled by itself, in the body; the exit settles the others:

- A clean exit acks them, each with the ``result`` of its lease.
- ``penstock.Reject`` and ``penstock.Retry`` in the body settle all of them as they say. Any other
  ordinary exception is logged with its traceback and nacks them. **The exception ends there**, as
  with a single lease.
- A cancellation, ``KeyboardInterrupt`` and ``SystemExit`` release them and propagate.
- A claim that is lost is not settled. If all are lost, the body is cancelled.

The exit does not wait for the answer, so that the program handles the next batch meanwhile. To
wait, call ``ack``, ``nack``, ``reject`` or ``release`` in the body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeAlias, overload

from penstock.api import QueueApi
from penstock.consume.deferred_settlements import DeferredSettlements
from penstock.consume.failure import describe
from penstock.consume.hold import Fate, Hold, Work
from penstock.consume.holdings import by_queue
from penstock.consume.lease import Lease, Settle
from penstock.consume.settlement_batcher import Answer
from penstock.errors import BadInput, PenstockError
from penstock.model.delivery import Ack, Delivery, Nack, Outcome, Receipt, Release, Settlement
from penstock.model.delivery import Reject as RejectSettlement
from penstock.model.duration import Duration
from penstock.model.payload import to_result
from penstock.model.settling_exceptions import Reject, Retry, SettlingException
from penstock.tracing import traced_settle

__all__ = ["LeaseBatch"]

#: Makes the settlement of a claim.
_Settled: TypeAlias = Callable[[Hold], Settlement]

_log = logging.getLogger("penstock.consume")


class LeaseBatch(Sequence[Lease]):
    """Claimed deliveries, and the ways to settle them together."""

    def __init__(
        self, verbs: QueueApi, holds: Sequence[Hold], send: Settle, later: DeferredSettlements
    ) -> None:
        self._verbs = verbs
        self._holds = holds
        self._holder = _Holder(holds)
        self._send = send
        self._later = later
        self._leases: Sequence[Lease] | None = None
        self._work: Work | None = None

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries, also those that are settled or lost."""
        return [hold.delivery for hold in self._holds]

    @property
    def held(self) -> int:
        """How many are held and not yet settled."""
        return sum(hold.fate is Fate.HELD for hold in self._holds)

    # -- settling ----------------------------------------------------------------------

    async def ack(self) -> tuple[Outcome, ...]:
        """Mark those that are held as done, each with the ``result`` of its lease.

        A lost claim has the verdict ``stale``, here and in the other calls.
        """
        return await self._settle("ack", self._to_ack())

    async def nack(
        self, error: str | None = None, *, delay_ms: Duration | None = None
    ) -> tuple[Outcome, ...]:
        """Retry those that are held later; those without attempts left fail."""
        return await self._settle("nack", lambda hold: Nack(_receipt(hold), error, delay_ms))

    async def reject(self, error: str | None = None) -> tuple[Outcome, ...]:
        """Fail those that are held immediately, without a retry."""
        return await self._settle("reject", lambda hold: RejectSettlement(_receipt(hold), error))

    async def release(self, delay_ms: Duration | None = None) -> tuple[Outcome, ...]:
        """Return those that are held unprocessed, to be handed out again now or later.

        The grants do not count as attempts.
        """
        return await self._settle("release", lambda hold: Release(_receipt(hold), delay_ms))

    # -- the leases --------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._holds)

    @overload
    def __getitem__(self, index: int) -> Lease: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Lease]: ...

    def __getitem__(self, index: int | slice) -> Lease | Sequence[Lease]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._all())

    def _all(self) -> Sequence[Lease]:
        # Made when they are needed: a program may use only ``deliveries``.
        if self._leases is None:
            self._leases = [
                _BatchLease(self._verbs, hold, self._send, self._holder) for hold in self._holds
            ]
        return self._leases

    # -- async with --------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._work = Work(self._holds)
        for hold in self._holds:
            hold.work = self._work
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        work, self._work = self._work, None
        for hold in self._holds:
            hold.work = None
        if work is not None and work.end(error):
            _log.warning("All claims of %s were lost: its work was cancelled", self)
            return True
        if error is None:
            self._ack_on_exit()
            return False
        if isinstance(error, Exception):
            self._settle_failed(error)
            return True
        await self._release_on_exit(error)
        return False

    def _ack_on_exit(self) -> None:
        lost = sum(hold.fate is Fate.LOST for hold in self._holds)
        if lost:
            _log.warning("%d claims of %s were lost before its work was done", lost, self)
        to_ack = self._to_ack()

        def settled(hold: Hold) -> Settlement:
            try:
                return to_ack(hold)
            except BadInput as error:
                # The result cannot be stored: handled like an error of the body.
                _log.warning("%s: its result was refused", hold, exc_info=error)
                return Nack(_receipt(hold), describe(error))

        self._settle_later("ack", settled)

    def _settle_failed(self, error: Exception) -> None:
        if isinstance(error, SettlingException):
            _log.info("%s: %s: %s", self, type(error).__name__.lower(), error)
        else:
            _log.warning("%s: processing failed", self, exc_info=error)
        if isinstance(error, Reject):
            reason = error.reason
            self._settle_later("reject", lambda hold: RejectSettlement(_receipt(hold), reason))
            return
        reason, delay_ms = describe(error), None
        if isinstance(error, Retry):
            reason, delay_ms = error.reason, error.delay_ms
        self._settle_later("nack", lambda hold: Nack(_receipt(hold), reason, delay_ms))

    async def _release_on_exit(self, error: BaseException) -> None:
        if not isinstance(error, GeneratorExit):  # A coroutine that is being closed may not await.
            try:
                await self.release()
            except PenstockError as refusal:
                _log.warning("%s: it was not released: %s", self, refusal)
        for hold in self._holds:
            if hold.fate is Fate.HELD:
                hold.end(Fate.DROPPED)

    # -- internals ---------------------------------------------------------------------

    def _to_ack(self) -> _Settled:
        results = {
            lease.receipt: lease.result for lease in self._leases or () if lease.result is not None
        }
        if not results:
            return lambda hold: Ack(hold.delivery.receipt)
        return lambda hold: Ack(_receipt(hold), to_result(results.get(_receipt(hold))))

    def _begin(
        self, verb: str, settled: _Settled
    ) -> list[tuple[str, list[Hold], list[Settlement]]]:
        """Begin to settle those that are held, by queue."""
        held = [hold for hold in self._holds if hold.fate is Fate.HELD]
        calls = [
            (queue, holds, [settled(hold) for hold in holds])
            for queue, holds in by_queue(held).items()
        ]
        for hold in held:
            hold.begin(verb)
        return calls

    def _settle_later(self, verb: str, settled: _Settled) -> None:
        for queue, holds, settlements in self._begin(verb, settled):
            self._later.add(queue, holds, settlements)

    async def _settle(self, verb: str, settled: _Settled) -> tuple[Outcome, ...]:
        """Settle those that are held; raises if one of them was refused."""
        outcomes: list[Outcome] = []
        refusals: list[PenstockError] = []
        calls = self._begin(verb, settled)
        try:
            for queue, holds, settlements in calls:
                answers = await self._settle_in(queue, settlements)
                for hold, answer in zip(holds, answers, strict=True):
                    if isinstance(answer, PenstockError):
                        hold.undo()
                        refusals.append(answer)
                    else:
                        hold.end(Fate.SETTLED if answer.ok else Fate.LOST)
                        outcomes.append(answer)
        except PenstockError:
            self._end_begun(Fate.HELD)
            raise
        except BaseException:
            # Cancelled: it may have taken effect. If it did not, the claims lapse.
            self._end_begun(Fate.DROPPED)
            raise
        if refusals:
            raise refusals[0]
        return tuple(outcomes)

    @traced_settle
    async def _settle_in(self, queue: str, settlements: Sequence[Settlement]) -> Sequence[Answer]:
        return await self._send(queue, settlements)

    def _end_begun(self, fate: Fate) -> None:
        """End settlements whose outcome is unknown."""
        for hold in self._holds:
            if hold.fate is Fate.SETTLING:
                if fate is Fate.HELD:
                    hold.undo()
                else:
                    hold.end(fate)

    def __str__(self) -> str:
        return f"A batch of {len(self._holds)} messages of {', '.join(by_queue(self._holds))}"

    def __repr__(self) -> str:
        return f"<LeaseBatch of {len(self)}: {self.held} held>"


class _Holder:
    """Referenced by a batch and its leases; when all of them are forgotten, so are the claims."""

    __slots__ = ("_holds",)

    def __init__(self, holds: Sequence[Hold]) -> None:
        self._holds = holds

    def __del__(self) -> None:
        for hold in self._holds:
            if hold.fate is Fate.HELD:
                hold.fate = Fate.DROPPED  # As for a single lease.


class _BatchLease(Lease):
    """A lease of a batch; to forget it is not to forget its claim."""

    __slots__ = ("_holder",)

    def __init__(self, verbs: QueueApi, hold: Hold, send: Settle, holder: _Holder) -> None:
        super().__init__(verbs, hold, send)
        self._holder = holder

    def __del__(self) -> None:
        pass


def _receipt(hold: Hold) -> Receipt:
    return hold.delivery.receipt
