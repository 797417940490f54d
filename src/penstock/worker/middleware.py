"""Middleware: what goes on around every handler, from the outside in.

::

    @app.middleware
    async def audit(context: Context, next: Next) -> object:
        result = await next(context)
        log.info("handled %s", context.message.id)
        return result

The first that is registered is the outermost. Each may look at the result, change it, raise in
its place, or not call ``next`` at all. Tracing and timing are there already, outside of all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from penstock.telemetry import current_trace, new_span_id, parse_traceparent
from penstock.worker.context import Context
from penstock.worker.verdicts import Reject, Retry

__all__ = ["Middleware", "Next", "Observe", "Timing", "chained", "timing", "tracing"]

#: What is inside: the next middleware, and in the end the handler.
Next: TypeAlias = Callable[[Context], Awaitable[object]]
Middleware: TypeAlias = Callable[[Context, Next], Awaitable[object]]

_log = logging.getLogger("penstock.worker")


class Timing(Struct, frozen=True, kw_only=True):
    """How one handling went: for metrics."""

    queue: str
    handler: str
    seconds: float
    outcome: str
    """``done``, ``retry``, ``reject``, ``error`` or ``cancelled``."""


#: Told of every handling; it returns at once.
Observe: TypeAlias = Callable[[Timing], None]


def chained(middleware: Sequence[Middleware], handle: Next) -> Next:
    """One callable that goes through all of them."""
    for layer in reversed(middleware):
        handle = partial(_through, layer, handle)
    return handle


def _through(layer: Middleware, next: Next, context: Context) -> Awaitable[object]:
    return layer(context, next)


async def tracing(context: Context, next: Next) -> object:
    """Make the message's trace the current one, one span further down."""
    parent, state = context.headers.get("traceparent"), context.headers.get("tracestate", "")
    trace = parse_traceparent(parent, str(state)) if isinstance(parent, str) else None
    if trace is None:
        return await next(context)
    token = current_trace.set(trace.child(new_span_id()))
    try:
        return await next(context)
    finally:
        current_trace.reset(token)


def timing(observe: Observe | None) -> Middleware:
    """Log how long each handling took, and tell ``observe``."""

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
    if observe is None:
        return
    try:
        observe(
            Timing(queue=context.queue, handler=context.handler, seconds=seconds, outcome=outcome)
        )
    except Exception:  # noqa: BLE001  (whoever counts must not make deliveries fail)
        _log.exception("observing a handling failed")
