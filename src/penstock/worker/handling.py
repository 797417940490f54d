"""Handling: runs one delivery through middleware and handler, and settles it.

A delivery is settled once, even if the handler raises, and ``handle`` returns. The work is
cancelled if the claim is lost. If it is cancelled from outside, the delivery is released
(``consume/lease.py``).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TypeAlias, assert_never

from msgspec import Struct

from penstock.consume.lease import Lease
from penstock.errors import PenstockError, ServiceError, StaleReceipt, StoreError
from penstock.model.delivery import Ack, Nack, Outcome, Reject
from penstock.model.message import MessageId
from penstock.model.settling_exceptions import SettlingException
from penstock.model.states import State
from penstock.tracing import continued
from penstock.worker.context import Context
from penstock.worker.middleware import Next
from penstock.worker.registration import Registration, Rules
from penstock.worker.verdicts import Decision, to_decision

__all__ = ["Handled", "Handling"]

_log = logging.getLogger("penstock.worker")

_Raised: TypeAlias = BaseException | None


class Handled(Struct, frozen=True, kw_only=True):
    """The outcome of one delivery."""

    queue: str
    message_id: MessageId
    attempts: int
    state: State | None
    """Its state now; None if its claim was lost, or the state is unknown."""
    result: bytes | None = None
    error: str | None = None
    """The error that it was nacked or rejected with."""
    exception: _Raised = None
    """The exception that the handler raised."""


class Handling:
    """Handles the deliveries of one registration."""

    def __init__(self, registration: Registration, chain: Next, stopping: asyncio.Event) -> None:
        self._registration = registration
        self._chain = chain
        self._stopping = stopping

    async def handle(self, lease: Lease) -> Handled:
        """Call the handler, and settle. Raises only a cancellation from outside."""
        rules = self._registration.choose(lease.delivery)
        context = Context(lease, rules.handler.name, self._stopping)
        handled = _handled(lease)
        try:
            async with lease:
                decision, raised = await self._decide(context, rules)
                with continued(lease.headers):
                    handled = await self._settle(context, rules, decision, raised)
        except PenstockError as error:
            # Keep going: if the error is permanent, the next claim raises it.
            _log.error("Message %d of %r was not settled: %s", lease.message.id, lease.queue, error)
        return handled

    async def _decide(self, context: Context, rules: Rules) -> tuple[Decision, _Raised]:
        """How to settle the delivery, and what the handler raised."""
        receipt = context.lease.receipt
        try:
            value = await self._within_timeout(context, rules.timeout_ms)
            return Ack(receipt, rules.encode_result(value)), None
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            # Something that the handler awaited was cancelled, and not the handler.
            return _judge(context, rules, error), error
        except Exception as error:  # noqa: BLE001  (it becomes a settlement, and is logged)
            return _judge(context, rules, error), error

    async def _within_timeout(self, context: Context, timeout_ms: int | None) -> object:
        if timeout_ms is None:
            return await self._chain(context)
        limit = asyncio.timeout(timeout_ms / 1000)
        try:
            async with limit:
                return await self._chain(context)
        except TimeoutError as error:
            if not limit.expired():
                raise  # Raised by the handler itself.
            raise TimeoutError(f"The handler took longer than {timeout_ms} ms.") from error

    async def _settle(
        self, context: Context, rules: Rules, decision: Decision, raised: _Raised
    ) -> Handled:
        lease = context.lease
        if not lease.held and not lease.lost:
            # The handler settled it itself, or gave it up.
            return _handled(lease, raised)
        try:
            outcome = await _carry_out(context, decision)
        except StaleReceipt:
            _log.warning(
                "Message %d of %r: the claim was lost, and its outcome is dropped",
                lease.message.id,
                lease.queue,
            )
            return _handled(lease, raised)
        except (ServiceError, StoreError) as error:
            # It may have taken effect; if it did not, the lease lapses.
            _log.error("Message %d of %r was not settled: %s", lease.message.id, lease.queue, error)
            lease.let_lapse()
            return _handled(lease, raised)
        except PenstockError as error:
            # The result or a message to publish was refused: treat it as a failure of the handler.
            decision, raised = _judge(context, rules, error), error
            outcome = await _carry_out(context, decision)
        return _handled(lease, raised, decision, outcome)


def _judge(context: Context, rules: Rules, error: BaseException) -> Decision:
    decision = to_decision(
        error,
        context.lease.receipt,
        context.attempts,
        retry_ms=rules.retry_ms,
        reject_on=rules.reject_on,
    )
    is_meant = isinstance(error, SettlingException)
    _log.log(
        logging.INFO if is_meant else logging.WARNING,
        "%s: message %d of %r, attempt %d: %s: %s",
        context.handler,
        context.message.id,
        context.queue,
        context.attempts,
        type(decision).__name__.lower(),
        error,
        exc_info=None if is_meant else error,
    )
    return decision


async def _carry_out(context: Context, decision: Decision) -> Outcome:
    lease = context.lease
    match decision:
        case Ack():
            return await lease.ack(decision.result, publish=context.outgoing)
        case Nack():
            return await lease.nack(decision.error, delay_ms=decision.delay_ms)
        case Reject():
            return await lease.reject(decision.error)
        case _:
            assert_never(decision)


def _handled(
    lease: Lease,
    raised: _Raised = None,
    decision: Decision | None = None,
    outcome: Outcome | None = None,
) -> Handled:
    return Handled(
        queue=lease.queue,
        message_id=lease.message.id,
        attempts=lease.attempts,
        state=None if outcome is None else outcome.state,
        result=decision.result if isinstance(decision, Ack) else None,
        error=decision.error if isinstance(decision, Nack | Reject) else None,
        exception=raised,
    )


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
