"""A registration: the handlers of queues, and how many deliveries are handled at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from penstock.api import QueueApi
from penstock.broker.queues import new_policy, to_start
from penstock.broker.scope import to_where
from penstock.errors import BadInput, UnknownQueue
from penstock.model.claim_queues import check_claim_order
from penstock.model.delivery import ClaimOrder, Delivery
from penstock.model.limits import (
    MAX_BATCH,
    MAX_LEASE_MS,
    MAX_NACK_DELAY_MS,
    check_whole,
    is_dead_letter,
    shown,
)
from penstock.model.payload import to_payload
from penstock.model.policy_fields import WorkerPolicyFields
from penstock.model.queue import Start
from penstock.worker.handler import Handler

__all__ = [
    "Registration",
    "Rules",
    "check_registration",
    "check_rules",
    "create",
    "encode_result",
    "prepare",
]


def encode_result(value: object) -> bytes | None:
    """The result of an ack: nothing for None, else as in ``publish``."""
    return None if value is None else to_payload(value)[0]


class Rules(Struct, frozen=True, kw_only=True):
    """A handler, and how its deliveries are settled."""

    handler: Handler
    timeout_ms: int | None = None
    """The limit of one handling; None leaves it to the queue's ``max_lease_ms``."""
    retry_ms: Sequence[int] = ()
    """Delays after the first attempts; if empty, the queue's backoff applies."""
    reject_on: tuple[type[Exception], ...] = ()
    encode_result: Callable[[object], bytes | None] = encode_result
    """The stored form of what the handler returns."""


class Registration(Struct, frozen=True, kw_only=True):
    """One or more queues, and the options of their consumption."""

    queues: tuple[str, ...]
    name: str
    """Of the handler, or a list of the tasks."""
    choose: Callable[[Delivery], Rules]
    """The rules for a delivery; it does not raise."""
    concurrency: int
    max_in_flight: int
    """Deliveries handled or prefetched."""
    lease_ms: int | None
    order: ClaimOrder = "given"
    """In which order several queues are claimed from."""
    where: str | None = None
    """Only deliveries that match this filter are claimed."""
    filter: str | None
    """If given, a missing queue is created."""
    start: str | Start
    policy: WorkerPolicyFields

    @property
    def label(self) -> str:
        """The names of the queues, for log lines."""
        return ", ".join(self.queues)


def check_rules(rules: Rules) -> Rules:
    """Return the rules if all fields are valid (E1)."""
    if rules.timeout_ms is not None:
        check_whole("timeout_ms", rules.timeout_ms, 1, MAX_LEASE_MS)
    for delay_ms in rules.retry_ms:
        check_whole("retry_ms", delay_ms, 0, MAX_NACK_DELAY_MS)
    reject_on: tuple[object, ...] = rules.reject_on
    for error in reject_on:
        if not isinstance(error, type) or not issubclass(error, Exception):
            raise BadInput(
                f"reject_on has {shown(error)}; it must be classes of exceptions.",
                field="reject_on",
            )
    return rules


def check_registration(registration: Registration) -> Registration:
    """Return the registration if all fields are valid (E1)."""
    check_claim_order(registration.order)
    to_where(registration.where)
    check_whole("concurrency", registration.concurrency, 1, MAX_BATCH)
    check_whole("max_in_flight", registration.max_in_flight, registration.concurrency, MAX_BATCH)
    if registration.lease_ms is not None:
        check_whole("lease_ms", registration.lease_ms, 1, MAX_LEASE_MS)
    if registration.filter is None:
        for field in registration.policy:
            raise BadInput(
                f"{field} is not a worker option. If it is one of a queue, give a filter too; "
                "then the queue is created if it does not exist.",
                field=field,
            )
        return registration
    if len(registration.queues) > 1:
        raise BadInput(
            "A worker of several queues creates none; create them first, without this filter.",
            field="filter",
        )
    if is_dead_letter(registration.queues[0]):
        raise BadInput("A dead-letter queue is created with its queue.", field="filter")
    to_start(registration.start)
    new_policy({"filter": registration.filter, **registration.policy})
    return registration


async def prepare(verbs: QueueApi, registration: Registration) -> None:
    """Create missing queues. An existing one is not changed: its operator decides."""
    for queue in registration.queues:
        try:
            await verbs.queue(queue)
        except UnknownQueue as error:
            if registration.filter is None:
                raise UnknownQueue(
                    f"There is no queue {queue!r} for {registration.name}; give "
                    "the worker a filter to have it created.",
                    field="queue",
                ) from error
            await create(verbs, queue, registration.filter, registration)


async def create(verbs: QueueApi, queue: str, filter: str, registration: Registration) -> None:
    """Create the queue with the registration's policy, unless another process has done so."""
    await verbs.ensure_queue(queue, filter, start=registration.start, **registration.policy)
