"""A bounded number of threads for handlers that block.

They are daemon threads: one that hangs cannot be killed, but must not keep the process from
ending. A ``ThreadPoolExecutor`` would: Python waits for its threads.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple
from weakref import WeakSet

__all__ = ["Threads"]


class _Job(NamedTuple):
    """A call, and the future for its result."""

    future: Future[object]
    call: Callable[[], object]


class Threads:
    """Up to ``count`` threads, started on demand."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = 0
        #: Abandoned calls. Their threads are not counted, and end with the call.
        self._abandoned: WeakSet[Future[object]] = WeakSet()

    def submit(self, function: Callable[[], object]) -> Future[object]:
        """Call the function in a thread, with the current context variables.

        Cancelling the future works until the call has started.
        """
        future: Future[object] = Future()
        context = contextvars.copy_context()
        if self._started < self._count:
            name = f"{self._name}-{self._started + 1}"
            Thread(target=self._work, name=name, daemon=True).start()
            self._started += 1  # Not before: the system may refuse a thread.
        self._jobs.put(_Job(future, partial(context.run, function)))
        return future

    def abandon(self, future: Future[object]) -> None:
        """Give up on a running call; a new thread replaces the one that it blocks."""
        self._abandoned.add(future)
        self._started -= 1

    def close(self) -> None:
        """End the threads, each after its job."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _carry_out(job.future, job.call)
            if job.future in self._abandoned:
                return


def _carry_out(future: Future[object], call: Callable[[], object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except StopIteration as error:
        # An event loop's future cannot carry a StopIteration.
        future.set_exception(RuntimeError(f"StopIteration: {error}"))
    except BaseException as error:  # noqa: BLE001  (it is raised where the result is awaited)
        future.set_exception(error)
    else:
        future.set_result(result)
