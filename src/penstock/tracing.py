"""Spans and trace context, through ``opentelemetry-api``. Metrics are in ``otel_metrics``.

Active as soon as the program has imported ``opentelemetry.trace``, which every program that
configures OpenTelemetry does. Otherwise each verb pays for one look into ``sys.modules``, and
nothing is imported.

===================  ========  ==============================================================
span                 kind      context
===================  ========  ==============================================================
``publish {topic}``  producer  its context goes into the message headers ``traceparent`` and
                               ``tracestate``, unless the message has its own
``claim {queue}``    client    linked to the contexts of the claimed messages; none if nothing
                               was claimed
``handle {queue}``   consumer  a child of the message's context
``settle {queue}``   client    a child of the current context; settlements of a consumer that
                               share a call have one each
===================  ========  ==============================================================

Attributes follow the semantic conventions for messaging.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from penstock import otel_metrics
from penstock.model.clock import SystemClock
from penstock.model.delivery import Delivery, Extend
from penstock.model.limits import MAX_HEADERS
from penstock.model.message import HeaderValue, NewMessage
from penstock.version import VERSION

__all__ = [
    "context_of",
    "continued",
    "current_ids",
    "handling",
    "is_traced",
    "no_settle_span",
    "span_kind",
    "traced_claim",
    "traced_headers",
    "traced_messages",
    "traced_publish",
    "traced_settle",
    "traced_settle_and_claim",
    "tracer",
]

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

_API: Final = "opentelemetry.trace"
_PARENT: Final = "traceparent"
_STATE: Final = "tracestate"
_NS_PER_MS: Final = 1_000_000
_clock: Final = SystemClock()
_has_settle_span: Final = ContextVar("penstock_has_settle_span", default=False)


# -- trace context -------------------------------------------------------------------------


def traced_headers(headers: Mapping[str, HeaderValue]) -> Mapping[str, HeaderValue]:
    """The headers with the current trace context, if there is one and they have none."""
    if _API not in sys.modules or not _has_room(headers):
        return headers
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return {**carrier, **headers} if carrier else headers


def traced_messages(messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """The messages, each with the current trace context if it has none of its own."""
    if _API not in sys.modules or current_ids() is None:
        return messages
    if not isinstance(messages, list | tuple) or any(
        type(item) is not NewMessage for item in messages
    ):
        return messages  # Refused later.
    return [replace(item, headers=traced_headers(item.headers)) for item in messages]


@contextmanager
def continued(headers: Mapping[str, HeaderValue]) -> Iterator[None]:
    """Make the trace context of a message the current one."""
    if _API not in sys.modules:
        yield
        return
    contexts = import_module("opentelemetry.context")
    token = contexts.attach(_extracted(headers))
    try:
        yield
    finally:
        contexts.detach(token)


def is_traced() -> bool:
    """Whether this program uses OpenTelemetry."""
    return _API in sys.modules


def context_of(headers: Mapping[str, HeaderValue]) -> Any | None:
    """The span context that a message carries; None if it has no valid one."""
    if _PARENT not in headers:
        return None
    context = sys.modules[_API].get_current_span(_extracted(headers)).get_span_context()
    return context if context.is_valid else None


def current_ids() -> tuple[str, str] | None:
    """The ids of the current trace and span, for log lines; None without a valid span."""
    api = sys.modules.get(_API)
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return api.format_trace_id(context.trace_id), api.format_span_id(context.span_id)


# -- spans ---------------------------------------------------------------------------------


@contextmanager
def handling(queue: str, handler: str, delivery: Delivery) -> Iterator[None]:
    """The span of one handling. An exception is recorded and propagates."""
    if _API not in sys.modules:
        yield
        return
    attributes = {
        **_attributes("process", "handle", queue),
        "messaging.message.id": str(delivery.message.id),
        "messaging.penstock.attempts": delivery.attempts,
        "code.function.name": handler,
    }
    with tracer().start_as_current_span(
        f"handle {queue}",
        context=_extracted(delivery.message.headers),
        kind=span_kind("CONSUMER"),
        attributes=attributes,
    ):
        yield


def traced_publish(verb: F) -> F:
    """Give a verb that publishes to a topic its span and metrics."""

    @wraps(verb)
    async def publish(*args: Any, **kwargs: Any) -> Any:
        if _API not in sys.modules:
            return await verb(*args, **kwargs)
        topic = _argument(args, kwargs, "topic")
        with (
            tracer().start_as_current_span(
                f"publish {topic}",
                kind=span_kind("PRODUCER"),
                attributes=_attributes("send", "publish", topic),
            ),
            otel_metrics.publishing(topic),
        ):
            reply = await verb(*args, **kwargs)
        otel_metrics.published(topic, reply)
        return reply

    return cast(F, publish)


def traced_claim(verb: F) -> F:
    """Give a verb that claims from a queue its span and metrics."""

    @wraps(verb)
    async def claim(*args: Any, **kwargs: Any) -> Any:
        if _API not in sys.modules:
            return await verb(*args, **kwargs)
        queue = _argument(args, kwargs, "queue")
        begun_ms, begun = _clock.now(), time.perf_counter()
        with otel_metrics.claiming(queue):
            deliveries = await verb(*args, **kwargs)
        otel_metrics.claimed(queue, deliveries, time.perf_counter() - begun)
        _record_claim(queue, deliveries, begun_ms)
        return deliveries

    return cast(F, claim)


def traced_settle(verb: F) -> F:
    """Give a verb that settles its span and metrics.

    It takes a queue and settlements, or one of each. Extending leases has neither: consumers do
    it all the time.
    """

    @wraps(verb)
    async def settle(*args: Any, **kwargs: Any) -> Any:
        if _API not in sys.modules:
            return await verb(*args, **kwargs)
        target = _argument(args, kwargs, "queue")
        given = _argument(args, kwargs, "settlements", 2)
        items = given if isinstance(given, list | tuple) else (given,)
        if _has_settle_span.get() or all(isinstance(item, Extend) for item in items):
            return await verb(*args, **kwargs)
        queue = target.queue if isinstance(target, Delivery) else target
        attributes = _attributes("settle", "settle", queue)
        attributes["messaging.batch.message_count"] = len(items)
        names = {type(item).__name__.lower() for item in items}
        attributes["messaging.penstock.settlements"] = sorted(names)
        with (
            tracer().start_as_current_span(
                f"settle {queue}", kind=span_kind("CLIENT"), attributes=attributes
            ),
            otel_metrics.settling(queue, items) as settlement,
        ):
            settlement.reply = await verb(*args, **kwargs)
            return settlement.reply

    return cast(F, settle)


def traced_settle_and_claim(verb: F) -> F:
    """Give a verb that settles and then claims the spans and metrics of both."""
    settled = traced_settle(verb)

    @wraps(verb)
    async def settle_and_claim(*args: Any, **kwargs: Any) -> Any:
        if _API not in sys.modules:
            return await verb(*args, **kwargs)
        begun_ms = _clock.now()
        reply = await settled(*args, **kwargs)
        queue = _argument(args, kwargs, "queue")
        otel_metrics.claimed(queue, reply.deliveries, None)
        _record_claim(queue, reply.deliveries, begun_ms)
        return reply

    return cast(F, settle_and_claim)


@contextmanager
def no_settle_span() -> Iterator[None]:
    """Make no spans for settling: the callers have theirs, and share one call."""
    if _API not in sys.modules:
        yield
        return
    token = _has_settle_span.set(True)
    try:
        yield
    finally:
        _has_settle_span.reset(token)


def _record_claim(queue: object, deliveries: Sequence[Delivery], begun_ms: int) -> None:
    """The span of a claim that is over.

    Made afterwards: a consumer that waits for messages would fill the trace with claims that
    found nothing.
    """
    if not deliveries:
        return
    queue = ",".join(queue) if isinstance(queue, list | tuple) else queue
    attributes = _attributes("receive", "claim", queue)
    attributes["messaging.batch.message_count"] = len(deliveries)
    tracer().start_span(
        f"claim {queue}",
        kind=span_kind("CLIENT"),
        attributes=attributes,
        links=_links(deliveries),
        start_time=begun_ms * _NS_PER_MS,
    ).end()


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], name: str, index: int = 1) -> Any:
    """An argument of a method, which the caller may have named; the verb refuses a missing one."""
    return args[index] if len(args) > index else kwargs.get(name)


def _attributes(type: str, name: str, destination: object) -> dict[str, Any]:
    return {
        "messaging.system": "penstock",
        "messaging.operation.type": type,
        "messaging.operation.name": name,
        "messaging.destination.name": str(destination),
    }


def tracer() -> Any:
    """The tracer of this package; only if ``is_traced``."""
    # The provider may be set after the first call, so the tracer is not kept; the SDK caches it.
    return sys.modules[_API].get_tracer("penstock", VERSION)


def span_kind(name: str) -> Any:
    """A kind of span by its name."""
    return getattr(sys.modules[_API].SpanKind, name)


def _propagator() -> Any:
    module = import_module("opentelemetry.trace.propagation.tracecontext")
    return module.TraceContextTextMapPropagator()


def _extracted(headers: Mapping[str, HeaderValue]) -> Any:
    """The context of a message; the current one if its headers have none that is valid."""
    names = (_PARENT, _STATE)
    carrier = {name: value for name in names if isinstance(value := headers.get(name), str)}
    return _propagator().extract(carrier)


def _links(deliveries: Sequence[Delivery]) -> list[Any]:
    api = sys.modules[_API]
    contexts = (context_of(delivery.message.headers) for delivery in deliveries)
    return [api.Link(context) for context in contexts if context is not None]


def _has_room(headers: object) -> bool:
    """Whether a trace can be added; headers that are not a mapping are refused later."""
    return (
        isinstance(headers, Mapping) and _PARENT not in headers and len(headers) < MAX_HEADERS - 1
    )
