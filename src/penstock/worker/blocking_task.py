"""Tasks for programs that block: sent through ``penstock.sync``.

::

    with penstock.sync.connect(url) as q:
        handle = charge.blocking(q).send(7, amount=250)
        receipt = handle.result(timeout_ms=10_000)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from penstock.api import QueueApi
from penstock.model.duration import Duration
from penstock.model.message import MessageId

if TYPE_CHECKING:
    from penstock.worker.task import Task, TaskHandle

__all__ = ["BlockingTask", "BlockingTaskHandle", "RunsAsync"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RunsAsync(Protocol):
    """What ``penstock.sync.connect`` and ``penstock.sync.open`` return."""

    def run_async(self, function: Callable[[QueueApi], Coroutine[Any, Any, T]]) -> T:
        """The result of the function, called with the async verbs in their event loop."""
        ...


class BlockingTask(Generic[P, R]):
    """A task whose calls are sent through one ``penstock.sync`` object."""

    def __init__(self, task: Task[P, R], q: RunsAsync) -> None:
        self._task = task
        self._q = q

    def send(self, *args: P.args, **kwargs: P.kwargs) -> BlockingTaskHandle[R]:
        """Publish a call. Returns when it is stored, with a handle for its result."""
        handle = self._q.run_async(lambda verbs: self._task.send_through(verbs, *args, **kwargs))
        return BlockingTaskHandle(handle, self._q)

    def send_at(
        self, when: datetime | int, *args: P.args, **kwargs: P.kwargs
    ) -> BlockingTaskHandle[R]:
        """Publish a call that is not handled before ``when``, as ``Task.send_at``."""
        return BlockingTask(self._task.due_at(when), self._q).send(*args, **kwargs)

    def handle(self, message_id: int) -> BlockingTaskHandle[R]:
        """The handle of a call that was sent elsewhere, by its message id."""

        async def make(verbs: QueueApi) -> TaskHandle[R]:
            return self._task.handle_through(verbs, message_id)

        return BlockingTaskHandle(self._q.run_async(make), self._q)

    def __repr__(self) -> str:
        return f"<BlockingTask {self._task.name!r} of queue {self._task.queue!r}>"


class BlockingTaskHandle(Generic[R]):
    """A call of a task that was sent."""

    def __init__(self, handle: TaskHandle[R], q: RunsAsync) -> None:
        self._handle = handle
        self._q = q

    @property
    def message_id(self) -> MessageId:
        """The id of the call's message."""
        return self._handle.message_id

    @property
    def queue(self) -> str:
        """The queue whose workers run it."""
        return self._handle.queue

    @property
    def duplicate(self) -> bool:
        """Whether a call with the same ``id`` was sent before; this is its handle."""
        return self._handle.duplicate

    @property
    def replaced(self) -> bool:
        """Whether the call replaced a waiting one with the same ``key``."""
        return self._handle.replaced

    def result(self, timeout_ms: Duration | None = None) -> R:
        """Wait for the task's return value, as ``TaskHandle.result``."""
        return self._q.run_async(lambda _: self._handle.result(timeout_ms))

    def __repr__(self) -> str:
        return f"<BlockingTaskHandle of message {self.message_id} in {self.queue!r}>"
