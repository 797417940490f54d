"""A task: a function that programs call by sending a message to its queue.

::

    @app.task(queue="billing")
    async def charge(order: int, amount: int) -> Receipt: ...


    handle = await charge.send(7, amount=250)
    receipt = await handle.result(timeout_ms=10_000)

A task's message has the task's name in the header ``task`` and its arguments, by parameter
name, as a JSON object, so programs in other languages can send it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

from penstock.api import QueueApi
from penstock.errors import BadInput
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import DEFAULT_PRIORITY, shown
from penstock.model.message import NO_HEADERS, Durability, HeaderValue, MessageId, NewMessage
from penstock.model.payload import to_payload
from penstock.wire.codecs import JSON
from penstock.worker.blocking_task import BlockingTask, RunsAsync
from penstock.worker.handler import Function
from penstock.worker.task_handler import TaskHandler
from penstock.worker.task_result import wait_for_result

__all__ = ["TASK_HEADER", "Task", "TaskHandle", "TaskOptions", "to_epoch_ms"]

P = ParamSpec("P")
R = TypeVar("R")

#: The header that has the task's name. Filters can use it: ``task = 'charge'``.
TASK_HEADER: Final = "task"


class TaskOptions(TypedDict, total=False):
    """Options of a task's message, as in ``publish``."""

    delay_ms: Duration
    deliver_at: int
    ttl_ms: Duration
    expires_at: int
    priority: int
    id: str
    key: str
    partition_key: str
    max_attempts: int
    headers: Mapping[str, HeaderValue]
    durability: Durability


class Connected(Protocol):
    """What a task needs of its app."""

    @property
    def verbs(self) -> QueueApi:
        """The verbs; ``BadInput`` while the app is not connected."""
        ...


class Task(Generic[P, R]):
    """A function, and how to send calls of it. Calling the task calls the function itself."""

    def __init__(
        self,
        app: Connected,
        handler: TaskHandler,
        queue: str,
        options: TaskOptions | None = None,
    ) -> None:
        self._app = app
        self._handler = handler
        self._queue = queue
        self._options: TaskOptions = options or {}

    @property
    def name(self) -> str:
        """The value of the message's header ``task``."""
        return self._handler.name

    @property
    def queue(self) -> str:
        """The queue whose workers run it. Its messages have a topic of the same name."""
        return self._queue

    @property
    def function(self) -> Function:
        """The function."""
        return self._handler.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function here, without a message."""
        return self._handler.function(*args, **kwargs)

    def with_options(self, **options: Unpack[TaskOptions]) -> Task[P, R]:
        """The same task, sent with these message options.

        For example ``await charge.with_options(priority=9, delay_ms=5_000).send(7)``.
        """
        unknown = options.keys() - TaskOptions.__annotations__.keys()
        for field in sorted(unknown):
            raise BadInput(f"{field} is not an option of a task's message.", field=field)
        merged: TaskOptions = {**self._options, **options}
        return Task(self._app, self._handler, self._queue, merged)

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Publish a call. Returns when it is stored, with a handle for its result.

        Raises ``BadInput`` if the arguments do not fit the signature.
        """
        return await self.send_through(self._app.verbs, *args, **kwargs)

    async def send_through(
        self, verbs: QueueApi, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[R]:
        """Publish a call through these verbs instead of the app's."""
        message = self.message(*args, **kwargs)
        reply = await verbs.publish_batch(
            self._queue, [message], durability=self._options.get("durability", "fsync")
        )
        published = reply.messages[0]
        return TaskHandle(
            verbs,
            self._handler,
            self._queue,
            published.id,
            duplicate=published.duplicate,
            replaced=published.replaced,
        )

    async def send_at(
        self, when: datetime | int, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[R]:
        """Publish a call that is not handled before ``when``.

        ``when`` is a datetime with a time zone, or epoch milliseconds.
        """
        return await self.due_at(when).send(*args, **kwargs)

    def due_at(self, when: datetime | int) -> Task[P, R]:
        """The same task, whose calls are not handled before ``when``, as in ``send_at``."""
        return self.with_options(deliver_at=to_epoch_ms(when))

    def blocking(self, q: RunsAsync) -> BlockingTask[P, R]:
        """The same task for a program that blocks; ``q`` comes from ``penstock.sync``."""
        return BlockingTask(self, q)

    def message(self, *args: P.args, **kwargs: P.kwargs) -> NewMessage:
        """The message of a call, for ``publish_batch`` to the topic ``queue``, also in ``sync``."""
        payload, _ = to_payload(self._handler.bind(args, kwargs))
        options = self._options
        return NewMessage(
            payload,
            {**options.get("headers", NO_HEADERS), TASK_HEADER: self.name},
            options.get("id"),
            options.get("key"),
            options.get("partition_key"),
            options.get("priority", DEFAULT_PRIORITY),
            JSON,
            options.get("deliver_at"),
            options.get("expires_at"),
            to_ms(options.get("delay_ms")),
            to_ms(options.get("ttl_ms")),
            max_attempts=options.get("max_attempts"),
        )

    def handle(self, message_id: int) -> TaskHandle[R]:
        """The handle of a call that was sent elsewhere, by its message id."""
        return self.handle_through(self._app.verbs, message_id)

    def handle_through(self, verbs: QueueApi, message_id: int) -> TaskHandle[R]:
        """The handle of a call, whose result comes through these verbs instead of the app's."""
        return TaskHandle(verbs, self._handler, self._queue, MessageId(message_id))

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of queue {self._queue!r}>"


class TaskHandle(Generic[R]):
    """A call of a task that was sent."""

    def __init__(
        self,
        verbs: QueueApi,
        handler: TaskHandler,
        queue: str,
        message_id: MessageId,
        *,
        duplicate: bool = False,
        replaced: bool = False,
    ) -> None:
        self._verbs = verbs
        self._handler = handler
        self.queue = queue
        self.message_id = message_id
        self.duplicate = duplicate
        """Whether a call with the same ``id`` was sent before; this is its handle."""
        self.replaced = replaced
        """Whether the call replaced a waiting one with the same ``key``."""

    async def result(self, timeout_ms: Duration | None = None) -> R:
        """Wait for the task's return value.

        Raises ``TaskFailed`` if the task failed for good, ``TaskExpired`` if it expired before it
        was handled, and ``ResultTimeout`` after ``timeout_ms``; the task is not affected by that.
        Without a timeout it waits until there is an outcome. Results are kept for the queue's
        ``done_retention_s``.
        """
        raw = await wait_for_result(
            self._verbs, self.queue, self.message_id, self._handler.name, to_ms(timeout_ms)
        )
        value: R = self._handler.decode_result(raw)
        return value

    def __repr__(self) -> str:
        return f"<TaskHandle of message {self.message_id} in {self.queue!r}>"


def to_epoch_ms(when: datetime | int) -> int:
    """A moment in epoch milliseconds."""
    if not isinstance(when, datetime):
        return when
    if when.tzinfo is None:
        raise BadInput(
            f"{shown(when)} has no time zone; use an aware datetime or epoch milliseconds.",
            field="when",
        )
    return int(when.timestamp() * 1000)
