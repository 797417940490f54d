"""A taskiq broker: a task is a message of a queue, and its result travels in the ack.

::

    broker = PenstockBroker("http://localhost:8080")


    @broker.task
    async def charge(order: int) -> str: ...

A task has its id as idempotency id, so sending it twice runs it once (P4). An attempt that a
retry middleware sends again is another message, whose id is derived from the task's id and the
number of the attempt. A result is found by following these ids to the last attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Unpack
from weakref import WeakKeyDictionary

from penstock.api import QueueApi
from penstock.consume.consumption import AnyConsumption
from penstock.consume.lease import Lease
from penstock.errors import BadInput
from penstock.extras import importing
from penstock.integrations.declaring import ensure_queue
from penstock.model.delivery import Result, ResultStatus
from penstock.model.limits import DEFAULT_PRIORITY
from penstock.model.policy_fields import PolicyFields
from penstock.worker.source import opened

with importing("taskiq", "taskiq"):
    from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult
    from taskiq.exceptions import ResultGetError, ResultSetError

if TYPE_CHECKING:
    import ssl

    from penstock.client import ClientOptions
    from penstock.client.credentials import CredentialSource

__all__ = ["PenstockBroker", "PenstockResults"]

#: Deliveries that a worker process has claimed and not settled.
DEFAULT_MAX_IN_FLIGHT: Final = 100
#: The header with the id of a task.
TASK_ID: Final = "task_id"
#: taskiq's retry middlewares count in this label.
_RETRIES: Final = "_retries"


class PenstockBroker(AsyncBroker):
    """Sends tasks to a queue, and hands its deliveries to taskiq's workers.

    A delivery is acked when taskiq acks the message: by default after its result was saved. If
    the worker process ends before, the queue hands the task out again.
    """

    def __init__(
        self,
        where: str | QueueApi,
        *,
        queue: str = "taskiq",
        credential: CredentialSource | None = None,
        ca: str | ssl.SSLContext | None = None,
        cert: str | None = None,
        key: str | None = None,
        options: ClientOptions | None = None,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        **policy: Unpack[PolicyFields],
    ) -> None:
        """``where`` is the URL of a server or store, or an object that has the verbs.

        ``credential``, ``ca``, ``cert``, ``key`` and ``options`` are those of ``penstock.connect``.
        A missing queue is created with the fields of ``policy``; an existing one is not changed.
        """
        super().__init__()
        self.queue = queue
        self.result_backend = PenstockResults(self)
        self._where = where
        self._credential = credential
        self._tls = {"ca": ca, "cert": cert, "key": key}
        self._options = options
        self._max_in_flight = max_in_flight
        self._policy = policy
        self._open = AsyncExitStack()
        self._verbs: QueueApi | None = None
        #: Results that an ack will carry, by the asyncio task that handles the message, and
        #: None after the ack. An id of a task would not do: its next attempt may be in hand too.
        self._results: WeakKeyDictionary[asyncio.Task[Any], bytes | None] = WeakKeyDictionary()

    @property
    def verbs(self) -> QueueApi:
        """The verbs, between ``startup`` and ``shutdown``."""
        if self._verbs is None:
            raise BadInput("Call `await broker.startup()` first.", field="broker")
        return self._verbs

    async def startup(self) -> None:
        """Connect, and create the queue if there is none."""
        if self._verbs is None:
            self._verbs = await self._open.enter_async_context(
                opened(self._where, self._credential, options=self._options, **self._tls)
            )
            await ensure_queue(self._verbs, self.queue, **self._policy)
        await super().startup()

    async def shutdown(self) -> None:
        """Disconnect."""
        await super().shutdown()
        self._verbs = None
        await self._open.aclose()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; the labels ``delay`` (in seconds) and ``priority`` (0 to 9) count."""
        labels = message.labels
        delay_s = labels.get("delay")
        await self.verbs.publish(
            self.queue,
            message.message,
            headers={"task": message.task_name, TASK_ID: message.task_id},
            id=attempt_id(message.task_id, int(labels.get(_RETRIES, 0))),
            delay_ms=None if delay_s is None else round(float(delay_s) * 1000),
            priority=int(labels.get("priority", DEFAULT_PRIORITY)),
            content_type="application/json",
            auto_create=False,
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Hand out deliveries; their leases are extended until they are acked."""
        leases = self.verbs.consume(self.queue, max_in_flight=self._max_in_flight)
        try:
            async for lease in leases:
                yield self._ackable(lease)
        finally:
            if isinstance(leases, AnyConsumption):
                await leases.aclose()

    def save(self, result: bytes) -> None:
        """Keep the result of the message in hand for its ack; after the ack it is too late."""
        if self._results.setdefault(_current_task(), result) is None:
            raise ResultSetError

    def _ackable(self, lease: Lease) -> AckableMessage:
        async def ack() -> None:
            handling = _current_task()
            result = self._results.get(handling)
            self._results[handling] = None
            await lease.ack(result)

        return AckableMessage(data=lease.payload, ack=ack)


class PenstockResults(AsyncResultBackend[Any]):
    """Results in the queue itself: saved by the ack of the task, in the same commit.

    They need the acknowledgement ``when_saved``, taskiq's default: after an earlier ack there is
    nothing left that could carry a result.
    """

    def __init__(self, broker: PenstockBroker) -> None:
        self._broker = broker

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        """Keep the result until the task is acked."""
        self._broker.save(self._broker.serializer.dumpb(result.model_dump()))

    async def is_result_ready(self, task_id: str) -> bool:
        """Whether the task has ended."""
        return await self._find(task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        """The result of the last attempt; ``ResultGetError`` if there is none."""
        ended = await self._find(task_id)
        if ended is None:
            raise ResultGetError
        if ended.status is ResultStatus.DONE and ended.result is not None:
            found = self._broker.serializer.loadb(ended.result)
            return TaskiqResult[Any].model_validate(found)
        if ended.status is ResultStatus.DONE:
            raise ResultGetError
        reason = ended.error or f"The task {ended.status} after {ended.attempts} attempts."
        return TaskiqResult[Any](
            is_err=True, return_value=None, execution_time=0.0, error=RuntimeError(reason)
        )

    async def _find(self, task_id: str) -> Result | None:
        """How the last attempt ended; None while it has not, and for an unknown task."""
        verbs, queue = self._broker.verbs, self._broker.queue
        retries, message_id = 0, None
        while True:
            found = await verbs.find(queue, id=attempt_id(task_id, retries))
            if not found.messages:
                break
            message_id = found.messages[0].id
            retries += 1
        return None if message_id is None else await verbs.result(queue, message_id)


def _current_task() -> asyncio.Task[Any]:
    """The asyncio task of the caller; taskiq handles each message in one of its own."""
    task = asyncio.current_task()
    assert task is not None
    return task


def attempt_id(task_id: str, retries: int) -> str:
    """The idempotency id of an attempt."""
    return f"{task_id}.{retries}" if retries else task_id
