"""An event loop in a thread of its own, for programs that have none.

Any number of threads may call; each waits for its own answer while the loop serves all of them,
so that single publishes of several threads are gathered and leases are extended while a
handler runs. Whoever interrupts a waiting thread cancels the call it waits for.

Forking: the thread does not come along. A child that calls is refused; it opens its own.
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
        #: The loop takes nothing more; guarded by the lock.
        self._ended = False
        #: What threads wait for; guarded by the lock.
        self._awaited: set[Future[Any]] = set()
        ready = threading.Event()
        # A daemon: a program that forgets to close ends all the same.
        self._thread = threading.Thread(
            target=self._serve, args=(ready,), name="penstock.sync", daemon=True
        )
        self._thread.start()
        ready.wait()

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return self._closed

    def run(
        self, verb: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call the verb in the loop, and wait for what it returns or raises."""
        self._check()
        future = self._submit(verb(*args, **kwargs))
        try:
            return future.result()
        except CancelledError as error:
            raise StoreClosed("It was closed while the call was under way.") from error
        except BaseException:
            # KeyboardInterrupt, above all: nobody waits for the answer any more.
            future.cancel()
            raise
        finally:
            with self._lock:
                self._awaited.discard(future)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Have the loop call the function, and wait for nothing."""
        with self._lock:
            if not self._ended:
                self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """End the loop; what is still under way is cancelled."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if os.getpid() == self._process:
            self.call_soon(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def _submit(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._ended:
                call.close()
                raise StoreClosed("It is closed.")
            # The caller's context goes along: the trace of the thread is that of the call.
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
            self._awaited.add(future)
            return future

    def _serve(self, ready: threading.Event) -> None:
        # Closing the runner cancels the tasks that are left and closes the loop.
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()
            with self._lock:
                self._ended = True
            # What was submitted at the last moment becomes a task, so that it is cancelled too.
            self._loop.run_until_complete(asyncio.sleep(0))
        with self._lock:
            left = list(self._awaited)
        for future in left:
            future.cancel()

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise StoreClosed("It was opened before this process was forked, in the other one.")
        if self._closed:
            raise StoreClosed("It is closed.")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise BadInput(
            "A blocking call inside an event loop would stop that loop: use penstock.open or "
            "penstock.connect there, or call from another thread.",
            field="loop",
        )
