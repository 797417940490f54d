"""An event loop in a thread of its own, for programs that have none.

Any number of threads may call. Each waits for its own answer while the loop serves all of them,
so that single publishes of several threads share a batch and leases are extended while a handler
runs. Interrupting a waiting thread cancels its call.

The thread does not survive a fork. Calls of a forked child are refused; it has to open its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, ParamSpec, TypeVar

from penstock.errors import BadInput, StoreClosed

__all__ = ["LoopThread"]

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads that wait for them."""

    def __init__(self) -> None:
        self._process = os.getpid()
        # Reentrant: a signal handler may stop a consumption in the middle of a call.
        self._lock = threading.RLock()
        self._closed = False
        #: The loop accepts nothing more; guarded by the lock.
        self._ended = False
        #: The futures that threads wait for; guarded by the lock.
        self._awaited: set[Future[Any]] = set()
        ready = threading.Event()
        # A daemon: it does not keep a program running that forgets to close.
        self._thread = threading.Thread(
            target=self._serve, args=(ready,), name="penstock.sync", daemon=True
        )
        self._thread.start()
        ready.wait()

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no more calls."""
        return self._closed

    def run(
        self, verb: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call the verb in the loop, and wait for its result or error."""
        self._check()
        future = self.start(verb(*args, **kwargs))
        try:
            return future.result()
        except CancelledError as error:
            raise StoreClosed("It was closed while the call was in progress.") from error
        except BaseException:
            # Mostly KeyboardInterrupt: the thread no longer waits for the answer.
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call the function in the loop, without waiting for it."""
        with self._lock:
            if not self._ended:
                self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """End the loop; calls in progress are cancelled."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if os.getpid() == self._process:
            self.call_soon(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def start(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the call in the loop; the future gets its result or error."""
        with self._lock:
            if self._ended:
                call.close()
                raise StoreClosed("It is closed.")
            # The caller's context is copied: the call has the trace of the thread.
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
            self._awaited.add(future)
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._awaited.discard(future)

    def _serve(self, ready: threading.Event) -> None:
        # Closing the runner cancels the remaining tasks and closes the loop.
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()
            with self._lock:
                self._ended = True
            # A call submitted at the last moment becomes a task here, so that it is cancelled too.
            self._loop.run_until_complete(asyncio.sleep(0))
        with self._lock:
            left = list(self._awaited)
        for future in left:
            future.cancel()

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise StoreClosed("It was opened by the parent process, before this one was forked.")
        if self._closed:
            raise StoreClosed("It is closed.")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise BadInput(
            "A blocking call inside an event loop would block that loop: use penstock.open or "
            "penstock.connect there, or call from another thread.",
            field="loop",
        )
