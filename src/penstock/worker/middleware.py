"""Middleware: functions around every handler, from the outside in.

::

    @app.middleware
    async def audit(context: Context, next: Next) -> object:
        result = await next(context)
        log.info("handled %s", context.message.id)
        return result

The first one registered is the outermost. Each may inspect or change the result, raise an error
instead, or not call ``next`` at all. Tracing and timing are built in, outside of all others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from penstock import otel_metrics
from penstock.model.settling_exceptions import Reject, Retry
from penstock.tracing import handling
from penstock.worker.context import Context

__all__ = ["Middleware", "Next", "Observe", "Timing", "chained", "timing", "tracing"]

#: The next middleware, or the handler.
Next: TypeAlias = Callable[[Context], Awaitable[object]]
Middleware: TypeAlias = Callable[[Context, Next], Awaitable[object]]

_log = logging.getLogger("penstock.worker")


class Timing(Struct, frozen=True, kw_only=True):
    """Duration and outcome of one handling, for metrics."""

    queue: str
    handler: str
    seconds: float
    outcome: str
    """``done``, ``retry``, ``reject``, ``error`` or ``cancelled``."""


#: Called after every handling; must not block.
Observe: TypeAlias = Callable[[Timing], None]


def chained(middleware: Sequence[Middleware], handle: Next) -> Next:
    """One callable that runs all middleware around ``handle``."""
    for layer in reversed(middleware):
        handle = partial(_through, layer, handle)
    return handle


def _through(layer: Middleware, next: Next, context: Context) -> Awaitable[object]:
    return layer(context, next)


async def tracing(context: Context, next: Next) -> object:
    """Give the handling a span in the message's trace, if the program uses OpenTelemetry."""
    with handling(context.queue, context.handler, context.delivery):
        return await next(context)


def timing(observe: Observe | None) -> Middleware:
    """Log how long each handling took, and report it to ``observe``."""

    async def timed(context: Context, next: Next) -> object:
        begun = time.perf_counter()
        outcome = "cancelled"
        try:
            result = await next(context)
            outcome = "done"
        except Retry:
            outcome = "retry"
            raise
        except Reject:
            outcome = "reject"
            raise
        except Exception:
            outcome = "error"
            raise
        else:
            return result
        finally:
            seconds = time.perf_counter() - begun
            _tell(observe, context, outcome, seconds)

    return timed


def _tell(observe: Observe | None, context: Context, outcome: str, seconds: float) -> None:
    _log.debug(
        "%s: message %d of %r: %s in %.1f ms",
        context.handler,
        context.message.id,
        context.queue,
        outcome,
        seconds * 1000,
    )
    otel_metrics.handled(context.queue, context.handler, outcome, seconds)
    if observe is None:
        return
    try:
        observe(
            Timing(queue=context.queue, handler=context.handler, seconds=seconds, outcome=outcome)
        )
    except Exception:  # noqa: BLE001  (a failing observer must not fail deliveries)
        _log.exception("observing a handling failed")
