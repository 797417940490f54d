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
from concurrent.futures import CancelledError
from typing import Any, ParamSpec, TypeVar

from penstock.errors import BadInput, StoreClosed

__all__ = ["LoopThread"]

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads that wait for them."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._closed = False
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
        # The caller's context goes along: the trace of the thread is the trace of the call.
        future = asyncio.run_coroutine_threadsafe(verb(*args, **kwargs), self._loop)
        try:
            return future.result()
        except CancelledError as error:
            raise StoreClosed("It was closed while the call was under way.") from error
        except BaseException:
            # KeyboardInterrupt, above all: nobody waits for the answer any more.
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], None]) -> None:
        """Have the loop call the function, and wait for nothing."""
        if not self._closed:
            self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """End the loop; what is still under way is cancelled."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._process:
            self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def _serve(self, ready: threading.Event) -> None:
        # Closing the runner cancels what is left and closes the loop.
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()

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
